"""The time that passes of this spec took before, from the runs in the library."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sysbench.core.errors import SysbenchError
from sysbench.core.record.compile import Compile
from sysbench.core.record.environment import node
from sysbench.core.record.record import Record
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.stored_records import load_record
from sysbench.tui.live.run_watch import LiveView

MOST_RUNS = 5
"""Newest runs of the spec that count: older ones are of another driver, or another torch."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Seconds of finished passes of the same spec on the same host.

    Attributes:
        seconds: By pass, a figure for each run; of the timing pass the mean of its rounds.
        stages: By pass, the seconds of its stages in the newest run.
        compile: The compile block of the newest run that has one.
    """

    seconds: Mapping[str, list[float]] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compile: Compile | None = None

    def expected(self, name: str) -> float | None:
        """Median seconds of a pass, or of a round of it; None where none finished before."""
        took = self.seconds.get(name)
        return statistics.median(took) if took else None

    def count(self, name: str) -> int:
        """Runs behind `expected`."""
        return len(self.seconds.get(name, ()))


def left_seconds(view: LiveView, earlier: Earlier, now_ns: int) -> float | None:
    """Seconds that the run still takes if its passes take what they did before; None where one of
    them never finished, or the present one takes longer."""
    left = 0.0
    for name, state in view.passes.items():
        if state not in ("waiting", "running"):
            continue
        expected = earlier.expected(name)
        if expected is None:
            return None
        rounds = view.repeat if name == "timing" else 1
        if state == "running":
            rounds -= view.round if name == "timing" else 1
            of_this = expected - (now_ns - view.pass_began_ns) / 1e9
            if of_this < 0:
                return None
            left += of_this
        left += max(rounds, 0) * expected
    return left


def earlier_runs(run: RunDirectory, environment: Mapping[str, Any]) -> Earlier:
    """What earlier runs of a run's spec took; those that cannot be read are left out.

    Args:
        run: The run that is watched.
        environment: What its supervisor found on the host before a worker began.

    Raises:
        SysbenchError: The run itself cannot be read.
    """
    seconds: dict[str, list[float]] = {}
    stages: Mapping[str, Mapping[str, float]] = {}
    compilation: Compile | None = None
    for other, record in islice(_same(run, environment), MOST_RUNS):
        for row in record.passes:
            if row.outcome == "finished":
                rounds = len(record.timing.rounds) if row.name == "timing" and record.timing else 1
                seconds.setdefault(row.name, []).append(row.seconds / max(rounds, 1))
        compilation = compilation or record.compile
        stages = stages or _stages(other)
    return Earlier(seconds, stages, compilation)


def _same(
    run: RunDirectory, environment: Mapping[str, Any]
) -> Iterator[tuple[RunDirectory, Record]]:
    """Earlier runs of the same spec on the same host, the newest first."""
    header = run.header()
    identity, runs = header.spec.identity, run.path.parent
    for entry in Library(runs.parent).entries(identity):
        if entry.identity != identity or entry.live or entry.created_ns >= header.created_ns:
            continue
        other = RunDirectory(runs / entry.id)
        with suppress(SysbenchError):  # the Library says which runs cannot be read, and why
            record = load_record(other)
            if _host(record.environment) == _host(environment):
                yield other, record


def _stages(run: RunDirectory) -> Mapping[str, Mapping[str, float]]:
    view = LiveView()
    for event in run.tail().read():
        view.take(event)
    return view.stages


def _host(environment: Mapping[str, Any]) -> tuple[object, ...]:
    """The facts that decide how long a pass takes and that are known before it begins."""
    cpu = environment.get("cpu") or {}
    facts = (cpu.get("model"), cpu.get("threads_allowed"), environment.get("nvidia"))
    return (node(environment), *facts)
