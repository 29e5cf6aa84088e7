"""Duration of earlier passes of the same spec, from the library."""

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
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.tui.live.run_watch import LiveView

MAX_RUNS = 5
"""Newest runs to use; older ones may have another driver or torch."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Durations of finished passes of the same spec on the same host.

    Attributes:
        seconds: By pass, a value per run; for the timing pass the mean of its rounds.
        stages: By pass, the seconds of its stages in the newest run.
        compile: Compile block of the newest run that has one.
    """

    seconds: Mapping[str, list[float]] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compile: Compile | None = None

    def expected(self, name: str) -> float | None:
        """Median seconds of a pass or round; None if none finished before."""
        seconds = self.seconds.get(name)
        return statistics.median(seconds) if seconds else None

    def count(self, name: str) -> int:
        return len(self.seconds.get(name, ()))


def left_seconds(view: LiveView, earlier: Earlier, now_ns: int) -> float | None:
    """Estimate the remaining seconds of a run from earlier passes.

    None if a pass never finished before, or if the current one already takes longer.
    """
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
            rest = expected - (now_ns - view.pass_began_ns) / 1e9
            if rest < 0:
                return None
            left += rest
        left += max(rounds, 0) * expected
    return left


def earlier_runs(run: RunDirectory, environment: Mapping[str, Any]) -> Earlier:
    """Collect durations of earlier runs of the same spec; unreadable runs are skipped.

    Args:
        environment: Environment of the run, as its supervisor recorded it.

    Raises:
        SysbenchError: The run itself cannot be read.
    """
    seconds: dict[str, list[float]] = {}
    stages: Mapping[str, Mapping[str, float]] = {}
    compilation: Compile | None = None
    for other, record in islice(_same(run, environment), MAX_RUNS):
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
    header = run.header()
    identity, runs = header.spec.identity, run.path.parent
    for entry in Library(runs.parent).entries(identity):
        if entry.identity != identity or entry.live or entry.created_ns >= header.created_ns:
            continue
        other = RunDirectory(runs / entry.id)
        with suppress(SysbenchError):  # the Library screen lists unreadable runs
            record = load_record(other)
            if _host(record.environment) == _host(environment):
                yield other, record


def _stages(run: RunDirectory) -> Mapping[str, Mapping[str, float]]:
    view = LiveView()
    for event in run.tail().read():
        view.take(event)
    return view.stages


def _host(environment: Mapping[str, Any]) -> tuple[object, ...]:
    """Return facts about the host that affect durations."""
    cpu = environment.get("cpu") or {}
    facts = (cpu.get("model"), cpu.get("threads_allowed"), environment.get("nvidia"))
    return (node(environment), *facts)
