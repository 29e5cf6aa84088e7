"""Rules on the kernel table: its reliability, idle time, unusual categories."""

from __future__ import annotations

from math import fsum

from sysbench.core.formatting import percent
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
"""Shares of busy time, about twice those of published profiles of such models: elementwise
15-20 %, softmax 12 %, reductions 4 %, AdamW up to 20 % of a step."""

CATEGORY_REMEDIES = {
    "optimizer": "Fuse them: optimizer=adamw-fused.",
    "copy": "Find them in the tree; avoid casts and non-contiguous tensors.",
    "embedding": "Find them in the tree.",
}


def tracing_perturbed(record: Record) -> Finding | None:
    """The traced step differs from the untraced one by more than the limit."""
    kernels = record.kernels
    if kernels is None or kernels.perturbation is None:
        return None
    change = kernels.perturbation - 1
    if abs(change) <= PERTURBATION_LIMIT:
        return None
    traced_ms, untraced_ms = kernels.step_ms, kernels.step_ms / kernels.perturbation
    times = f"({traced_ms:.4g} vs {untraced_ms:.4g} ms)"
    if change > 0:
        verdict = f"Tracing slowed the step by {percent(change, 0)} {times}."
        cause = "Small operators take longer to record than to run, or the machine is noisy"
        remedy = "Use percentages; absolute times are inflated."
    else:
        verdict = (
            f"Traced and untraced runs differ by {percent(-change, 0)} {times}: "
            "the machine is noisy."
        )
        cause = "A profiler never shortens a step"
        remedy = "Use percentages; do not rely on absolute times."
    return Finding(
        rule="tracing-perturbed",
        severity="warning",
        verdict=verdict,
        why=f"{cause}. One process each, not tested for significance; the limit is "
        f"{percent(PERTURBATION_LIMIT, 0)}.",
        next=remedy,
        numbers={"perturbation": kernels.perturbation, "limit": PERTURBATION_LIMIT},
    )


def no_kernels(record: Record) -> Finding | None:
    kernels = record.kernels
    if kernels is None or not kernels.lacks_kernels:
        return None
    return Finding(
        rule="no-kernels",
        severity="problem",
        verdict="No GPU kernel was recorded: the table shows CPU operators.",
        why=f"{_sentence(kernels.missing['kernels'])}.",
        next="Do not use this table. Stop other profilers, remove other CUDA libraries from "
        "LD_LIBRARY_PATH, and trace again; the timing pass is not affected.",
        numbers={"launches": kernels.coverage.launches},
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def low_coverage(record: Record) -> Finding | None:
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
        f"launch, {kernels.coverage.dropped} launches have no recorded kernel; the rest is "
        "covered by no event.",
        next="Check the unattributed row before you use percentages.",
        numbers={"explained": kernels.coverage.explained},
    )


def launch_bound(record: Record) -> Finding | None:
    """The device idles because the host does not launch fast enough."""
    kernels, timing = record.kernels, record.timing
    if kernels is None or timing is None or kernels.source != "kernels":
        return None
    causes = {row.cause: row.ns for row in kernels.idle}
    late_ns, idle_ns = causes.get(HOST_LATE, 0.0), fsum(causes.values())
    # Tracing slows the host, not the kernels: compare busy time with the untraced step.
    step_ms, busy_ms = timing.step.median_ms, kernels.busy_ns / 1e6
    idle = 1 - busy_ms / step_ms if step_ms else 0.0
    if idle < IDLE_LIMIT or not late_ns or late_ns < idle_ns / 2:
        return None
    phase = _emptiest_phase(kernels)
    where = f", mostly in {phase}" if phase else ""
    calls = fsum(row.calls for row in kernels.rows)
    issue = (
        f"; the CPU issues it in at most {timing.issue.median_ms:.4g} ms" if timing.issue else ""
    )
    optimizer = record.spec.get("optimizer")
    fuse = phase == "optimizer" and optimizer in ("adamw-loop", "adamw-foreach")
    return Finding(
        rule="launch-bound",
        severity="warning",
        verdict=f"CPU-bound: the GPU idles {percent(idle, 0)} of the step waiting for launches"
        f"{where}.",
        why=f"{calls:,.0f} kernels are {busy_ms:.4g} ms of GPU work in a step of {step_ms:.4g} ms"
        f"{issue}. In the trace {percent(late_ns / idle_ns, 0)} of idle time waits for launches.",
        next="Try --set optimizer=adamw-fused: one launch updates all parameters."
        if fuse
        else "Launch less often: --set compile=reduce-overhead (CUDA graphs), or a larger batch.",
        numbers={"idle": idle, "busy_ms": busy_ms, "step_ms": step_ms, "late_ms": late_ns / 1e6},
    )


def idle_on_sync(record: Record) -> Finding | None:
    """The device runs out of work because the host synchronized with it."""
    kernels = record.kernels
    row = next((row for row in kernels.idle if row.cause == ON_SYNC), None) if kernels else None
    if row is None or row.share < SYNC_LIMIT:
        return None
    return Finding(
        rule="idle-on-sync",
        severity="warning",
        verdict=f"The GPU idles {percent(row.share, 0)} of the traced step "
        "after a synchronization.",
        why=f"{row.ns / 1e6:.4g} ms of idle time per step begin during a synchronizing call: "
        "nothing is queued when it returns.",
        next="Look for .item(), .cpu(), print or a synchronization; read results later.",
        numbers={"share": row.share, "limit": SYNC_LIMIT},
    )


def category_out_of_line(record: Record) -> Finding | None:
    """One category takes far more time than in published profiles of such models."""
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
        verdict=f"{category.capitalize()} ops take {percent(share, 0)} of busy time.",
        why=f"At most {percent(limit, 0)} is usual for such a model."
        + (f" Most of it: {top.name[:80]} in {top.module or top.phase}." if top else ""),
        next=CATEGORY_REMEDIES.get(category, "Fuse them: compile=default or attention=sdpa."),
        numbers={"category": category, "share": share, "limit": limit},
    )


def _emptiest_phase(kernels: Kernels) -> str:
    idle = {
        phase: ns - fsum(row.exclusive_ns for row in kernels.rows if row.phase == phase)
        for phase, ns in kernels.phases_ns.items()
    }
    return max(idle, key=idle.__getitem__, default="")


RULES = (
    tracing_perturbed,
    no_kernels,
    low_coverage,
    launch_bound,
    idle_on_sync,
    category_out_of_line,
)
