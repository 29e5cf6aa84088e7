"""Rules on the kernel table: its trustworthiness, the device's idle time, excessive categories."""

from __future__ import annotations

from math import fsum

from sysbench.core.findings.rule_rules import Rule
from sysbench.core.formatting import percent, signed_percent
from sysbench.core.record.record import Finding, Kernels, Record
from sysbench.core.trace.idle_causes import HOST_LATE, ON_SYNC

PERTURBATION_LIMIT = 0.10
COVERAGE_LIMIT = 0.98
IDLE_LIMIT = 0.10
SYNC_LIMIT = 0.05

CATEGORY_LIMITS = {
    "elementwise": 0.40,
    "softmax": 0.30,
    "reduce": 0.15,
    "norm": 0.20,
    "copy": 0.15,
    "embedding": 0.15,
    "optimizer": 0.40,
    "random": 0.10,
}
"""Shares of the time that anything ran, about twice those of published profiles of such models:
elementwise 15-20 %, softmax 12 %, reductions 4 %, AdamW up to 20 % of a step."""


def tracing_perturbed(record: Record) -> Finding | None:
    """The traced step is farther from the bare one than the limit, whatever the cause."""
    kernels = record.kernels
    if kernels is None or kernels.perturbation is None:
        return None
    change = kernels.perturbation - 1
    if abs(change) <= PERTURBATION_LIMIT:
        return None
    bare_ms = kernels.step_ms / kernels.perturbation
    cause = (
        "Many small operators cost more to record than to run, or the processes differ otherwise"
        if change > 0
        else "A profiler makes no step shorter: the processes differ otherwise"
    )
    return Finding(
        rule="tracing-perturbed",
        severity="warning",
        verdict=f"The traced step is {signed_percent(change, 0)} off the bare one, past the limit "
        f"of {percent(PERTURBATION_LIMIT, 0)}.",
        why=f"Traced {kernels.step_ms:.4g} ms per step, bare {bare_ms:.4g} ms, each in a process "
        f"of its own and not tested against the other. {cause}.",
        next="Trust the shares of the table more than its milliseconds.",
        numbers={"perturbation": kernels.perturbation, "limit": PERTURBATION_LIMIT},
    )


