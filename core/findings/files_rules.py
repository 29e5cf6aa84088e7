"""Findings of a trace or an export of others: what its own sums say, whoever recorded it.

Nothing is known of the program but the file: no timing without a profiler, no settings. Each rule
compares sums of one file with each other.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from math import fsum

from sysbench.core.findings.kernels_rules import IDLE_LIMIT
from sysbench.core.formatting import percent
from sysbench.core.record.record import Finding, Kernels
from sysbench.core.record.steps import MarkedSteps, StepRow
from sysbench.core.trace.idle_causes import (
    BETWEEN,
    HOST_LATE,
    LAUNCH,
    LAUNCHING,
    ON_SYNC,
    SYNC,
)

EXPOSED_LIMIT = 0.10
MAIN_CAUSE = 0.5
"""Part of the idle time from which one cause is called the reason."""

TOLD_CAUSE = 0.2
"""Part of the idle time from which the calls behind a cause are named."""

REMEDIES = {
    HOST_LATE: (
        "most of it because the host had not launched yet",
        "Look at the operators and the Python code around the gaps; CUDA graphs, torch.compile or "
        "larger batches launch less often.",
    ),
    ON_SYNC: (
        "most of it after the host waited for it",
        "Look for .item(), .cpu(), print or a synchronisation; read results later.",
    ),
    LAUNCHING: (
        "most of it while the host was stuck inside a launch call",
        "A first launch loads its code (warm up before the profiler starts); a long one later "
        "waits for room in a full queue or for memory that is freed.",
    ),
    BETWEEN: (
        "most of it between kernels that were launched already",
        "The device waited for another stream, a copy or another GPU: look at what ends the gaps.",
    ),
}
"""By cause: the words of the verdict, and what to do next."""

NO_MAIN_CAUSE = ("for several causes", "Look at the idle rows of the kernel table.")

FileRule = Callable[[Kernels], Finding | None]


def findings_of_file(kernels: Kernels) -> list[Finding]:
    """Return the findings on a file's kernels, in the order of the rules."""
    return [finding for rule in RULES if (finding := rule(kernels)) is not None]


def device_idle(kernels: Kernels) -> Finding | None:
    """The device stands still for much of the span, and one cause has most of it."""
    whole_ns = kernels.step_ms * 1e6
    idle_ns = fsum(row.ns for row in kernels.idle)
    if kernels.source != "kernels" or not whole_ns or idle_ns < IDLE_LIMIT * whole_ns:
        return None
    longest = max(kernels.idle, key=lambda row: row.ns)
    words, remedy = REMEDIES.get(longest.cause, NO_MAIN_CAUSE)
    if longest.ns < MAIN_CAUSE * idle_ns:
        words, remedy = NO_MAIN_CAUSE
    parts = ", ".join(
        f"{row.cause} {row.ns / 1e6:.4g} ms"
        for row in sorted(kernels.idle, key=lambda row: -row.ns)
    )
    return Finding(
        rule="file-device-idle",
        severity="warning",
        verdict=f"The GPU is idle for {percent(idle_ns / whole_ns, 0)} of the {kernels.whole}, "
        f"{words}.",
        why=f"Of {kernels.step_ms:.4g} ms: {parts}.{_late_in(kernels)}"
        f"{_calls_behind(kernels, idle_ns)}{_outside(kernels)} A profiler slows the host "
        "and not the kernels: without it the share may be lower.",
        next=remedy,
        numbers={"idle": idle_ns / whole_ns, "cause": longest.cause, "cause_ns": longest.ns},
    )


def _late_in(kernels: Kernels) -> str:
    """The narrowest annotation with most of the time in which the host had not launched yet."""
    late_ns = fsum(row.ns for row in kernels.idle if row.cause == HOST_LATE) * kernels.steps
    ranges = kernels.host.annotations if kernels.host else []
    steps = kernels.marked_steps.rows if kernels.marked_steps else []
    around = {name for row in steps for name in (row.name, re.sub(r"\d+", "*", row.name))}
    most = [
        row
        for row in ranges
        if row.late_ns >= max(MAIN_CAUSE * late_ns, 1) and row.name not in around
    ]
    if not most:
        return ""
    narrowest = min(most, key=lambda row: row.host_ns)
    return (
        f" While {narrowest.name} was open on the host, {narrowest.late_ns / 1e6:.4g} ms of "
        f"{late_ns / 1e6:.4g} passed before a launch."
    )


