"""Rules on the kernel table: reliability, idle time, categories, contradictions with the spec."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from sysbench.core.formatting import format_bytes, format_count, percent, shortened
from sysbench.core.memory.predicted import predicted_amount
from sysbench.core.record.environment import Roof, linear_layers
from sysbench.core.record.record import Finding, Kernels, Record
from sysbench.core.spec.choices import attention_named, precision_named
from sysbench.core.trace.attention_kernels import (
    above_peak,
    contradicting,
    forward_products,
    is_checkable,
    product_and_other_ns,
)
from sysbench.core.trace.classify import HOST_LATE, ON_SYNC
from sysbench.core.trace.kernel_names import copy_kind, short_kernel_name

PERTURBATION_LIMIT = 0.10
COVERAGE_LIMIT = 0.98
IDLE_LIMIT = 0.10
SYNC_LIMIT = 0.05
OPTIMIZER_LIMIT = 0.25
"""Share of the step; AdamW takes up to 20 % in published profiles of such models."""

CATEGORY_LIMITS = {
    "elementwise and copy": 0.50,
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
15-20 %, softmax 12 %, reductions 4 %, AdamW up to 20 % of a step. Kernels that copy or cast do no
arithmetic either, so both together have a limit, too."""

UNFUSED_UPDATES = ("adamw-loop", "adamw-foreach")
"""Optimizers that adamw-fused can replace."""
FEWER_UPDATES = "Use a larger batch, or accumulate gradients over several batches."
FIND_THEM = "Find them in the tree."
FILE_REMEDIES = {
    "copy": "Find them in the tree; avoid casts and non-contiguous tensors.",
    "embedding": FIND_THEM,
    "optimizer": "Fuse them: torch.optim.AdamW(…, fused=True), or foreach=True.",
    "random": "Fuse them with torch.compile, or leave dropout out.",
    "": "Fuse them: torch.compile(model), or F.scaled_dot_product_attention.",
}
"""For a program that has no spec: what its author can change."""

SCALING_LIMIT = 0.05
"""Share of the step."""
MAX_IMBALANCE, MIN_EXPERT_ROWS = 2.0, 16
"""Rows of the busiest expert over the mean, and the mean from which that is no accident."""

COUNT_TOLERANCE = 0.01
"""Calls; counts are means over the traced steps."""
FLOPS_TOLERANCE = 1e-6
PEAK_TOLERANCE = 1.1
"""Vendors quote peaks below the maximum clock: H100 SXM at 1830 of 1980 MHz."""


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
            "noise is one possible cause."
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
    why = kernels.missing["kernels"]
    return Finding(
        rule="no-kernels",
        severity="problem",
        verdict="No GPU kernel was recorded: the table shows CPU operators.",
        why=f"{why[:1].upper()}{why[1:]}.",
        next="Do not use this table. Stop other profilers, remove other CUDA libraries from "
        "LD_LIBRARY_PATH, and trace again; the timing pass is not affected.",
        numbers={"launches": kernels.coverage.launches},
    )


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
    fuse = phase == "optimizer" and record.spec.get("optimizer") in UNFUSED_UPDATES
    has_graphs = record.spec.get("compile") in ("reduce-overhead", "max-autotune")
    graphs = "" if has_graphs else "--set compile=reduce-overhead (CUDA graphs), or "
    return Finding(
        rule="launch-bound",
        severity="warning",
        verdict=f"CPU-bound: the GPU idles {percent(idle, 0)} of the step waiting for launches"
        f"{where}.",
        why=f"{calls:,.0f} kernels are {busy_ms:.4g} ms of GPU work in a step of {step_ms:.4g} ms"
        f"{issue}. In the trace {percent(late_ns / idle_ns, 0)} of idle time waits for launches.",
        next="Try --set optimizer=adamw-fused: a few launches update all parameters."
        if fuse
        else f"Launch less often: {graphs}a larger batch.",
        numbers={"idle": idle, "busy_ms": busy_ms, "step_ms": step_ms, "late_ms": late_ns / 1e6},
        cost=idle,
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
        "inside synchronizing calls.",
        why=f"For {row.ns / 1e6:.4g} ms of each step the GPU has nothing queued while the CPU is "
        "in such a call.",
        next="Look for .item(), .cpu(), print or a synchronization; read results later.",
        numbers={"share": row.share, "limit": SYNC_LIMIT},
        cost=row.share,
    )


