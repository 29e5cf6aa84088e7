"""Messages of a decoding process to its parent: JSON lines on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError, SysbenchError
from sysbench.core.formatting import format_bytes

PROGRESS_SECONDS = 0.05


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """Progress of a stage, in its unit; 0 of 0 where that is not known."""

    stage: str
    done: int
    total: int

    @property
    def share(self) -> float | None:
        """Fraction of the stage that is done, None where that is not known."""
        return min(1.0, self.done / self.total) if self.total else None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The file cannot be read, and why."""

    message: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The tables are in the entry."""


Message = Progressed | Refused | Finished

_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """One line, its end included."""
    return msgspec.json.encode(message) + b"\n"


def decode_message(line: bytes) -> Message:
    """A message from its line.

    Raises:
        DamagedFileError: It is none.
    """
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"the decoding process wrote what is no message: {error}") from error


def send_message(message: Message) -> None:
    """Write a message to standard output."""
    sys.stdout.buffer.write(encode_message(message))
    sys.stdout.buffer.flush()


class ProgressSender:
    """Sends the progress every `PROGRESS_SECONDS`; the start of a stage at once."""

    def __init__(self) -> None:
        self._stage = ""
        self._sent_s = 0.0

    def send(self, stage: str, done: int, total: int) -> None:
        """Send it, unless the last one was just now."""
        now = time.monotonic()
        if stage != self._stage or now - self._sent_s >= PROGRESS_SECONDS:
            self._stage, self._sent_s = stage, now
            send_message(Progressed(stage, done, total))


def refusal(error: Exception, path: Path, limit_bytes: int) -> Refused:
    """One message for the user; bytes of the path that are no text are made visible."""
    if any(isinstance(cause, MemoryError) for cause in _chain(error)):
        limit = format_bytes(limit_bytes)
        text = (
            f"{path} takes more than {limit} of memory to decode; "
            "`sysbench-tui inspect` allows more with --memory-limit"
        )
    elif isinstance(error, SysbenchError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"{error.filename or path}: {error.strerror}"
    else:
        text = f"{path} cannot be read: {type(error).__name__}: {error}"
    if str(path) not in text:
        text = f"{path}: {text}"
    return Refused(text.encode("utf-8", "backslashreplace").decode())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