def _calls_behind(kernels: Kernels, idle_ns: float) -> str:
    """The host's calls of the kinds that a cause of much of the idle time names."""
    calls = kernels.host.calls if kernels.host else []
    much = {row.cause for row in kernels.idle if row.ns >= TOLD_CAUSE * idle_ns}
    words = ""
    if LAUNCHING in much and (launches := [row for row in calls if LAUNCH.search(row.name)]):
        longest = max(launches, key=lambda row: row.max_ns)
        words += f" The longest launch call, {longest.name}, took {longest.max_ns / 1e6:.4g} ms."
    if ON_SYNC in much and (waits := [row for row in calls if SYNC.search(row.name)]):
        most = max(waits, key=lambda row: row.total_ns)
        times = "once" if most.instances == 1 else f"{most.instances:,} times"
        words += (
            f" The host waited longest in {most.name}, called {times}, "
            f"{most.total_ns / 1e6:.4g} ms."
        )
    return words


def _outside(kernels: Kernels) -> str:
    """How much of the idle time lies outside the steps, where these are marked and most does."""
    marked = kernels.marked_steps
    if marked is None or marked.chosen:
        return ""
    outside_ns = sum(marked.outside.idle.values())
    idle_ns = fsum(row.ns for row in kernels.idle)
    if outside_ns < MAIN_CAUSE * idle_ns:
        return ""
    return f" {outside_ns / 1e6:.4g} ms of it lie outside the marked steps (--steps)."


def exposed_communication(kernels: Kernels) -> Finding | None:
    """Communication that no computation hides takes much of the span."""
    whole_ns = kernels.step_ms * 1e6
    rows = [row for row in kernels.rows if row.category == "communication"]
    exposed_ns, all_ns = fsum(row.exclusive_ns for row in rows), fsum(row.total_ns for row in rows)
    if kernels.source != "kernels" or not whole_ns or exposed_ns < EXPOSED_LIMIT * whole_ns:
        return None
    return Finding(
        rule="file-exposed-communication",
        severity="warning",
        verdict=f"{percent(exposed_ns / whole_ns, 0)} of the {kernels.whole} is communication "
        "that nothing hides.",
        why=f"{exposed_ns / 1e6:.4g} of its {all_ns / 1e6:.4g} ms run beside no computation. A "
        "rank that waits for another one is inside its kernel: one file does not tell waiting "
        "from moving data.",
        next="Compare the ranks' files before the link is blamed; larger buckets, or an earlier "
        "start of each collective, hide more.",
        numbers={"exposed": exposed_ns / whole_ns, "limit": EXPOSED_LIMIT},
    )


def odd_step(kernels: Kernels) -> Finding | None:
    """A step is far from the others of its kind; the part of it that differs most."""
    marked = kernels.marked_steps
    odd = [row for row in marked.rows if row.is_odd] if marked else []
    if marked is None or not odd or marked.chosen:
        return None
    row = max(odd, key=lambda row: abs(row.ns - _median(marked, row, lambda other: other.ns)))
    median = _median(marked, row, lambda other: other.ns)
    change = {
        name: of(row) - _median(marked, row, of)
        for name, of in (
            ("exposed communication", _communication),
            ("other busy time", _computing),
            ("unattributed", _unattributed),
            *((cause, _idle(cause)) for cause in row.idle),
        )
    }
    main = max(change, key=lambda name: abs(change[name]))
    ratio = row.ns / median if median else 0.0
    others = f" {len(odd) - 1} more are odd too." if len(odd) > 1 else ""
    return Finding(
        rule="file-odd-step",
        severity="note",
        verdict=f"Step {row.number} takes {ratio:.3g} × the median of its kind.",
        why=f"{row.ns / 1e6:.4g} ms, median {median / 1e6:.4g} ms; the largest difference is "
        f"{main}, {change[main] / 1e6:+.4g} ms.{others}",
        next=f"See it with --step {row.number}, and choose the others with --steps.",
        numbers={"step": row.number or 0, "ratio": ratio, "part": main},
    )


def _communication(row: StepRow) -> float:
    return row.communication_ns


def _computing(row: StepRow) -> float:
    return row.busy_ns - row.communication_ns


def _unattributed(row: StepRow) -> float:
    return row.unattributed_ns


def _idle(cause: str) -> Callable[[StepRow], float]:
    def of(row: StepRow) -> float:
        return row.idle.get(cause, 0)

    return of


def _median(marked: MarkedSteps, row: StepRow, of: Callable[[StepRow], float]) -> float:
    return statistics.median(of(other) for other in marked.rows if other.kind == row.kind)


RULES: tuple[FileRule, ...] = (device_idle, exposed_communication, odd_step)
