"""Read the marks that `sysbench.core.watch.hook.step_recorder` writes in a watched process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sysbench.core.storage import UNREADABLE_JSON, open_regular


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The process behind a file of marks; ``epoch_ns`` is the time since the epoch at clock 0."""

    pid: int
    host: str
    rank: int | None = None
    world_size: int | None = None
    python: str = ""
    torch: str = ""
    program: str = ""
    epoch_ns: int = 0
    device: str = "cpu"
    device_name: str = ""


class StepMark(NamedTuple):
    """One part of a step; ``kind`` and ``facts`` are those of `step_recorder.Recorder`."""

    kind: str
    start_ns: int
    end_ns: int
    device_ns: int | None
    facts: tuple[Any, ...]

    @property
    def ms(self) -> float:
        """Time on the device, or the host's."""
        spent = self.end_ns - self.start_ns if self.device_ns is None else self.device_ns
        return spent / 1e6


_FACTS = msgspec.json.Decoder(tuple[str, ProcessFacts])
_MARK = msgspec.json.Decoder(list[str | int | bool | None])
MAX_LINE_BYTES = 2**16
CHUNK_BYTES = 2**22


class MarkFile:
    """A growing file of marks of one process.

    Attributes:
        facts: Of the process; None until the file has a whole line.
        problem: Error of the recorder in that process; empty if it had none.
        unreadable: Lines that are no marks.
    """

    def __init__(self, path: Path, inside: Path) -> None:
        self.path = path
        self.facts: ProcessFacts | None = None
        self.problem = ""
        self.unreadable = 0
        self._inside = inside
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[StepMark]:
        """Yield the marks since the last call; raises DamagedFileError for what is no file."""
        with open_regular(self.path, inside=self._inside) as file:
            file.seek(self._offset)
            while data := file.read(CHUNK_BYTES):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    yield from self._marks_in(line)
                self._rest = self._rest[:MAX_LINE_BYTES]

    def _marks_in(self, line: bytes) -> Iterator[StepMark]:
        try:
            if self.facts is None:
                _, self.facts = _FACTS.decode(line)
                return
            kind, *rest = _MARK.decode(line)
            if kind == "error":
                self.problem = str(rest[0])
                return
            start, end, device, *facts = rest
            if not (isinstance(start, int) and isinstance(end, int) and end >= start):
                raise ValueError(line)
            device_ns = device if isinstance(device, int) else None
            yield StepMark(str(kind), start, end, device_ns, tuple(facts))
        except (ValueError, *UNREADABLE_JSON):
            self.unreadable += 1