def no_kernels(record: Record) -> Finding | None:
    """The step ran on a GPU, and the table has none of its kernels."""
    kernels = record.kernels
    if kernels is None or not kernels.lacks_kernels:
        return None
    return Finding(
        rule="no-kernels",
        severity="problem",
        verdict="No kernel was recorded: the table is of the host, not of the GPU.",
        why=f"{_sentence(kernels.missing['kernels'])}.",
        next="Do not use shares or times of this table. End other profilers, take foreign CUDA "
        "libraries out of LD_LIBRARY_PATH, and trace again; the timing pass is not affected.",
        numbers={"launches": kernels.coverage.launches},
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def low_coverage(record: Record) -> Finding | None:
    """The kernel table explains too little of the step."""
    kernels = record.kernels
    if kernels is None or kernels.coverage.explained >= COVERAGE_LIMIT:
        return None
    if kernels.lacks_kernels:
        return None  # `no_kernels` says more
    return Finding(
        rule="low-coverage",
        severity="warning",
        verdict=f"The table explains only {percent(kernels.coverage.explained)} of the step.",
        why=f"{kernels.coverage.unlinked} of {kernels.coverage.kernels} kernels have no recorded "
        f"launch, {kernels.coverage.dropped} launches have no recorded kernel; the rest of the gap "
        "is in no event.",
        next="Read the unattributed row before you trust a share.",
        numbers={"explained": kernels.coverage.explained},
    )


def launch_bound(record: Record) -> Finding | None:
    """The host does not launch fast enough: the device waits for it.

    Tracing slows the host and not the kernels, so the device's busy time is compared with the
    bare step.
    """
    kernels, timing = record.kernels, record.timing
    if kernels is None or timing is None or kernels.source != "kernels":
        return None
    causes = {row.cause: row.ns for row in kernels.idle}
    late_ns, idle_ns = causes.get(HOST_LATE, 0.0), fsum(causes.values())
    step_ms, busy_ms = timing.step.median_ms, kernels.busy_ns / 1e6
    idle = 1 - busy_ms / step_ms if step_ms else 0.0
    if idle < IDLE_LIMIT or not late_ns or late_ns < idle_ns / 2:
        return None
    phase = _emptiest_phase(kernels)
    where = f" most of it in {phase}" if phase else ""
    calls = fsum(row.calls for row in kernels.rows)
    issue = (
        f"; the host issues it in {timing.issue.median_ms:.4g} ms at most" if timing.issue else ""
    )
    optimizer = record.spec.get("optimizer")
    fuse = phase == "optimizer" and optimizer in ("adamw-loop", "adamw-foreach")
    return Finding(
        rule="launch-bound",
        severity="warning",
        verdict=f"Launch-bound: the GPU idles {percent(idle, 0)} of the step,"
        f"{where or ' waiting for it'}.",
        why=f"{calls:,.0f} kernels are {busy_ms:.4g} ms of GPU work in a step of {step_ms:.4g} ms"
        f"{issue}. In the trace {percent(late_ns / idle_ns, 0)} of the idle time is: {HOST_LATE}.",
        next="Try --set optimizer=adamw-fused: one launch for many."
        if fuse
        else "Launch less often: --set compile=reduce-overhead (CUDA graphs), or a larger batch.",
        numbers={"idle": idle, "busy_ms": busy_ms, "step_ms": step_ms, "late_ms": late_ns / 1e6},
    )


def idle_on_sync(record: Record) -> Finding | None:
    """The device runs out of work because the host waited for it."""
    kernels = record.kernels
    row = next((row for row in kernels.idle if row.cause == ON_SYNC), None) if kernels else None
    if row is None or row.share < SYNC_LIMIT:
        return None
    return Finding(
        rule="idle-on-sync",
        severity="warning",
        verdict=f"The GPU idles {percent(row.share, 0)} of the traced step "
        "after the host waited for it.",
        why=f"{row.ns / 1e6:.4g} ms a step begin while the host is inside a synchronising call: "
        "nothing is queued when it returns.",
        next="Look for .item(), .cpu(), print or a synchronisation in the step; read them later.",
        numbers={"share": row.share, "limit": SYNC_LIMIT},
    )


def category_out_of_line(record: Record) -> Finding | None:
    """One category of work takes far more than in published profiles of such models."""
    kernels = record.kernels
    if kernels is None or kernels.lacks_kernels:
        return None
    total_ns = fsum(row.exclusive_ns for row in kernels.categories)
    excess = {}
    for category, limit in CATEGORY_LIMITS.items():
        ns = fsum(row.exclusive_ns for row in kernels.categories if row.category == category)
        excess[category] = ns / total_ns / limit if total_ns else 0.0
    category = max(excess, key=excess.__getitem__)
    if excess[category] <= 1:
        return None
    limit = CATEGORY_LIMITS[category]
    share = excess[category] * limit
    rows = [row for row in kernels.rows if row.category == category]
    top = max(rows, key=lambda row: row.exclusive_ns, default=None)
    return Finding(
        rule="category-out-of-line",
        severity="note",
        verdict=f"{category.capitalize()} takes {percent(share, 0)} of the time "
        "that anything runs.",
        why=f"Up to {percent(limit, 0)} is usual for such a model."
        + (f" Most of it: {top.name[:80]} in {top.module or top.phase}." if top else ""),
        next="Look at these rows in the tree; fused kernels (compile, sdpa) save most such work.",
        numbers={"category": category, "share": share, "limit": limit},
    )


def _emptiest_phase(kernels: Kernels) -> str:
    """The phase with the longest idle time; empty if no phase is known."""
    idle = {
        phase: ns - fsum(row.exclusive_ns for row in kernels.rows if row.phase == phase)
        for phase, ns in kernels.phases_ns.items()
    }
    return max(idle, key=idle.__getitem__, default="")


RULES: tuple[Rule, ...] = (
    tracing_perturbed,
    no_kernels,
    low_coverage,
    launch_bound,
    idle_on_sync,
    category_out_of_line,
)
