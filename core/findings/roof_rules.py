"""Rules on contradictions: counts or precision differ from the spec, rates above the peak."""

from __future__ import annotations

from sysbench.core.formatting import format_count
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import Finding, Record
from sysbench.core.spec.choices import attention_named
from sysbench.core.trace.attention_kernels import (
    above_peak,
    contradicting,
    forward_products,
    is_checkable,
)

COUNT_TOLERANCE = 0.01
"""Calls; counts are means over the traced steps."""
FLOPS_TOLERANCE = 1e-6
PEAK_TOLERANCE = 1.1
"""Vendors quote peaks below the maximum clock: H100 SXM at 1830 of 1980 MHz."""


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
    found = forward_products(kernels, of_attention=of_attention)
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
        next="One of these is wrong: the precision that ran, the peak, or the time. "
        "Correct the peak with --peak.",
        numbers={"ratio": ratio, "peak_flops": peak},
    )


RULES = (
    weight_product_count,
    attention_product_count,
    flops_contradict,
    precision_contradicted,
    faster_than_peak,
)
