"""Rules on the operators of traced steps, by the shapes and types of their tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from math import fsum

from sysbench.core.formatting import counted, format_bytes, percent
from sysbench.core.record.record import Finding, Kernels
from sysbench.core.record.steps import TracedOperator
from sysbench.core.trace.module_tree import group_by, sum_by

MIN_SHARE = 0.05
"""Share of the traced steps, or of the device's busy time, above which a rule speaks."""
MAX_CAST_SHARE = 0.10
MIN_KEYS = 32
"""Least keys of an attention whose scores are worth fusing."""
MIN_CLASSES = 1024
MIN_CALLS, MAX_SKEW, MIN_EXPERT_SHARE = 4, 3.0, 0.03
"""Products with weights of one shape in a step, the rows of the largest over their mean, and the
share of these products in forward alone."""
ITEM_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2}
PLAIN = {"float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::linear", "aten::_grouped_mm")


def _operators(kernels: Kernels) -> list[TracedOperator]:
    return kernels.host.operators if kernels.host is not None else []


def _share(kernels: Kernels, rows: Iterable[TracedOperator]) -> float:
    """Share of the steps, or of the time in which the device is busy."""
    of_device = kernels.source == "kernels"
    whole_ns = (kernels.busy_ns if of_device else kernels.step_ms * 1e6) * kernels.steps
    return fsum(row.own_ns for row in rows) / whole_ns if whole_ns else 0.0


def _whole(kernels: Kernels) -> str:
    return "of the GPU's busy time" if kernels.source == "kernels" else "of the traced steps"


def _cost(kernels: Kernels, share: float) -> float:
    """Return a share of `_whole` as one of the step."""
    of_device = kernels.source == "kernels"
    return share * kernels.busy_ns / (kernels.step_ms * 1e6) if of_device else share


def _is_cast(row: TracedOperator) -> bool:
    return (
        row.name == "aten::copy_"
        and len(row.types) == 2
        and row.types[0] != row.types[1]
        and set(row.types) <= set(ITEM_BYTES)
    )


def _place(rows: Iterable[TracedOperator]) -> str:
    """Return `` Most of it in NAME.``, of the function in which most time was launched."""
    longest = next(iter(sum_by((row.function, row.own_ns) for row in rows)), "")
    return f" Most of it is launched in {longest}." if longest else ""


def _logits(kernels: Kernels) -> TracedOperator | None:
    """The largest input of a softmax over classes that is in single precision."""
    rows = [
        row
        for row in _operators(kernels)
        if row.name == "aten::_log_softmax"
        and row.types[:1] == ["float"]
        and row.shapes[0][-1:] >= [MIN_CLASSES]
    ]
    return max(rows, key=lambda row: math.prod(row.shapes[0]), default=None)


def _logit_casts(kernels: Kernels) -> list[TracedOperator]:
    logits = _logits(kernels)
    elements = math.prod(logits.shapes[0]) if logits is not None else -1
    rows = [row for row in _operators(kernels) if _is_cast(row)]
    return [row for row in rows if math.prod(row.shapes[0]) == elements]


def wide_logits(kernels: Kernels) -> Finding | None:
    """Logits of a narrow type are copied to single precision."""
    casts, logits = _logit_casts(kernels), _logits(kernels)
    if logits is None or not casts:
        return None
    elements = math.prod(logits.shapes[0])
    around = [
        row
        for row in _operators(kernels)
        if any(math.prod(shape) == elements for shape in row.shapes) and row.types[0] == "float"
    ]
    share = _share(kernels, {id(row): row for row in (*casts, *around)}.values())
    if share < MIN_SHARE:
        return None
    rows, classes = elements // logits.shapes[0][-1], logits.shapes[0][-1]
    narrow = next(PLAIN[kind] for row in casts for kind in row.types if kind != "float")
    return Finding(
        rule="fp32-logits",
        severity="warning",
        verdict=f"Logits in fp32 take {percent(share, 0)} {_whole(kernels)}: "
        f"{rows:,} x {classes:,}, {format_bytes(4 * elements)} each time they are written.",
        why=f"The model returns {narrow}; the cast, the loss and its gradient move "
        f"the wide copy.{_place(casts)}",
        next="Leave out .float() before the loss, or compute head and loss over parts of the "
        "tokens (a loop over chunks under checkpointing, or a fused linear cross-entropy).",
        numbers={"share": share, "limit": MIN_SHARE, "bytes": 4 * elements},
        cost=_cost(kernels, share),
    )


