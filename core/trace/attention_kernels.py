"""Softmax against the two matrix products of attention, and the type of an answer in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import fsum
from typing import TypeAlias

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import format_count, milliseconds
from sysbench.core.record.record import KernelRow, Kernels, Record
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.spec import RunSpec

Numbers: TypeAlias = dict[str, float | int | str]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and a sentence made of numbers.

    ``numbers`` has every figure of the sentence: milliseconds (names in ``_ms``), shares of
    one, counts per step, names. ``rows`` are the names of the kernels they were summed from;
    ``commands`` would measure what is not known yet.
    """

    question: str
    sentence: str
    numbers: Numbers = {}
    rows: list[str] = []
    commands: list[str] = []


def command_for(record: Record, step: str) -> list[str]:
    """The command that traces the same spec with another kind of step, or an empty list."""
    try:
        spec = msgspec.convert(record.spec, RunSpec).changed(step=step)
    except (msgspec.ValidationError, SpecError):
        return []
    return [command_line(spec, ["timing", "trace"])]


ATTENTION = re.compile(r"(attention|attn)(_(\d+|\*))?$", re.IGNORECASE)
"""Modules that compute attention: matches work in them but in no module below."""

WRITTEN_OUT = {f"aten::{name}" for name in ("amax", "max", "sub", "exp", "sum", "div")}
"""Operators of a softmax in single operators; ``div`` scales the scores, too."""

SOFTMAX_OPERATIONS = 5
"""FLOPs of the softmax per score: maximum, difference, exponential, sum, quotient."""

KEYS = ("softmax", "matmul")
QUESTION = "How does softmax compare with attention's matrix products, in time and in FLOPs?"


def softmax_against_matmuls(record: Record, kernels: Kernels, others: Sequence[Record]) -> Answer:
    """Softmax and products in forward; the products' FLOPs from the rows if all have them."""
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
        f"{milliseconds(product_ns / 1e6)}, {ratio:.2g} times the time; {_arithmetic(numbers)}."
    )
    if any(_operator(row) in WRITTEN_OUT for row in softmax):
        sentence += " The softmax is written out; the scaling of the scores is counted with it."
    rows = list(dict.fromkeys(row.name for row in (*softmax, *products)))
    return Answer(question=QUESTION, sentence=sentence, numbers=numbers, rows=rows)


def attention_flops(record: Record, products: Sequence[KernelRow]) -> Numbers:
    """FLOPs of a forward's products and softmax, as dense kernels compute them.

    Closed forms: 4BT²dL for scores and values, 5BhT²L for the softmax.
    """
    spec = record.spec
    scores = spec["batch"] * spec["context"] ** 2 * spec["layers"]
    counted = [row.flops for row in products if row.flops is not None]
    closed_form = 4.0 * scores * spec["d_model"]
    matmul = fsum(counted) if counted and len(counted) == len(products) else closed_form
    softmax = float(SOFTMAX_OPERATIONS * scores * spec["heads"])
    return {"matmul_flops": matmul, "softmax_flops": softmax, "flops_ratio": softmax / matmul}


def is_product(row: KernelRow) -> bool:
    """Whether a row is one of attention's two products, not a projection."""
    batched = "bmm" in row.op or "bmm" in row.name
    return row.category == "gemm" and (batched or ATTENTION.search(row.module) is not None)


def is_softmax(row: KernelRow) -> bool:
    """Whether a row is part of attention's softmax: one kernel, written out, or generated."""
    if row.fused:
        return any("softmax" in op for op in row.ops) or {"exp", "sum"} <= set(row.ops)
    if row.category == "softmax":
        return True
    return _operator(row) in WRITTEN_OUT and ATTENTION.search(row.module) is not None


def _operator(row: KernelRow) -> str:
    return row.op or row.name


def _arithmetic(numbers: Numbers) -> str:
    """The second half of the answer: FLOPs of both, and their ratio."""
    softmax, products = (format_count(float(numbers[f"{key}_flops"])) for key in KEYS)
    ratio = float(numbers["flops_ratio"])
    return (
        f"the softmax's arithmetic is {softmax}FLOP against {products}FLOP, "
        f"{ratio:.2g} times as many"
    )


def _not_separable(fused: Sequence[KernelRow], numbers: Numbers) -> Answer:
    """The answer where one kernel does both, or no row is known to be of either."""
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
