"""What a kernel table of the measured transformer must say, or it is of something else.

A forward has seven products a layer (q, k, v, out, and three of the feed-forward) and the
head's; attention that is written out has two more a layer. A precision shows in the names of
the kernels that multiply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import fsum
from typing import Any

import msgspec

from sysbench.core.record.record import KernelRow, Kernels
from sysbench.core.spec.choices import PRECISIONS, Precision, attention_named, precision_named
from sysbench.core.trace.attention_kernels import is_product

FORWARD = "forward"
WRAPPERS = ("aten::linear", "aten::matmul", "aten::einsum")
"""Operators of the host that multiply by calling another one."""
HELPERS = re.compile(r"split_?k.*reduce|reduce_1block", re.IGNORECASE)
"""Kernels that finish another one's product."""

NAME_PATTERNS = [
    (row, re.compile(row.kernel_names, re.IGNORECASE))
    for row in sorted(PRECISIONS, key=lambda row: row.product_bits)
    if row.peak_key == row.name  # others multiply as one of these does
]
"""In the order of asking: the narrowest first."""
WIDEST_BITS = max(row.product_bits for row in PRECISIONS)

MAJORITY = 0.5
"""Part of the time of matrix products from which an unlikely kernel is a contradiction: a
library may take another kernel for a small or odd shape."""


class Expected(msgspec.Struct, frozen=True):
    """A number of calls per forward, and what was found."""

    expected: int
    found: float


def is_checkable(spec: dict[str, Any]) -> bool:
    """Whether the counts hold: the transformer, eager. Compilers merge and replace products;
    those of flex attention are no operators.
    """
    return bool(
        spec.get("workload", "transformer") == "transformer"
        and spec.get("compile") == "off"
        and not attention_named(spec["attention"]).compiles
    )


def weight_products(kernels: Kernels, layers: int) -> Expected:
    """Products with weights: 7L + 1."""
    rows = [row for row in _products(kernels) if not is_product(row)]
    return Expected(7 * layers + 1, fsum(row.calls for row in rows))


def attention_products(kernels: Kernels, layers: int) -> Expected:
    """Products of written-out attention: 2L."""
    rows = [row for row in _products(kernels) if is_product(row)]
    return Expected(2 * layers, fsum(row.calls for row in rows))


def _products(kernels: Kernels) -> list[KernelRow]:
    return [
        row
        for row in kernels.rows
        if row.phase == FORWARD
        and row.category == "gemm"
        and row.name not in WRAPPERS
        and not HELPERS.search(row.name)
    ]


def contradicting(kernels: Kernels, precision: str) -> list[KernelRow]:
    """Rows of matrix products whose names say another precision than the spec; longest first.

    In ``fp32`` a single one that rounds is enough. In the others wider kernels count, when they
    have most of the time: plain float32 ones, and in the halves TF32 ones.

    Raises:
        SpecError: No such precision.
    """
    if kernels.source != "kernels":
        return []
    rows = [row for row in kernels.rows if row.category == "gemm"]
    named = [(row, shown) for row in rows if (shown := precision_shown(row.name))]
    bits = precision_named(precision).product_bits
    if bits == WIDEST_BITS:
        return _longest_first([row for row, shown in named if shown.product_bits < bits])
    unlikely = [row for row, shown in named if shown.product_bits > bits]
    whole_ns, unlikely_ns = (fsum(row.total_ns for row in some) for some in (rows, unlikely))
    return _longest_first(unlikely) if unlikely_ns > MAJORITY * whole_ns else []


def precision_from_kernel_names(kernels: Kernels) -> Precision | None:
    """The precision of a trace whose spec is not known: what the names of its kernels say of
    most of the time of matrix products; None where they do not."""
    shown_ns: dict[Precision | None, float] = {}
    products = [row for row in kernels.rows if row.category == "gemm"]
    for row in products:
        shown = precision_shown(row.name)
        shown_ns[shown] = shown_ns.get(shown, 0.0) + row.total_ns
    longest = max(shown_ns, key=shown_ns.__getitem__, default=None)
    most = MAJORITY * fsum(row.total_ns for row in products)
    return longest if longest and shown_ns[longest] > most else None


def precision_shown(name: str) -> Precision | None:
    """The precision in which a kernel of that name multiplies; None where the name is silent."""
    return next((row for row, pattern in NAME_PATTERNS if pattern.search(name)), None)


def _longest_first(rows: Sequence[KernelRow]) -> list[KernelRow]:
    return sorted(rows, key=lambda row: -row.total_ns)


def above_peak(kernels: Kernels, limit: float) -> list[KernelRow]:
    """Rows of matrix products faster than the device's upper FLOP/s times the limit, fastest
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