def casts(kernels: Kernels) -> Finding | None:
    """Tensors go back and forth between two types."""
    known = {id(row) for row in _logit_casts(kernels)}
    rows = [row for row in _operators(kernels) if _is_cast(row) and id(row) not in known]
    share = _share(kernels, rows)
    if share < MAX_CAST_SHARE:
        return None
    main = max(rows, key=lambda row: row.own_ns)
    kinds = " to ".join(PLAIN[kind] for kind in reversed(main.types))
    calls = sum(row.calls for row in rows) / kernels.steps
    return Finding(
        rule="casts",
        severity="warning",
        verdict=f"Casts between types take {percent(share, 0)} {_whole(kernels)}.",
        why=f"{calls:,.0f} casts a step, the longest from {kinds} of "
        f"{format_bytes(ITEM_BYTES[main.types[0]] * math.prod(main.shapes[0]))}.{_place(rows)}",
        next="Keep activations in one type: use torch.autocast around the whole forward, and no "
        ".float() or .to(dtype) inside of it.",
        numbers={"share": share, "limit": MAX_CAST_SHARE},
        cost=_cost(kernels, share),
    )


def unfused_attention(kernels: Kernels) -> Finding | None:
    """Attention writes its scores, one for each pair of tokens."""
    scores = {
        tuple(row.shapes[0])
        for row in _operators(kernels)
        if row.name == "aten::_softmax" and row.shapes and len(row.shapes[0]) >= 3
    }
    keys = {shape[-2:] for shape in scores if shape[-1] >= MIN_KEYS and shape[-2] >= MIN_KEYS}
    rows = [
        row
        for row in _operators(kernels)
        if any(len(shape) >= 3 and tuple(shape[-2:]) in keys for shape in row.shapes)
    ]
    share = _share(kernels, rows)
    if not keys or share < MIN_SHARE:
        return None
    largest = max(scores, key=math.prod)
    return Finding(
        rule="unfused-attention",
        severity="warning",
        verdict=f"Attention that writes its scores takes {percent(share, 0)} {_whole(kernels)}.",
        why=f"Operators on scores of {' x '.join(map(str, largest))}, "
        f"{counted(sum(row.calls for row in rows) // kernels.steps, 'call')} a step."
        f"{_place(rows)}",
        next="Use torch.nn.functional.scaled_dot_product_attention; is_causal=True replaces a "
        "causal mask.",
        numbers={"share": share, "limit": MIN_SHARE},
        cost=_cost(kernels, share),
    )


def _skew(rows: list[TracedOperator], steps: int) -> float:
    """Return the rows of the largest product over their mean; 0 of few products a step."""
    calls = sum(row.calls for row in rows)
    mean = sum(row.calls * row.shapes[-2][0] for row in rows) / calls
    few = calls < MIN_CALLS * steps or not mean
    return 0.0 if few else max(row.shapes[-2][0] for row in rows) / mean


def skewed_experts(kernels: Kernels) -> Finding | None:
    """Of products with equal weights one gets most of the rows."""
    products = [
        row
        for row in _operators(kernels)
        if row.name in PRODUCTS
        and not row.in_backward
        and len(row.shapes) >= 2
        and len(row.shapes[-2]) == 2
    ]
    groups = group_by(products, lambda row: (row.name, row.function, *row.shapes[-1]))
    skewed = [rows for rows in groups.values() if _skew(rows, kernels.steps) >= MAX_SKEW]
    share = _share(kernels, (row for rows in skewed for row in rows))
    if share < MIN_EXPERT_SHARE:
        return None
    rows = max(skewed, key=lambda rows: _share(kernels, rows))
    skew = _skew(rows, kernels.steps)
    per_step = sum(row.calls for row in rows) / kernels.steps
    most = max(row.shapes[-2][0] for row in rows)
    weights = " x ".join(map(str, rows[0].shapes[-1]))
    return Finding(
        rule="skewed-experts",
        severity="warning",
        verdict=f"One of {per_step:,.0f} products with weights of {weights} gets {skew:.1f} times "
        f"the mean of tokens; all of forward take {percent(share, 0)} {_whole(kernels)}.",
        why=f"The largest has {most:,} tokens, others down to "
        f"{min(row.shapes[-2][0] for row in rows):,}: if they are experts, the load is unequal."
        f"{_place(rows)}",
        next="For experts, add a loss that balances the router (auxiliary load balancing), or a "
        "bias for each expert, and see how many tokens each gets.",
        numbers={"skew": skew, "share": share, "limit": MAX_SKEW},
        cost=_cost(kernels, share),
    )


RULES: tuple[Callable[[Kernels], Finding | None], ...] = (
    wide_logits,
    casts,
    unfused_attention,
    skewed_experts,
)
