"""Tables of a traced step: kernels, categories, roofline, answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from sysbench.core.formatting import format_count
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import KernelRow, Kernels, Record
from sysbench.core.record.steps import TracedCollective, TracedCopy
from sysbench.core.tables.table import (
    Cell,
    Column,
    Table,
    columns_for,
    folded,
    tabulate,
    with_total,
)
from sysbench.core.trace.attention_kernels import Answer
from sysbench.core.trace.classify import idle_label
from sysbench.core.trace.module_tree import group_by, known_sum, mean_of_roof, sum_by
from sysbench.core.trace.roofline import roof_points

ADDITIVE = ("exclusive_ns", "share", "calls")


def row_noun(kernels: Kernels) -> str:
    return "kernel" if kernels.source == "kernels" else "operator"


def mean_label(kernels: Kernels) -> str:
    """``, mean of 3 steps``; empty for one step."""
    return f", mean of {kernels.steps} steps" if kernels.steps > 1 else ""


KERNEL_COLUMNS = columns_for(
    KernelRow,
    Column("exclusive_ns", priority=1),
    Column("share", priority=2, about="share of the traced step"),
    Column("calls", priority=6),
    Column(
        "median_ns",
        priority=9,
        is_optional=True,
        about="median call; of several places the median of theirs, weighted by calls",
    ),
    Column("mean_ns", priority=10),
    Column("category", priority=3),
    Column("fused", in_detail=True),
    Column("phase", priority=7),
    Column("name", priority=4, is_flexible=True, is_kernel=True),
    Column("module", priority=5),
    Column("op", priority=8, about="operator that launched it"),
    Column("total_ns", priority=13),
    Column("min_ns", priority=11),
    Column("max_ns", priority=12),
    Column("of_roof", priority=9),
    Column("flops", priority=14),
    Column("moved_bytes", priority=15),
    Column("ops", lambda row: ", ".join(row.ops) or None, in_detail=True),
)
"""Columns of the kernel table."""


def kernel_table(kernels: Kernels) -> Table:
    """All kernels, longest first, then idle and unattributed time; shares add up to one."""
    window = "one traced step" if kernels.whole == "step" else "traced span"
    return tabulate(
        sorted(kernels.rows, key=lambda row: -row.exclusive_ns),
        *KERNEL_COLUMNS,
        name="kernels",
        title=f"{row_noun(kernels).capitalize()}s: {window} of "
        f"{kernels.step_ms:.2f} ms{mean_label(kernels)}",
        further=_not_running(kernels),
    )


def _not_running(kernels: Kernels) -> Iterator[dict[str, Cell]]:
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
    """Return the ``keep`` longest kernel names, the others as one row, idle and unattributed time,
    and the total.

    Args:
        placed: Add the operator and module in which each took longest.
    """
    by_name = group_by_name(kernels, placed=placed)
    table = kernel_table(by_name)
    count = len(by_name.rows)
    running = msgspec.structs.replace(table, rows=table.rows[:count])
    rows = folded(running, keep, "name", ADDITIVE).rows + table.rows[count:]
    return with_total(msgspec.structs.replace(table, rows=rows), "name", kernels.whole, ADDITIVE)


def group_by_name(kernels: Kernels, *, placed: bool = True) -> Kernels:
    """Merge kernels of the same name, category and phase.

    Args:
        placed: Add the operator and module in which each took longest; otherwise both are empty.
    """
    groups = group_by(kernels.rows, attrgetter("name", "category", "phase"))
    rows = [_merge_rows(group, placed=placed) for group in groups.values()]
    return msgspec.structs.replace(kernels, rows=rows)


def _longest_label(group: Sequence[KernelRow], of: Callable[[KernelRow], str]) -> str:
    """Return where a kernel took longest: ``blocks.*.attention +2``."""
    times = sum_by((label, row.exclusive_ns) for row in group if (label := of(row)))
    first = next(iter(times), "")
    return f"{first} +{len(times) - 1}" if len(times) > 1 else first


def _merge_rows(group: Sequence[KernelRow], *, placed: bool) -> KernelRow:
    calls = sum(row.calls for row in group)
    total_ns = sum(row.total_ns for row in group)
    return msgspec.structs.replace(
        group[0],
        module=_longest_label(group, attrgetter("module")) if placed else "",
        op=_longest_label(group, attrgetter("op")) if placed else "",
        calls=calls,
        total_ns=total_ns,
        exclusive_ns=sum(row.exclusive_ns for row in group),
        mean_ns=total_ns / calls if calls else 0.0,
        min_ns=min(row.min_ns for row in group),
        max_ns=max(row.max_ns for row in group),
        median_ns=_median_of_medians(group),
        share=sum(row.share for row in group),
        of_roof=mean_of_roof(group),
        flops=known_sum(row.flops for row in group),
        moved_bytes=known_sum(row.moved_bytes for row in group),
    )


def _median_of_medians(group: Sequence[KernelRow]) -> float | None:
    """Return the median of the places' medians, weighted by calls; None if one is unknown."""
    medians = [(row.median_ns, row.calls) for row in group if row.median_ns is not None]
    if len(medians) < len(group):
        return None
    left = sum(calls for _, calls in medians) / 2
    for median_ns, calls in sorted(medians):
        left -= calls
        if left <= 0:
            return median_ns
    return None


