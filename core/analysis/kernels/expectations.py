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

from ...record.record import KernelRow, Kernels
from .attention import is_product

FORWARD = "forward"
WRAPPERS = ("aten::linear", "aten::matmul", "aten::einsum")
"""Operators of the host that multiply by calling another one."""
HELPERS = re.compile(r"split_?k.*reduce|reduce_1block", re.IGNORECASE)
"""Kernels that finish another one's product."""

HALF = re.compile(
    r"b?f(?:p|loat)?16|half|hgemm|[hs](?:884|16816)|h1688|nvjet_(?:sm\d+_)?[ht]s", re.IGNORECASE
)
TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
PLAIN = re.compile(r"sgemm|ffma|simt", re.IGNORECASE)
SAYS = (("half", HALF), ("tf32", TF32), ("plain", PLAIN))
"""What names of kernels tell, in the order of asking: ``s1688`` is of halves where they are
named, and ``ffma`` stands in the names of some TF32 kernels."""
TOLD = {"tf32": "tf32", "plain": "fp32"}
BRAIN = re.compile(r"bf(?:loat)?16|nvjet_(?:sm\d+_)?ts", re.IGNORECASE)
"""Tells which of the halves."""

MOST = 0.5
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
        and spec.get("attention") != "flex"
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

    In ``fp32`` a single one that rounds is enough. In the others plain float32 kernels, and
    in the halves TF32 ones, count when they have most of the time.
    """
    if kernels.source != "kernels":
        return []
    rows = [row for row in kernels.rows if row.category == "gemm"]
    rounding = [row for row in rows if _says(row.name) in ("tf32", "half")]
    if precision == "fp32":
        return _longest_first(rounding)
    wider = ("plain",) if precision == "tf32" else ("plain", "tf32")
    unlikely = [row for row in rows if _says(row.name) in wider]
    whole_ns, unlikely_ns = (fsum(row.total_ns for row in some) for some in (rows, unlikely))
    return _longest_first(unlikely) if unlikely_ns > MOST * whole_ns else []


def told_precision(kernels: Kernels) -> str | None:
    """The precision of a trace whose spec is not known: what the names of its kernels say of
    most of the time of matrix products; None where they do not."""
    told: dict[str, float] = {}
    products = [row for row in kernels.rows if row.category == "gemm"]
    for row in products:
        word = _says(row.name)
        precision = TOLD.get(word, "bf16" if BRAIN.search(row.name) else "fp16") if word else ""
        told[precision] = told.get(precision, 0.0) + row.total_ns
    longest = max(told, key=told.__getitem__, default="")
    most = MOST * fsum(row.total_ns for row in products)
    return longest if longest and told[longest] > most else None


def _says(name: str) -> str:
    """What a kernel's name says of its precision: a word of `SAYS`, or nothing."""
    return next((word for word, pattern in SAYS if pattern.search(name)), "")


def _longest_first(rows: Sequence[KernelRow]) -> list[KernelRow]:
    return sorted(rows, key=lambda row: -row.total_ns)


def above_peak(kernels: Kernels, limit: float) -> list[KernelRow]:
    """Rows of matrix products that are faster than the peak times the limit, fastest first."""
    roof = kernels.roof
    if roof is None:
        return []
    rates = {
        index: row.flops / row.total_ns * 1e9 / roof.peak_flops
        for index, row in enumerate(kernels.rows)
        if row.flops and row.total_ns and row.category in ("gemm", "attention")
    }
    fast = [index for index, rate in rates.items() if rate > limit]
    return [kernels.rows[index] for index in sorted(fast, key=rates.__getitem__, reverse=True)]
