"""A big trace read by a few processes, each a part of the file.

The file is cut where the text looks like the border of two events. Reading the part before a
cut checks it: that part began with an event, so if it decodes as a list of events, it also ends
with one. A failure costs only time: the caller then reads the whole file by itself and reports
the error.

Run as a program: ``python -P -m sysbench.core.analysis.trace.parts PATH BEGIN END ENDING``
writes the columns of one part to standard output.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import msgspec

from ...machine.children import python_child
from .columns import Collector
from .json import BETWEEN_EVENTS, TAIL_BYTES, Ending, Text, find_list, take_events

SMALLEST_PART_BYTES = 48 * 2**20
LEAD_BYTES = 24 * 2**20
"""What one process reads in the 0.1 s that another takes to start: the first part has more."""
MOST_PARTS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes [begin, end) of a file; ``begin`` is 0 or at the comma before an event."""

    begin: int
    end: int
    ending: Ending

    def read(
        self, file: BufferedReader, collector: Collector, advanced: Callable[[], None]
    ) -> None:
        """Collect the part's events; ``advanced`` is called after each list of them.

        Raises:
            msgspec.DecodeError: The bytes are damaged, or were not cut between events.
        """
        file.seek(self.begin)
        text = Text(file, self.end - self.begin)
        if self.begin:
            text.read_more()
            text.open_list()
        else:
            find_list(text)
        for events in take_events(text, self.ending):
            collector.add(events)
            advanced()
        collector.devices |= text.devices


def processes() -> int:
    """Number of processes that can run at once on this machine."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return allowed or 1


def cut(path: Path, count: int) -> list[Part]:
    """At most ``count`` parts, which take about equally long if all processes start now.

    Raises:
        msgspec.DecodeError: There is no list of events.
    """
    size = path.stat().st_size
    lead = min(LEAD_BYTES, size // (2 * count))
    with path.open("rb") as file:
        ending = find_list(Text(file))
        begins = [0]
        for index in range(1, count):
            offset = lead + (size - lead) * index // count
            file.seek(offset)
            if border := BETWEEN_EVENTS.search(file.read(TAIL_BYTES)):
                begins.append(offset + border.start(1))
    ends = [*begins[1:], size]
    return [
        Part(begin, end, ending if end == size else Ending.BORDER)
        for begin, end in zip(begins, ends, strict=True)
    ]


def read_in_parts(path: Path, progress: Callable[[int, int], None]) -> Collector | None:
    """Read a plain file in parts, the first in this process; None if not worth it or failed."""
    size = path.stat().st_size
    count = min(processes(), MOST_PARTS, size // SMALLEST_PART_BYTES)
    if count < 2:
        return None
    collector = Collector()
    try:
        first, *others = cut(path, count)
        with ExitStack() as stack, path.open("rb") as file:
            helpers = [stack.enter_context(_helper(path, part)) for part in others]
            # The helpers have read about the same share of their parts.
            first.read(file, collector, lambda: progress(file.tell() * size // first.end, size))
            for helper in helpers:
                output, _ = helper.communicate()
                if helper.returncode:
                    return None
                collector.add_packed(output)
    except (OSError, ValueError, TypeError, MemoryError, RecursionError, msgspec.MsgspecError):
        return None  # the caller reads the file again, and reports the error
    return collector


@contextmanager
def _helper(path: Path, part: Part) -> Iterator[subprocess.Popen[bytes]]:
    """A process that reads one part; killed at the end of the block."""
    arguments = (str(part.begin), str(part.end), part.ending.value)
    with subprocess.Popen(
        python_child(__spec__.name, str(path), *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as helper:
        try:
            yield helper
        finally:
            helper.kill()


def main(path: str, begin: str, end: str, ending: str) -> None:
    """Read one part and write its columns."""
    gc.disable()
    collector = Collector()
    with Path(path).open("rb") as file:
        Part(int(begin), int(end), Ending(ending)).read(file, collector, lambda: None)
    sys.stdout.buffer.write(collector.packed())


if __name__ == "__main__":
    main(*sys.argv[1:])