OUTLIER = 5.0
"""Longest call over the median call from which on a row is marked."""
OUTLIER_SHARE = 0.01
"""Smallest share of the step at which a row is marked."""
OUTLIER_PART = 0.25
"""Part of the row's time that the longest call must take; calls may be of several sizes."""


def outlier_note(kernels: Kernels) -> str:
    """Name the row with the most time that one slow call distorts; empty if there is none."""
    odd = [
        row
        for row in kernels.rows
        if row.median_ns
        and row.max_ns > OUTLIER * row.median_ns
        and row.max_ns > OUTLIER_PART * row.total_ns * kernels.steps
        and row.share >= OUTLIER_SHARE
    ]
    if not odd:
        return ""
    row = max(odd, key=attrgetter("exclusive_ns"))
    place = " · ".join(filter(None, (row.module, row.phase)))
    more = f"; {len(odd) - 1} more rows" if len(odd) > 1 else ""
    return (
        f"{row.name} ({place}): the longest call took {row.max_ns / 1e6:.3g} ms, "
        f"{row.max_ns / (row.median_ns or 1):.0f} × the median of "
        f"{(row.median_ns or 0) / 1e6:.3g} ms{more}."
    )


def category_table(kernels: Kernels) -> Table:
    """Categories by phase, longest first, then idle and unattributed time."""
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
        return Column(
            f"{phase}_ns",
            lambda category: by_phase[category].get(phase),
            about="time of this row alone in the phase",
        )

    return tabulate(
        sorted(totals, key=lambda category: -totals[category]),
        Column[str]("category", lambda category: category),
        Column("exclusive_ns", lambda category: totals[category]),
        Column(
            "share", lambda category: totals[category] / step_ns, about="share of the traced step"
        ),
        Column("calls", lambda category: calls[category]),
        *map(phase_column, phases),
        name="categories",
        title=f"Categories of the traced {kernels.whole}, {kernels.step_ms:.2f} ms",
        further=[
            {"category": name, "exclusive_ns": ns, "share": ns / step_ns}
            for name, ns in rest.items()
        ],
    )


def question_table(answers: Sequence[Answer]) -> Table:
    """One row per question; ``missing`` lists commands that measure absent values."""
    return tabulate(
        answers,
        Column("question", about="question"),
        Column(
            "answer", "sentence", about="the answer, computed from the table rows that it names"
        ),
        Column(
            "missing",
            lambda answer: "; ".join(answer.commands),
            about="commands that measure what the answer lacks",
        ),
        name="questions",
        title="Questions, answered from the rows",
    )


CONVENTION = "bytes: every input and output of an operator once"


def roof_words(roof: Roof | None, reason: str = "") -> str:
    """Describe both ceilings with their sources, or why there is no roof."""
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


