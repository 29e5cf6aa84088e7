"""Measure from a script or a notebook, with the engine of the screens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.core.record.events import AnyEvent
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, create_run, find_run, load_record
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.passes import parse_passes
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec

if TYPE_CHECKING:
    import pandas


class Run:
    """A run on disk: record, tables, events."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.id = directory.id

    @property
    def record(self) -> Record:
        """The result so far."""
        return load_record(self.directory)

    def events(self) -> Iterator[AnyEvent]:
        """Yield the events written so far."""
        return self.directory.tail().read()

    def tables(self) -> dict[str, pandas.DataFrame]:
        """Return every table of the record as a data frame, by name; units are in the columns."""
        from sysbench.core.tables.section_tables import tables_of  # lazy: a run needs no tables
        from sysbench.core.tables.table import to_frame  # lazy: a run needs no tables

        return {table.name: to_frame(table) for table in tables_of(self.record)}


def start(
    spec: RunSpec, passes: Sequence[str] | None = None, *, repeat: int = 1
) -> tuple[Run, Iterator[AnyEvent]]:
    """Prepare a run; it measures while the iterator of its events is consumed.

    Args:
        passes: None uses the spec's default passes.
        repeat: Rounds of the timing pass, each a fresh process: 1 to 100.

    Raises:
        SpecError: The spec cannot be measured on this machine, by these passes, or in this number
            of rounds.
    """
    chosen = parse_passes(passes or spec.default_passes)
    directory = create_run(resolve(spec), chosen, repeat=repeat)
    return Run(directory), supervise(directory)


def run(spec: RunSpec, passes: Sequence[str] | None = None, *, repeat: int = 1) -> Run:
    """Measure the spec, wait for the end, and return the run; its record has the outcome.

    Args:
        passes: None uses the spec's default passes.
        repeat: Rounds of the timing pass, each a fresh process: 1 to 100. From two on the record's
            step time and its interval are of the rounds.

    Raises:
        SpecError: The spec cannot be measured on this machine, by these passes, or in this number
            of rounds.
    """
    result, events = start(spec, passes, repeat=repeat)
    for _ in events:
        pass
    return result


def open_run(text: str, root: Path | None = None) -> Run:
    """Open an earlier run by id, part of an id, ``last`` or path; raises NotFoundError."""
    return Run(find_run(text, root))