def category_out_of_line(record: Record) -> Finding | None:
    return heavy_category(record.kernels, _remedies(record)) if record.kernels else None


def _remedies(record: Record) -> Mapping[str, str]:
    """What the run's settings leave to change, by category."""
    if record.job is not None:
        return FILE_REMEDIES
    fusing = [
        *(["compile=default"] if record.spec.get("compile") == "off" else []),
        *(["attention=sdpa"] if record.spec.get("attention") == "naive" else []),
    ]
    fuse = f"Fuse them: {' or '.join(fusing)}." if fusing else FIND_THEM
    is_fusable = record.spec.get("optimizer") in UNFUSED_UPDATES
    update = "Fuse them: optimizer=adamw-fused." if is_fusable else FEWER_UPDATES
    return {**FILE_REMEDIES, "optimizer": update, "random": fuse, "": fuse}


def heavy_category(kernels: Kernels, remedies: Mapping[str, str]) -> Finding | None:
    """One category takes far more time than in published profiles of such models."""
    if kernels.lacks_kernels:
        return None
    total_ns = fsum(row.exclusive_ns for row in kernels.categories)
    # A copy by the copy engine is no kernel that a compiler could fuse.
    copied_ns = fsum(row.exclusive_ns for row in kernels.rows if copy_kind(row.name))
    shares = {}
    for name, limit in CATEGORY_LIMITS.items():
        members = name.split(" and ")
        ns = fsum(row.exclusive_ns for row in kernels.categories if row.category in members)
        ns -= copied_ns if len(members) > 1 else 0.0
        share = ns / total_ns if total_ns else 0.0
        if share > limit:
            shares[name] = share
    if not shares:
        return None
    category = max(shares, key=shares.__getitem__)
    share, limit = shares[category], CATEGORY_LIMITS[category]
    rows = [row for row in kernels.rows if row.category in category.split(" and ")]
    top = max(rows, key=lambda row: row.exclusive_ns, default=None)
    return Finding(
        rule="category-out-of-line",
        severity="note",
        verdict=f"{category.capitalize()} ops take {percent(share, 0)} of busy time.",
        why=f"In published profiles of transformers they take about {percent(limit / 2, 0)}."
        + (
            f" Most of it: {short_kernel_name(top.name)} in {shortened(top.module or top.phase)}."
            if top
            else ""
        ),
        next=remedies.get(category, remedies[""]),
        numbers={"category": category, "share": share, "limit": limit},
        cost=share * total_ns / (kernels.step_ms * 1e6) if kernels.step_ms else 0.0,
    )


def heavy_optimizer(record: Record) -> Finding | None:
    """The optimizer takes a large part of the step."""
    timing, spec = record.timing, record.spec
    if timing is None or "optimizer" not in timing.phases or not timing.step.median_ms:
        return None
    phase_ms, step_ms = timing.phases["optimizer"].median_ms, timing.step.median_ms
    share = phase_ms / step_ms
    if share < OPTIMIZER_LIMIT:
        return None
    name = str(spec.get("optimizer"))
    calls = _calls_in(record.kernels, "optimizer")
    least_ms, bound = _least_update_ms(record)
    is_fusable = name in UNFUSED_UPDATES
    gain = (
        f" It takes at least {least_ms:.3g} ms, so it can save up to "
        f"{percent(share - least_ms / step_ms, 0)} of the step."
        if is_fusable and least_ms is not None and least_ms < phase_ms
        else ""
    )
    return Finding(
        rule="heavy-optimizer",
        severity="note",
        verdict=f"The optimizer takes {percent(share, 0)} of the step"
        f"{f': {name} runs {calls}' if calls else ''}.",
        why=f"{phase_ms:.4g} of {step_ms:.4g} ms, whatever the batch.{bound}",
        next=f"Try --set optimizer=adamw-fused.{gain}" if is_fusable else FEWER_UPDATES,
        numbers={
            **{"share": share, "limit": OPTIMIZER_LIMIT},
            **({} if least_ms is None else {"least_ms": least_ms}),
        },
        cost=share,
    )