def roofline_table(kernels: Kernels) -> Table:
    """Groups of work by phase, longest first.

    ``known_share`` is the share of time whose bytes are known; other columns but ``share`` cover
    that part only.
    """
    return tabulate(
        roof_points(kernels, by_phase=True),
        Column("group", "label", about="group of rows: a category or a kind of kernel"),
        "phase",
        Column("total_ns", "ns", about="time of the group's rows with known bytes"),
        Column("share", about="share of the traced step"),
        Column("intensity", heading="FLOP/byte", about="FLOPs per byte moved"),
        Column(
            "tflops",
            lambda point: point.flops_per_second / 1e12,
            about="FLOPs over time, in TFLOP/s",
        ),
        Column(
            "gigabytes_per_second",
            lambda point: point.bytes_per_second / 1e9,
            about="bytes over time, in GB/s",
        ),
        "of_roof",
        Column("bound", about="limit: compute or memory"),
        "flops",
        "moved_bytes",
        Column("known_share", "known", about="share of the time whose bytes are known"),
        name="roofline",
        title=f"Roofline: {roof_words(kernels.roof, kernels.missing.get('roof', ''))}; "
        f"{CONVENTION}",
    )


@dataclass(frozen=True, slots=True)
class _CountedPhase:
    phase: str
    counted_flops: float
    model_flops: float
    causal_model_flops: float

    @property
    def over_model(self) -> float | None:
        return self.counted_flops / self.model_flops if self.model_flops else None


def flops_table(record: Record) -> Table:
    """FLOPs of matrix products by phase: counted from shapes, and by closed form with and without
    the masked half of attention."""
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
        "phase",
        Column("counted_flops", about="FLOPs counted from operator shapes"),
        Column("model_flops", about="closed form of the model, attention in full"),
        Column("over_model", about="counted over closed form"),
        Column("causal_model_flops", about="closed form without the masked half of attention"),
        name="flops",
        title=f"FLOPs of matrix products a step; forward = {formula}; without the masked half of "
        "causal attention 2BT²dL less; backward twice that, and fused attention computes its "
        "scores again",
    )


GROUP_NAME = "process group, by the name that the program gave it"
COLLECTIVES_NOTE = (
    "these times include waiting for other ranks, so bandwidths are lower bounds: --section ranks "
    "separates them if the file has several ranks, else a folder with the files of all ranks"
)


def copies_table(rows: Sequence[TracedCopy]) -> Table:
    """Copies by direction and host memory, longest first. Times are over the whole window."""
    return tabulate(
        rows,
        Column("total_ns", about="sum of the copies' times"),
        Column("exposed_ns", about="part in which nothing computed or communicated"),
        "calls",
        Column("bytes", about="bytes of all calls"),
        Column("gbs", heading="GB/s", format="{:.1f}", about="bytes over their time"),
        Column(
            "name",
            lambda row: f"{row.direction} {row.memory}".strip(),
            heading="direction",
            about="from the host (H), the device (D) or a peer (P) to another; the host's "
            "memory, if recorded",
        ),
        name="copies",
        title="Copies by direction and host memory",
    )


def collectives_table(rows: Sequence[TracedCollective]) -> Table:
    """Collectives by kind, bytes and group, longest first. Times are over the whole window."""
    return tabulate(
        rows,
        Column("total_ns", about="sum of the call times, waiting included"),
        "exposed_ns",
        "calls",
        "kind",
        Column("purpose", heading="group name", is_optional=True, about=GROUP_NAME),
        Column("bytes", is_optional=True, about="bytes of one call"),
        Column("dtype", is_optional=True, about="type of the elements"),
        Column("group_size", heading="ranks", is_optional=True),
        "mean_ns",
        "min_ns",
        "max_ns",
        Column(
            "algorithm_gbs",
            heading="alg GB/s",
            is_optional=True,
            about="bytes over the mean call, waiting included",
        ),
        Column("bus_gbs", heading="bus GB/s", is_optional=True),
        Column("best_bus_gbs", heading="best bus", is_optional=True, about="highest bus bandwidth"),
        Column("group", is_optional=True),
        Column("which", "ranks", is_optional=True, about="ranks in the group"),
        "name",
        name="collectives",
        title="Collectives: transfer and waiting together, exposed where nothing else computes",
    )
