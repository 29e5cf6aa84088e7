"""Compare softmax with the matrix products of attention; check products against the spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import fsum
from typing import Any, TypeAlias

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import format_count, milliseconds
from sysbench.core.record.record import KernelRow, Kernels, Record
from sysbench.core.spec.choices import PRECISIONS, Precision, attention_named, precision_named
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.spec import RunSpec

Numbers: TypeAlias = dict[str, float | int | str]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A question and its answer.

    ``numbers`` has every figure of the sentence: milliseconds (``_ms``), shares, counts per step,
    names. ``rows`` are the names of the summed kernels; ``commands`` measure what is missing.
    """

    question: str
    sentence: str
    numbers: Numbers = {}
    rows: list[str] = []
    commands: list[str] = []


def command_for(record: Record, step: str) -> list[str]:
    """Return the command that traces the same spec with another kind of step, or an empty list."""
    try:
        spec = msgspec.convert(record.spec, RunSpec).changed(step=step)
    except (msgspec.ValidationError, SpecError):
        return []
    return [command_line(spec, ["timing", "trace"])]


ATTENTION = re.compile(r"(attention|attn)(_(\d+|\*))?$", re.IGNORECASE)
"""Modules that compute attention; work in their submodules does not match."""

WRITTEN_OUT = {f"aten::{name}" for name in ("amax", "max", "sub", "exp", "sum", "div")}
"""Operators of an unfused softmax; ``div`` also scales the scores."""

SOFTMAX_OPERATIONS = 5
"""FLOPs of the softmax per score: maximum, difference, exponential, sum, quotient."""

KEYS = ("softmax", "matmul")
QUESTION = "How does softmax compare with attention's matrix products, in time and in FLOPs?"


def softmax_against_matmuls(record: Record, kernels: Kernels, others: Sequence[Record]) -> Answer:
    """Compare softmax and products in forward; FLOPs come from the rows if all have them."""
    forward = [row for row in kernels.rows if row.phase == "forward"]
    products = [row for row in forward if is_product(row)]
    softmax = [row for row in forward if is_softmax(row)]
    fused = [row for row in forward if row.category == "attention"]
    numbers = attention_flops(record, products)
    if not products or not softmax:
        return _not_separable(fused, numbers)
    softmax_ns = fsum(row.exclusive_ns for row in softmax)
    product_ns = fsum(row.exclusive_ns for row in products)
    ratio = softmax_ns / product_ns if product_ns else 0.0
    numbers |= {
        "softmax_ms": softmax_ns / 1e6,
        "matmul_ms": product_ns / 1e6,
        "time_ratio": ratio,
    }
    sentence = (
        f"In forward softmax takes {milliseconds(softmax_ns / 1e6)} and the matrix products "
        f"{milliseconds(product_ns / 1e6)}, a ratio of {ratio:.2g}; {_arithmetic(numbers)}."
    )
    if any(_operator(row) in WRITTEN_OUT for row in softmax):
        sentence += " The softmax is not fused; its time includes the scaling of the scores."
    rows = list(dict.fromkeys(row.name for row in (*softmax, *products)))
    return Answer(question=QUESTION, sentence=sentence, numbers=numbers, rows=rows)


def attention_flops(record: Record, products: Sequence[KernelRow]) -> Numbers:
    """Return the FLOPs of a forward's products and softmax, as dense kernels compute them.

    Closed forms: 4BT²dL for scores and values, 5BhT²L for the softmax.
    """
    spec = record.spec
    sequences = spec["batch"] * spec.get("accumulation", 1)
    scores = sequences * spec["context"] ** 2 * spec["layers"]
    counted = [row.flops for row in products if row.flops is not None]
    closed_form = 4.0 * scores * spec["d_model"]
    matmul = fsum(counted) if counted and len(counted) == len(products) else closed_form
    softmax = float(SOFTMAX_OPERATIONS * scores * spec["heads"])
    return {"matmul_flops": matmul, "softmax_flops": softmax, "flops_ratio": softmax / matmul}


def is_product(row: KernelRow) -> bool:
    batched = "bmm" in row.op or "bmm" in row.name
    return row.category == "gemm" and (batched or ATTENTION.search(row.module) is not None)


def is_softmax(row: KernelRow) -> bool:
    """Return whether a row is part of attention's softmax: one kernel, unfused, or generated."""
    if row.fused:
        return any("softmax" in op for op in row.ops) or {"exp", "sum"} <= set(row.ops)
    if row.category == "softmax":
        return True
    return _operator(row) in WRITTEN_OUT and ATTENTION.search(row.module) is not None


def _operator(row: KernelRow) -> str:
    return row.op or row.name


def _arithmetic(numbers: Numbers) -> str:
    softmax, products = (format_count(float(numbers[f"{key}_flops"])) for key in KEYS)
    ratio = float(numbers["flops_ratio"])
    return f"softmax has {softmax}FLOP, the products have {products}FLOP, a ratio of {ratio:.2g}"