def _calls_in(kernels: Kernels | None, phase: str) -> str:
    """``4,016 kernels``; empty without a trace of the phase."""
    rows = [row for row in kernels.rows if row.phase == phase] if kernels else []
    if kernels is None or not rows:
        return ""
    noun = "kernels" if kernels.source == "kernels" else "operators"
    return f"{fsum(row.calls for row in rows):,.0f} {noun}"


def _least_update_ms(record: Record) -> tuple[float | None, str]:
    """Milliseconds in which memory moves each operand of the update once, and a sentence.

    Parameters, gradients and state are read; parameters and state are written.
    """
    memory, roof = record.memory, record.timing.roof if record.timing else None
    if memory is None or roof is None or not roof.bandwidth:
        return None, ""
    parameters, state = (
        predicted_amount(memory.columns.get("steady end", memory.ledger), name)
        for name in ("parameters", "optimizer state")
    )
    moved = 3 * parameters + 2 * state
    if not moved:
        return None, ""
    least_ms = moved / roof.bandwidth * 1e3
    return least_ms, (
        f" Parameters, gradients and state are {format_bytes(moved)} to read and write: "
        f"{least_ms:.3g} ms at {roof.bandwidth / 1e9:,.0f} GB/s ({roof.bandwidth_source})."
    )


def _emptiest_phase(kernels: Kernels) -> str:
    idle = {
        phase: ns - fsum(row.exclusive_ns for row in kernels.rows if row.phase == phase)
        for phase, ns in kernels.phases_ns.items()
    }
    return max(idle, key=idle.__getitem__, default="")


def weight_product_count(record: Record) -> Finding | None:
    """A forward must have 7L + 1 matrix products with weights."""
    layers = record.spec.get("layers", 0)
    products = f"7·{layers} + 1 products with weights"
    return _miscounted(record, "gemm-count", products, 7 * layers + 1, of_attention=False)


def attention_product_count(record: Record) -> Finding | None:
    """Unfused attention must have 2L products in forward."""
    spec = record.spec
    if not is_checkable(spec) or attention_named(spec["attention"]).scores != "model":
        return None
    layers = spec["layers"]
    products = f"2·{layers} attention products"
    return _miscounted(record, "attention-count", products, 2 * layers, of_attention=True)


def _miscounted(
    record: Record, rule: str, products: str, expected: int, *, of_attention: bool
) -> Finding | None:
    kernels = record.kernels
    if kernels is None or not is_checkable(record.spec) or "forward" not in kernels.phases_ns:
        return None
    forwards = record.spec.get("accumulation", 1)
    found = forward_products(kernels, of_attention=of_attention) / forwards
    if abs(found - expected) <= COUNT_TOLERANCE:
        return None
    return Finding(
        rule=rule,
        severity="problem",
        verdict=f"A forward needs {products}, the table has {found:.4g}.",
        why=f"Every forward of this model should have {expected} calls. Some were attributed "
        "to another phase or module, or another model ran.",
        next="Do not use percentages of matrix products; check their rows in forward.",
        numbers={"expected": expected, "found": found},
    )


