"""Messages of the decoding process to its parent: JSON lines."""

from __future__ import annotations

import msgspec

from ..errors import DamagedFileError


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