def _not_separable(fused: Sequence[KernelRow], numbers: Numbers) -> Answer:
    arithmetic = _arithmetic(numbers)
    if not fused:
        sentence = f"The trace does not distinguish softmax from products; {arithmetic}."
        return Answer(question=QUESTION, sentence=sentence, numbers=numbers)
    fused_ns = fsum(row.exclusive_ns for row in fused)
    return Answer(
        question=QUESTION,
        sentence=f"One fused kernel does softmax and products, in {milliseconds(fused_ns / 1e6)} "
        f"of forward; {arithmetic}.",
        numbers=numbers | {"fused_ms": fused_ns / 1e6},
        rows=list(dict.fromkeys(row.name for row in fused)),
    )


FORWARD = "forward"
WRAPPERS = ("aten::linear", "aten::matmul", "aten::einsum")
"""Host operators that multiply by calling another operator."""
HELPERS = re.compile(r"split_?k.*reduce|reduce_1block", re.IGNORECASE)
"""Kernels that finish the product of another kernel."""

_FIRST_OF_PEAK = {row.peak_key: row for row in reversed(PRECISIONS)}.values()
NAME_PATTERNS = [
    (row, re.compile(row.kernel_names, re.IGNORECASE))
    for row in sorted(_FIRST_OF_PEAK, key=lambda row: row.product_bits)
]
"""Of precisions with one peak the first row; narrowest precision first."""
WIDEST_BITS = max(row.product_bits for row in PRECISIONS)

MAJORITY = 0.5
"""Share of the time of matrix products above which a wider kernel contradicts the spec: a library
may use another kernel for a small or odd shape."""


def is_checkable(spec: dict[str, Any]) -> bool:
    """Return whether the counts apply: an eager transformer.

    Compilers merge and replace products; flex attention launches no operators for its products.
    """
    return bool(
        spec.get("workload", "transformer") == "transformer"
        and spec.get("compile") == "off"
        and not attention_named(spec["attention"]).compiles
    )


def forward_products(kernels: Kernels, *, of_attention: bool) -> float:
    """Count matrix products in forward, of attention or with weights."""
    return fsum(
        row.calls
        for row in kernels.rows
        if row.phase == FORWARD
        and row.category == "gemm"
        and row.name not in WRAPPERS
        and not HELPERS.search(row.name)
        and is_product(row) == of_attention
    )


def product_and_other_ns(kernels: Kernels, module: str) -> tuple[float, float] | None:
    """Return the exclusive time of a module's own matrix products and of its other rows, or None
    if it has no row."""
    rows = [row for row in kernels.rows if row.module == module]
    products = fsum(row.exclusive_ns for row in rows if row.category == "gemm")
    return (products, fsum(row.exclusive_ns for row in rows) - products) if rows else None


def contradicting(kernels: Kernels, precision: str) -> list[KernelRow]:
    """Return rows of matrix products whose names contradict the precision, longest first.

    In ``fp32`` one kernel of lower precision is enough. Otherwise wider kernels count if they take
    most of the time: float32, and TF32 for the 16-bit precisions.
    """
    if kernels.source != "kernels":
        return []
    rows = [row for row in kernels.rows if row.category == "gemm"]
    named = [(row, shown) for row in rows if (shown := precision_shown(row.name))]
    asked = precision_named(precision)
    # Layers that are not converted multiply in the dtype of autocast, or of the weights.
    bits = 8 * asked.compute_bytes if asked.recipe else asked.product_bits
    if bits == WIDEST_BITS:
        return _longest_first([row for row, shown in named if shown.product_bits < bits])
    unlikely = [row for row, shown in named if shown.product_bits > bits]
    whole_ns, unlikely_ns = (fsum(row.total_ns for row in some) for some in (rows, unlikely))
    return _longest_first(unlikely) if unlikely_ns > MAJORITY * whole_ns else []


def precision_from_kernel_names(kernels: Kernels) -> Precision | None:
    """Infer the precision from the kernels that take most of the time of matrix products, or
    None."""
    shown_ns: dict[Precision | None, float] = {}
    products = [row for row in kernels.rows if row.category == "gemm"]
    for row in products:
        shown = precision_shown(row.name)
        shown_ns[shown] = shown_ns.get(shown, 0.0) + row.total_ns
    longest = max(shown_ns, key=shown_ns.__getitem__, default=None)
    most = MAJORITY * fsum(row.total_ns for row in products)
    return longest if longest and shown_ns[longest] > most else None


def precision_shown(name: str) -> Precision | None:
    """Return the precision in which a kernel of that name multiplies, or None."""
    return next((row for row, pattern in NAME_PATTERNS if pattern.search(name)), None)


def _longest_first(rows: Sequence[KernelRow]) -> list[KernelRow]:
    return sorted(rows, key=lambda row: -row.total_ns)


def above_peak(kernels: Kernels, limit: float) -> list[KernelRow]:
    """Return rows of matrix products faster than the upper FLOP/s times the limit, fastest
    first."""
    roof = kernels.roof
    if roof is None:
        return []
    rates = {
        index: row.flops / row.total_ns * 1e9 / roof.of(row.category).upper_flops
        for index, row in enumerate(kernels.rows)
        if row.flops and row.total_ns and row.category in ("gemm", "attention")
    }
    fast = [index for index, rate in rates.items() if rate > limit]
    return [kernels.rows[index] for index in sorted(fast, key=rates.__getitem__, reverse=True)]