def flops_contradict(record: Record) -> Finding | None:
    """FLOPs counted from shapes must equal the closed form."""
    kernels, prediction = record.kernels, record.prediction
    if kernels is None or not kernels.counted_flops or not prediction:
        return None
    if not is_checkable(record.spec) or "counted_flops" in kernels.missing:
        return None
    counted, expected = kernels.counted_flops.get("forward", 0.0), prediction["forward_flops"]
    if abs(counted / expected - 1) <= FLOPS_TOLERANCE:
        return None
    return Finding(
        rule="flops-contradict",
        severity="problem",
        verdict=f"The shapes in forward give {format_count(counted)}FLOP, the model needs "
        f"{format_count(expected)}FLOP.",
        why=f"Counted / closed form = {counted / expected:.4f}; both count full attention.",
        next="Do not use TFLOP/s or MFU of this run: the model differs from the spec.",
        numbers={"counted": counted, "closed_form": expected},
    )


def precision_contradicted(record: Record) -> Finding | None:
    """Names of matrix product kernels contradict the precision of the spec."""
    kernels = record.kernels
    if kernels is None:
        return None
    precision = str(record.spec["precision"])
    rows = contradicting(kernels, precision)
    if not rows:
        return None
    ns = sum(row.total_ns for row in rows)
    return Finding(
        rule="precision-contradicted",
        severity="problem",
        verdict=f"The precision is {precision}, but kernels of another precision ran.",
        why=f"{rows[0].name[:100]} and {len(rows) - 1} more rows, {ns / 1e6:.4g} ms per step.",
        next="Check NVIDIA_TF32_OVERRIDE and TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in the environment; "
        "report the run under the precision that ran.",
        numbers={"kernel": rows[0].name, "ms": ns / 1e6},
    )


def _step_over_peak(record: Record) -> tuple[float, Roof | None]:
    """The ratio of the step's rate to the peak, 0 if unknown, and the roof with that peak."""
    timing = record.timing
    if timing is None or timing.mfu is None or timing.roof is None:
        return 0.0, None
    is_attention = record.spec.get("workload") == "attention"
    roof = timing.roof.of("attention") if is_attention else timing.roof
    return timing.mfu * timing.roof.peak_flops / roof.upper_flops, roof


def float8_scaling(record: Record) -> Finding | None:
    """Scales and casts of operands take more of converted layers than their products."""
    kernels = record.kernels
    layers = [row.name for row in linear_layers(record.environment) if not row.why_not]
    if kernels is None or not kernels.step_ms or record.spec.get("compile") != "off":
        return None
    precision = precision_named(str(record.spec["precision"]))
    times = [pair for name in layers if (pair := product_and_other_ns(kernels, name))]
    products, others = (fsum(pair[part] for pair in times) for part in (0, 1))
    share = others / kernels.step_ms / 1e6
    if others <= products or share < SCALING_LIMIT:
        return None
    return Finding(
        rule="float8-scaling",
        severity="warning",
        verdict=f"Scales and casts to {precision.format_name} take {percent(share, 0)} of the "
        "step, more than the products that they are for.",
        why=f"In {len(times)} kinds of layers products take {products / 1e6:.3g} ms a step, and "
        f"the kernels around them {others / 1e6:.3g} ms.",
        next="Fuse them: compile=default. Narrow layers gain least; the table linear-layers has "
        "the times of each.",
        numbers={"share": share, "limit": SCALING_LIMIT},
    )


