"""A stage of the check: its row, and what it has to work with."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sysbench.core.export.text_formats import escaped

ROOT = Path(__file__).parents[3]
LARGEST_FIXTURE_BYTES = 200_000
NO_TIME = "null GPU"
"""Stands where a time of a null GPU would stand."""

Row = list[str]


@dataclass(frozen=True)
class Bench:
    """The device under check, and what one stage may use.

    Attributes:
        stage: Name of the stage.
        device: ``cuda:N``, or ``cpu``.
        is_null: The device computes nothing: its times are shown nowhere.
        is_quick: Take the fewest cells, to rehearse.
        folder: Keeps rows and runs between starts.
        fixtures: Takes small recordings for tests elsewhere.
        end: When the stage is to be over, by `time.monotonic`.
    """

    stage: str
    device: str
    is_null: bool
    is_quick: bool
    folder: Path
    fixtures: Path
    end: float

    @property
    def seconds_left(self) -> float:
        """Seconds until the stage is cut off."""
        return self.end - time.monotonic()

    def time(self, value: float | None, form: str = "{:.3f}") -> str:
        """A time, or what follows from one, as text."""
        if self.is_null:
            return NO_TIME
        return "–" if value is None else form.format(value)

    def once(self, key: str, make: Callable[[], Row]) -> Row:
        """The row of this key: the one of an earlier start, else a new one, which is kept."""
        path = self.folder / f"{self.stage}.rows.jsonl"
        rows: dict[str, Row] = {}
        if path.is_file():
            rows = dict(json.loads(line) for line in path.read_text().splitlines())
        if key not in rows:
            rows[key] = make()
            with path.open("a") as file:
                file.write(json.dumps([key, rows[key]]) + "\n")
        return rows[key]

    def keep(self, data: bytes, name: str) -> str:
        """Keep a recording if it is small, compressed where it is not yet; a line about it."""
        if not name.endswith(".gz"):
            data, name = gzip.compress(data, mtime=0), f"{name}.gz"
        size = f"{len(data) / 1000:.0f} kB"
        if len(data) > LARGEST_FIXTURE_BYTES:
            return f"Fixture {name} was not kept: {size}."
        self.fixtures.mkdir(parents=True, exist_ok=True)
        (self.fixtures / name).write_bytes(data)
        return f"Fixture kept: {name}, {size}."


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: On the command line, and of its files.
        title: Its heading on the page.
        minutes: Time limit; a second start continues with its rows.
        lines: Does the work and yields lines of Markdown as they come.
        on_cpu: Whether it can do without a GPU.
    """

    name: str
    title: str
    minutes: float
    lines: Callable[[Bench], Iterator[str]]
    on_cpu: bool = False


def header(*columns: str) -> Iterator[str]:
    """The first two lines of a table."""
    yield line(columns)
    yield "|---" * len(columns) + "|"


def line(cells: Sequence[str]) -> str:
    """A row of a table; characters of Markdown in its cells are escaped."""
    return f"| {' | '.join(map(escaped, cells))} |"
