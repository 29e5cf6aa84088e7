"""Rules on an imported file.

The file has no untraced timing and no spec, so each rule compares sums of the file.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from functools import partial
from math import fsum

from sysbench.core.findings.kernels_rules import IDLE_LIMIT
from sysbench.core.formatting import counted, percent
from sysbench.core.record.record import Finding, Kernels
from sysbench.core.record.steps import MarkedSteps, StepRow
from sysbench.core.trace.idle_causes import (
    BETWEEN,
    HOST_LATE,
    LAUNCH,
    LAUNCHING,
    ON_SYNC,
    SYNC,
    idle_label,
)

MAX_EXPOSED_SHARE = 0.10
MAIN_CAUSE_SHARE = 0.5
"""Share of the idle time above which one cause is the reason."""

MIN_CAUSE_SHARE = 0.2
"""Share of the idle time above which a finding names the calls that caused it."""

REMEDIES = {
    HOST_LATE: (
        "mostly waiting for the CPU to launch",
        "Look at the operators and the Python code around the gaps. CUDA graphs, torch.compile and "
        "larger batches need fewer launches.",
    ),
    ON_SYNC: (
        "mostly after a synchronization",
        "Look for .item(), .cpu(), print or a synchronization; read results later.",
    ),
    LAUNCHING: (
        "mostly while the CPU was inside a launch call",
        "A first launch loads the kernel's code: warm up before the profiler starts. A long launch "
        "later waits for a full queue or for memory.",
    ),
    BETWEEN: (
        "mostly between kernels that were already launched",
        "The GPU waited for another stream, a copy or another GPU: see what ends the gaps.",
    ),
}
"""By cause: end of the verdict, next step."""

NO_MAIN_CAUSE = ("for several reasons", "See the idle rows of the kernel table.")

FileRule = Callable[[Kernels], Finding | None]


def findings_of_file(kernels: Kernels) -> list[Finding]:
    return [finding for rule in RULES if (finding := rule(kernels)) is not None]


def device_idle(kernels: Kernels) -> Finding | None:
    whole_ns = kernels.step_ms * 1e6
    idle_ns = fsum(row.ns for row in kernels.idle)
    if kernels.source != "kernels" or not whole_ns or idle_ns < IDLE_LIMIT * whole_ns:
        return None
    longest = max(kernels.idle, key=lambda row: row.ns)
    reason, remedy = REMEDIES.get(longest.cause, NO_MAIN_CAUSE)
    if longest.ns < MAIN_CAUSE_SHARE * idle_ns:
        reason, remedy = NO_MAIN_CAUSE
    parts = ", ".join(
        f"{idle_label(row.cause)} {row.ns / 1e6:.4g} ms"
        for row in sorted(kernels.idle, key=lambda row: -row.ns)
    )
    return Finding(
        rule="file-device-idle",
        severity="warning",
        verdict=f"The GPU is idle for {percent(idle_ns / whole_ns, 0)} of the {kernels.whole}, "
        f"{reason}.",
        why=f"Of {kernels.step_ms:.4g} ms: {parts}.{_open_annotation(kernels)}"
        f"{_longest_calls(kernels, idle_ns)}{_outside_steps(kernels)} Profiling slows "
        "the CPU, not the kernels: the share may be lower without it.",
        next=remedy,
        numbers={"idle": idle_ns / whole_ns, "cause": longest.cause, "cause_ns": longest.ns},
    )


def _open_annotation(kernels: Kernels) -> str:
    late_ns = fsum(row.ns for row in kernels.idle if row.cause == HOST_LATE) * kernels.steps
    ranges = kernels.host.annotations if kernels.host else []
    steps = kernels.marked_steps.rows if kernels.marked_steps else []
    around = {name for row in steps for name in (row.name, re.sub(r"\d+", "*", row.name))}
    candidates = [
        row
        for row in ranges
        if row.late_ns >= max(MAIN_CAUSE_SHARE * late_ns, 1) and row.name not in around
    ]
    if not candidates:
        return ""
    narrowest = min(candidates, key=lambda row: row.host_ns)
    return (
        f" {narrowest.late_ns / 1e6:.4g} of {late_ns / 1e6:.4g} ms of the wait for launches lie in "
        f"the annotation {narrowest.name}."
    )


def _longest_calls(kernels: Kernels, idle_ns: float) -> str:
    calls = kernels.host.calls if kernels.host else []
    causes = {row.cause for row in kernels.idle if row.ns >= MIN_CAUSE_SHARE * idle_ns}
    words = ""
    if LAUNCHING in causes and (launches := [row for row in calls if LAUNCH.search(row.name)]):
        longest = max(launches, key=lambda row: row.max_ns)
        words += f" The longest launch call, {longest.name}, took {longest.max_ns / 1e6:.4g} ms."
    if ON_SYNC in causes and (waits := [row for row in calls if SYNC.search(row.name)]):
        longest = max(waits, key=lambda row: row.total_ns)
        words += (
            f" The CPU waited longest in {longest.name}: {longest.total_ns / 1e6:.4g} ms in "
            f"{counted(longest.instances, 'call')}."
        )
    return words


def _outside_steps(kernels: Kernels) -> str:
    marked = kernels.marked_steps
    if marked is None or marked.chosen:
        return ""
    outside_ns = sum(marked.outside.idle.values())
    idle_ns = fsum(row.ns for row in kernels.idle)
    if outside_ns < MAIN_CAUSE_SHARE * idle_ns:
        return ""
    return f" {outside_ns / 1e6:.4g} ms of it lie outside the marked steps (--steps)."


def exposed_communication(kernels: Kernels) -> Finding | None:
    """Communication without overlapping computation takes much of the span."""
    whole_ns = kernels.step_ms * 1e6
    rows = [row for row in kernels.rows if row.category == "communication"]
    exposed_ns, all_ns = fsum(row.exclusive_ns for row in rows), fsum(row.total_ns for row in rows)
    if kernels.source != "kernels" or not whole_ns or exposed_ns < MAX_EXPOSED_SHARE * whole_ns:
        return None
    return Finding(
        rule="file-exposed-communication",
        severity="warning",
        verdict=f"{percent(exposed_ns / whole_ns, 0)} of the {kernels.whole} is exposed "
        "communication.",
        why=f"{exposed_ns / 1e6:.4g} of {all_ns / 1e6:.4g} ms of communication overlap with no "
        "computation. The kernel also runs while a rank waits for another one: one file cannot "
        "separate waiting from transfer.",
        next="Compare the files of all ranks first. Larger buckets, or starting collectives "
        "earlier, increase the overlap.",
        numbers={"exposed": exposed_ns / whole_ns, "limit": MAX_EXPOSED_SHARE},
    )


def odd_step(kernels: Kernels) -> Finding | None:
    """A step is much longer or shorter than the others of its kind."""
    marked = kernels.marked_steps
    odd = [row for row in marked.rows if row.is_odd] if marked else []
    if marked is None or not odd or marked.chosen:
        return None
    row = max(odd, key=lambda row: abs(row.ns - _median(marked, row, lambda other: other.ns)))
    median = _median(marked, row, lambda other: other.ns)
    parts: dict[str, Callable[[StepRow], float]] = {
        "exposed communication": lambda row: row.communication_ns,
        "other busy time": lambda row: row.busy_ns - row.communication_ns,
        "unattributed": lambda row: row.unattributed_ns,
        **{cause: partial(_idle, cause) for cause in row.idle},
    }
    change = {name: of(row) - _median(marked, row, of) for name, of in parts.items()}
    main = max(change, key=lambda name: abs(change[name]))
    ratio = row.ns / median if median else 0.0
    change_of_all = f"{percent(abs(ratio - 1), 0)} {'slower' if ratio > 1 else 'faster'}"
    kind = f"{row.kind} " if row.kind else ""
    others = f" {counted(len(odd) - 1, 'more outlier')}." if len(odd) > 1 else ""
    return Finding(
        rule="file-odd-step",
        severity="note",
        verdict=f"Step {row.number} is {change_of_all} than the other {kind}steps.",
        why=f"{row.ns / 1e6:.4g} ms, median {median / 1e6:.4g} ms; the largest difference is "
        f"{main}, {change[main] / 1e6:+.4g} ms.{others}",
        next=f"Show it with --step {row.number}; select the others with --steps.",
        numbers={"step": row.number or 0, "ratio": ratio, "part": main},
    )


def _idle(cause: str, row: StepRow) -> float:
    return row.idle.get(cause, 0)


def _median(marked: MarkedSteps, row: StepRow, of: Callable[[StepRow], float]) -> float:
    return statistics.median(of(other) for other in marked.rows if other.kind == row.kind)


RULES: tuple[FileRule, ...] = (device_idle, exposed_communication, odd_step)
