"""An experiment in another process: started, stopped, followed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ...analysis.verdict.records import blocks_of, verdict_of
from ...machine import children
from ...machine.children import python_child
from ...record.record import Record
from ...record.timing import Round
from ...storage import locked
from ..directory import RunDirectory
from ..launch import end_holder
from ..records import load_record
from .experiment import ExperimentDirectory, Side
from .runner import NO_WAIT, Judged, RoundFinished, Stopped

POLL_SECONDS = 0.3
GRACE_SECONDS = 20.0
"""Seconds that a new process may take until it holds the experiment."""


def start_experiment(directory: ExperimentDirectory, *, wait: bool = True) -> int:
    """Run the experiment in a session of its own; returns the process id.

    It survives a closed terminal and the end of this process. Its output goes to ``runner.log``.

    Raises:
        DeviceBusyError: Another process works on the experiment.
    """
    with locked(directory.lock_path, who=f"experiment {directory.id}"):
        directory.clear_end()
    options = () if wait else (NO_WAIT,)
    command = python_child("sysbench.core.runs.ab.runner", str(directory.path), *options)
    return children.start_detached(command, directory.path / "runner.log")


def stop_experiment(directory: ExperimentDirectory) -> bool:
    """Signal the experiment's process to end; false if none is live.

    The round under way is torn; those before it are kept, and the experiment can go on later.

    Raises:
        DeviceBusyError: It is no process of this system, which therefore cannot signal it.
    """
    return end_holder(directory.lock_path, f"experiment {directory.id} is measured")


def follow_experiment(
    directory: ExperimentDirectory,
) -> Iterator[RoundFinished | Judged | Stopped]:
    """What the experiment has come to so far, then every round as it ends, until it stops.

    Without a last Stopped its process died.

    Raises:
        DamagedFileError: The experiment or one of its runs cannot be read, or was deleted.
    """
    experiment = directory.experiment()
    runs: dict[Side, RunDirectory] = {"A": directory.run("A"), "B": directory.run("B")}
    yielded: set[tuple[str, int, str]] = set()
    blocks, read_at_ns = 0, (-1, -1)
    waits_until = time.monotonic() + GRACE_SECONDS
    was_live = False
    while True:
        # Read before the rounds: a process that was alive may have measured more since.
        is_live = directory.is_live()
        was_live = was_live or is_live
        ended = directory.ended()
        written_ns = _written_ns(runs["A"]), _written_ns(runs["B"])
        if written_ns != read_at_ns:  # following must not take the processor from what is measured
            read_at_ns = written_ns
            records = {side: load_record(run) for side, run in runs.items()}
            for side, row in _rounds(records, experiment.id):
                # A mark changes a round after its end.
                if (side, row.index, row.disturbed) not in yielded:
                    yielded.add((side, row.index, row.disturbed))
                    yield RoundFinished(side=side, round=row)
            whole = blocks_of(_times(records["A"]), _times(records["B"]))
            if len(whole) > blocks:
                blocks = len(whole)
                verdict = verdict_of(records["A"], records["B"], smallest=experiment.smallest)
                yield Judged(blocks=blocks, verdict=verdict)
        if not is_live and (ended or was_live or time.monotonic() > waits_until):
            if ended:
                yield Stopped(ended=ended)
            return
        time.sleep(POLL_SECONDS)


def _written_ns(run: RunDirectory) -> int:
    try:
        return run.record_path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _times(record: Record) -> list[Round]:
    return record.timing.rounds if record.timing else []


def _rounds(records: dict[Side, Record], experiment: str) -> list[tuple[Side, Round]]:
    rows: list[tuple[Side, Round]] = [
        (side, row)
        for side, record in records.items()
        for row in _times(record)
        if row.experiment == experiment
    ]
    return sorted(rows, key=lambda pair: pair[1].started_ns)