def float8_no_gain(record: Record) -> Finding | None:
    """Converted layers take as long as their products alone would in the dtype of autocast."""
    kernels = record.kernels
    if kernels is None:
        return None
    pairs = {
        each.name: (pair, each.autocast_ns)
        for each in kernels.product_errors
        if each.autocast_ns and (pair := product_and_other_ns(kernels, each.name))
    }
    products, others = (fsum(pair[part] for pair, _ in pairs.values()) for part in (0, 1))
    plain = fsum(ns for _, ns in pairs.values())
    if not pairs or products + others < plain:
        return None
    small = sum(pair[0] >= ns for pair, ns in pairs.values())
    precision = precision_named(str(record.spec["precision"]))
    dtype = precision.autocast_only
    return Finding(
        rule="float8-no-gain",
        severity="warning",
        verdict=f"Linear layers in {precision.format_name} take {(products + others) / 1e6:.3g} ms "
        f"a step; their products alone took {plain / 1e6:.3g} ms in {dtype}.",
        why=f"Of it {products / 1e6:.3g} ms are products, {others / 1e6:.3g} ms scales and casts. "
        f"In {small} of {len(pairs)} kinds of layers the product itself gains nothing. One traced "
        "step and repeated calls: not tested.",
        next=f"`ab last --set-b precision={dtype}` compares the steps. Larger products (batch, "
        "context, width) gain more; compile=default fuses scales and casts.",
        numbers={"float8_ms": (products + others) / 1e6, "autocast_ms": plain / 1e6},
    )


def busy_expert(record: Record) -> Finding | None:
    """The busiest expert of a router gets several times the mean of rows."""
    routers = [] if record.kernels is None else record.kernels.routers
    skewed = [
        load for load in routers if load.imbalance >= MAX_IMBALANCE and load.mean >= MIN_EXPERT_ROWS
    ]
    if not skewed:
        return None
    load = max(skewed, key=lambda load: load.imbalance)
    experts, busiest = len(load.rows_by_expert), max(load.rows_by_expert)
    return Finding(
        rule="busy-expert",
        severity="note",
        verdict=f"One of {experts} experts of {load.module} gets {load.imbalance:.1f} times the "
        "mean of rows.",
        why=f"It gets {busiest:,} rows, the mean is {load.mean:,.0f}, and "
        f"{load.rows_by_expert.count(0)} get none; {len(skewed)} of {len(routers)} routers are "
        f"beyond {MAX_IMBALANCE:g} times. With rows padded to the busiest, "
        f"{percent(load.padding_share, 0)} would be padding.",
        next="Where each expert is on its own device, or padded, the busiest sets the time: "
        "balance the router. Weights and tokens are random here: look again with trained weights "
        "and real text.",
        numbers={"imbalance": load.imbalance, "limit": MAX_IMBALANCE},
    )


def faster_than_peak(record: Record) -> Finding | None:
    """More FLOP/s than the peak of the device: the precision, the time or the peak is wrong."""
    kernels = record.kernels
    ratio, roof = _step_over_peak(record)
    if roof is not None and ratio > 1:
        return _too_fast(record, "The step", ratio, roof)
    if kernels is not None and (rows := above_peak(kernels, PEAK_TOLERANCE)):
        row = rows[0]
        assert kernels.roof is not None
        roof = kernels.roof.of(row.category)
        ratio = (row.flops or 0.0) / row.total_ns * 1e9 / roof.upper_flops
        return _too_fast(record, row.name[:80], ratio, roof)
    return None


def _too_fast(record: Record, subject: str, ratio: float, roof: Roof) -> Finding:
    peak = roof.upper_flops
    return Finding(
        rule="faster-than-peak",
        severity="problem",
        verdict=f"{subject} runs at {ratio:.2f} times the peak of the device.",
        why=f"The peak is {format_count(peak)}FLOP/s for {record.spec.get('precision')}: "
        f"{roof.peak_source}.",
        next="Check the precision that ran, the time, and the peak (--peak corrects it). A kernel "
        "that skips masked attention can exceed it, too: FLOPs count attention in full.",
        numbers={"ratio": ratio, "peak_flops": peak},
    )


RULES = (
    tracing_perturbed,
    no_kernels,
    low_coverage,
    launch_bound,
    idle_on_sync,
    category_out_of_line,
    heavy_optimizer,
    weight_product_count,
    attention_product_count,
    flops_contradict,
    precision_contradicted,
    faster_than_peak,
    float8_scaling,
    float8_no_gain,
    busy_expert,
)
