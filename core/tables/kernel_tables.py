"""Tables of a traced step: kernels, categories, idle time, roofline, answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from sysbench.core.formatting import format_count
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import KernelRow, Kernels, Record
from sysbench.core.tables.table import (
    Cell,
    Column,
    Table,
    field_of,
    fields_of,
    folded,
    tabulate,
    with_total,
)
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.idle_causes import idle_label
from sysbench.core.trace.module_tree import known_sum, mean_of_roof
from sysbench.core.trace.roofline import RoofPoint, roof_points

ADDITIVE = ("exclusive_ns", "share", "calls")


def noun(kernels: Kernels) -> str:
    """The word for a row: a kernel of the device, or an operator of the host."""
    return "kernel" if kernels.source == "kernels" else "operator"


def averaged(kernels: Kernels) -> str:
    """``, mean of 3 steps``; nothing where one step was traced."""
    return f", mean of {kernels.steps} steps" if kernels.steps > 1 else ""


def windowed(kernels: Kernels) -> str:
    """The words for the sum of the rows."""
    return "one traced step" if kernels.whole == "step" else "traced span"


KERNEL_COLUMNS: tuple[Column[KernelRow], ...] = (
    field_of(KernelRow, "exclusive_ns", priority=1),
    field_of(KernelRow, "share", priority=2),
    field_of(KernelRow, "calls", priority=6),
    field_of(KernelRow, "mean_ns", priority=9),
    field_of(KernelRow, "category", priority=3),
    field_of(KernelRow, "fused", in_detail=True),
    field_of(KernelRow, "phase", priority=7),
    field_of(KernelRow, "name", priority=4, is_flexible=True),
    field_of(KernelRow, "module", priority=5),
    field_of(KernelRow, "op", priority=8),
    field_of(KernelRow, "total_ns", priority=12),
    field_of(KernelRow, "min_ns", priority=10),
    field_of(KernelRow, "max_ns", priority=11),
    field_of(KernelRow, "of_roof", priority=9),
    field_of(KernelRow, "flops", priority=14),
    field_of(KernelRow, "moved_bytes", priority=15),
    Column("ops", lambda row: ", ".join(row.ops) or None, in_detail=True),
)
"""The kernel table: one row here is one column, null in rows of time without work."""


def kernel_table(kernels: Kernels) -> Table:
    """All rows, longest first, then idle and unattributed time: shares sum to one."""
    return tabulate(
        sorted(kernels.rows, key=lambda row: -row.exclusive_ns),
        KERNEL_COLUMNS,
        name="kernels",
        title=f"{noun(kernels).capitalize()}s: {windowed(kernels)} of {kernels.step_ms:.2f} ms"
        f"{averaged(kernels)}",
        further=_not_running(kernels),
    )


def _not_running(kernels: Kernels) -> Iterator[dict[str, Cell]]:
    """The rest of the step: idle time by cause, and unattributed time."""
    for idle in kernels.idle:
        yield {
            "exclusive_ns": idle.ns,
            "share": idle.share,
            "category": "idle",
            "name": f"idle: {idle_label(idle.cause)}",
        }
    unattributed = kernels.unattributed_ns
    yield {
        "exclusive_ns": unattributed,
        "share": unattributed / (kernels.step_ms * 1e6) if kernels.step_ms else 0.0,
        "category": "unattributed",
        "name": "unattributed",
    }


def top_kernels(kernels: Kernels, keep: int, *, placed: bool = False) -> Table:
    """The ``keep`` names that take longest, over all modules; the others as one row; idle and
    unattributed time; and the step, the sum of all.

    Args:
        kernels: The table.
        keep: Rows of names.
        placed: Name the operator and the module in which each took longest, and how many more.
    """
    by_name = group_by_name(kernels, placed=placed)
    table = kernel_table(by_name)
    count = len(by_name.rows)
    running = msgspec.structs.replace(table, rows=table.rows[:count])
    rows = folded(running, keep, "name", ADDITIVE).rows + table.rows[count:]
    return with_total(msgspec.structs.replace(table, rows=rows), "name", kernels.whole, ADDITIVE)


def group_by_name(kernels: Kernels, *, placed: bool = True) -> Kernels:
    """The kernels with one row for each name, category and phase, over all modules.

    Args:
        kernels: The table.
        placed: Name the operator and the module in which each took longest, and how many more;
            else both are empty.
    """
    groups: dict[tuple[str, str, str], list[KernelRow]] = defaultdict(list)
    for row in kernels.rows:
        groups[row.name, row.category, row.phase].append(row)
    rows = [_merged(group, placed=placed) for group in groups.values()]
    return msgspec.structs.replace(kernels, rows=rows)


def _longest(group: Sequence[KernelRow], of: Callable[[KernelRow], str]) -> str:
    """Where a kernel took longest: ``blocks.*.attention +2``."""
    times: defaultdict[str, float] = defaultdict(float)
    for row in group:
        if of(row):
            times[of(row)] += row.exclusive_ns
    first = max(times, key=times.__getitem__, default="")
    return f"{first} +{len(times) - 1}" if len(times) > 1 else first


def _merged(group: Sequence[KernelRow], *, placed: bool) -> KernelRow:
    calls = sum(row.calls for row in group)
    total_ns = sum(row.total_ns for row in group)
    return msgspec.structs.replace(
        group[0],
        module=_longest(group, attrgetter("module")) if placed else "",
        op=_longest(group, attrgetter("op")) if placed else "",
        calls=calls,
        total_ns=total_ns,
        exclusive_ns=sum(row.exclusive_ns for row in group),
        mean_ns=total_ns / calls if calls else 0.0,
        min_ns=min(row.min_ns for row in group),
        max_ns=max(row.max_ns for row in group),
        share=sum(row.share for row in group),
        of_roof=mean_of_roof(group),
        flops=known_sum(row.flops for row in group),
        moved_bytes=known_sum(row.moved_bytes for row in group),
    )


def category_table(kernels: Kernels) -> Table:
    """Categories by phase, longest first, with idle and unattributed time."""
    phases = list(dict.fromkeys([*kernels.phases_ns, *(row.phase for row in kernels.categories)]))
    by_phase: dict[str, dict[str, float]] = defaultdict(dict)
    calls: dict[str, float] = defaultdict(float)
    for row in kernels.categories:
        amounts = by_phase[row.category]
        amounts[row.phase] = amounts.get(row.phase, 0.0) + row.exclusive_ns
        calls[row.category] += row.calls
    totals = {category: sum(amounts.values()) for category, amounts in by_phase.items()}
    step_ns = kernels.step_ms * 1e6 or 1.0
    rest = {"idle": sum(idle.ns for idle in kernels.idle), "unattributed": kernels.unattributed_ns}

    def phase_column(phase: str) -> Column[str]:
        return Column(f"{phase}_ns", lambda category: by_phase[category].get(phase))

    return tabulate(
        sorted(totals, key=lambda category: -totals[category]),
        (
            Column("category", lambda category: category),
            Column("exclusive_ns", lambda category: totals[category]),
            Column("share", lambda category: totals[category] / step_ns),
            Column("calls", lambda category: calls[category]),
            *map(phase_column, phases),
        ),
        name="categories",
        title=f"Categories of the traced {kernels.whole}, {kernels.step_ms:.2f} ms",
        further=[
            {"category": name, "exclusive_ns": ns, "share": ns / step_ns}
            for name, ns in rest.items()
        ],
    )


QUESTION_COLUMNS: tuple[Column[Answer], ...] = (
    Column("question", lambda answer: answer.question),
    Column("answer", lambda answer: answer.sentence),
    Column("missing", lambda answer: "; ".join(answer.commands)),
)


def question_table(answers: Sequence[Answer]) -> Table:
    """One row a question; ``missing`` has the commands that would measure absent values."""
    return tabulate(
        answers,
        QUESTION_COLUMNS,
        name="questions",
        title="Questions of the write-ups, answered from the rows",
    )


CONVENTION = "bytes: every input and output of an operator once"


def roof_words(roof: Roof | None, reason: str = "") -> str:
    """The two ceilings and their sources, or the reason for their absence."""
    if roof is None:
        return f"no roof: {reason}" if reason else "no roof"
    precision = f" {roof.precision}" if roof.precision else ""
    peak = f"{format_count(roof.peak_flops)}FLOP/s{precision} ({roof.peak_source})"
    if roof.bandwidth is None or roof.ridge is None:
        return f"{peak}, bandwidth not known"
    return (
        f"{peak}, {format_count(roof.bandwidth)}B/s ({roof.bandwidth_source}), "
        f"ridge at {roof.ridge:.4g} FLOP/byte"
    )


ROOFLINE_COLUMNS: tuple[Column[RoofPoint], ...] = (
    Column("group", lambda point: point.label),
    Column("phase", lambda point: point.phase),
    Column("total_ns", lambda point: point.ns),
    Column("share", lambda point: point.share),
    Column("intensity", lambda point: point.intensity, heading="FLOP/byte"),
    Column("tflops", lambda point: point.flops_per_second / 1e12),
    Column("gigabytes_per_second", lambda point: point.bytes_per_second / 1e9),
    *fields_of(RoofPoint, "of_roof", "bound", "flops", "moved_bytes"),
    Column("known_share", lambda point: point.known),
)


def roofline_table(kernels: Kernels) -> Table:
    """Groups of work by phase, the longest first: the points of the roofline plot.

    ``known_share`` is the part of the group's time whose bytes are known; the other columns
    but ``share`` are of that part.
    """
    return tabulate(
        roof_points(kernels, by_phase=True),
        ROOFLINE_COLUMNS,
        name="roofline",
        title=f"Roofline: {roof_words(kernels.roof, kernels.missing.get('roof', ''))}; "
        f"{CONVENTION}",
    )


@dataclass(frozen=True, slots=True)
class _CountedPhase:
    """FLOPs of one phase: counted, and by closed form in both conventions."""

    phase: str
    counted_flops: float
    model_flops: float
    causal_model_flops: float

    @property
    def over_model(self) -> float | None:
        return self.counted_flops / self.model_flops if self.model_flops else None


FLOPS_COLUMNS = fields_of(
    _CountedPhase,
    *("phase", "counted_flops", "model_flops", "over_model", "causal_model_flops"),
)


def flops_table(record: Record) -> Table:
    """FLOPs of matrix products by phase: counted from the shapes that ran, and by closed form
    with attention in full and without its masked half. Empty where none were counted."""
    counted = record.kernels.counted_flops if record.kernels else None
    prediction = record.prediction or {}
    if not counted or not prediction:
        return Table(name="flops", title="", columns=("phase",), rows=())
    backward = 2 if prediction["backward_flops"] else 0
    full, causal = (prediction[key] for key in ("forward_flops", "causal_forward_flops"))
    closed = {"forward": (full, causal), "backward": (backward * full, backward * causal)}
    phases = list(dict.fromkeys([*(phase for phase in closed if closed[phase][0]), *counted]))
    step = ((1 + backward) * full, (1 + backward) * causal)
    forms = {phase: closed.get(phase, (0, 0)) for phase in phases} | {"step": step}
    amounts = counted | {"step": sum(counted.values())}
    formula = prediction.get("formulas", {}).get("forward FLOPs", "")
    return tabulate(
        [
            _CountedPhase(phase, amounts.get(phase, 0.0), float(model), float(causal_model))
            for phase, (model, causal_model) in forms.items()
        ],
        FLOPS_COLUMNS,
        name="flops",
        title=f"FLOPs of matrix products a step; forward = {formula}; without the masked half of "
        "attention 2BT²dL less; backward twice that, fused attention computes its scores again",
    )
