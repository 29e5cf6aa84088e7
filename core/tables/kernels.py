"""The trace pass as tables whose rows add up to the traced step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from ..analysis.kernels.tree import known_sum, mean_of_roof
from ..record.record import KernelRow, Kernels
from .table import Row, Table, folded, with_total

ADDITIVE = ("exclusive_ns", "share", "calls")


def noun(kernels: Kernels) -> str:
    """What a row is: a kernel of the device, or an operator of the host."""
    return "kernel" if kernels.source == "kernels" else "operator"


def averaged(kernels: Kernels) -> str:
    """``, mean of 3 steps``; nothing where one step was traced."""
    return f", mean of {kernels.steps} steps" if kernels.steps > 1 else ""


def windowed(kernels: Kernels) -> str:
    """What the rows add up to, in words."""
    return "one traced step" if kernels.whole == "step" else "traced span"


def kernel_table(kernels: Kernels) -> Table:
    """All rows, longest first, then idle and unattributed time: shares sum to one."""
    rows: list[Row] = [
        (
            *(row.exclusive_ns, row.share, row.calls, row.mean_ns, row.category, row.fused),
            *(row.phase, row.name, row.module, row.op, row.total_ns, row.min_ns, row.max_ns),
            *(row.of_roof, row.flops, row.moved_bytes, ", ".join(row.ops) or None),
        )
        for row in sorted(kernels.rows, key=lambda row: -row.exclusive_ns)
    ]
    return Table(
        name="kernels",
        title=f"{noun(kernels).capitalize()}s: {windowed(kernels)} of {kernels.step_ms:.2f} ms"
        f"{averaged(kernels)}",
        columns=(
            *("exclusive_ns", "share", "calls", "mean_ns", "category", "fused"),
            *("phase", "name", "module", "op", "total_ns", "min_ns", "max_ns"),
            *("of_roof", "flops", "moved_bytes", "ops"),
        ),
        rows=(*rows, *_not_running(kernels)),
    )


def _not_running(kernels: Kernels) -> list[Row]:
    """The rest of the step: idle time by cause, and what could not be attributed."""
    unattributed = kernels.unattributed_ns
    rest = [(f"idle: {one.cause}", "idle", one.ns, one.share) for one in kernels.idle]
    share = unattributed / (kernels.step_ms * 1e6) if kernels.step_ms else 0.0
    rest.append(("unattributed", "unattributed", unattributed, share))
    blanks = (None,) * 9
    return [
        (ns, share, None, None, category, None, None, name, *blanks)
        for name, category, ns, share in rest
    ]


def top_kernels(kernels: Kernels, keep: int) -> Table:
    """The ``keep`` names that take longest, whatever their modules; the others as one row;
    what was not running; and the step, the sum of all."""
    by_name = msgspec.structs.replace(kernels, rows=merged_by_name(kernels.rows))
    table = kernel_table(by_name)
    count = len(by_name.rows)
    running = msgspec.structs.replace(table, rows=table.rows[:count])
    rows = folded(running, keep, "name", ADDITIVE).rows + table.rows[count:]
    return with_total(msgspec.structs.replace(table, rows=rows), "name", kernels.whole, ADDITIVE)


def merged_by_name(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """Rows of one name, category and phase as one; module and op are then empty."""
    groups: dict[tuple[str, str, str], list[KernelRow]] = defaultdict(list)
    for row in rows:
        groups[row.name, row.category, row.phase].append(row)
    return [_merged(group) for group in groups.values()]


def _merged(group: list[KernelRow]) -> KernelRow:
    calls = sum(row.calls for row in group)
    total_ns = sum(row.total_ns for row in group)
    return msgspec.structs.replace(
        group[0],
        module="",
        op="",
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
    step_ns = kernels.step_ms * 1e6 or 1.0
    rows: list[Row] = [
        (category, total, total / step_ns, calls[category], *(amounts.get(p) for p in phases))
        for category, amounts in by_phase.items()
        for total in [sum(amounts.values())]
    ]
    rows.sort(key=lambda row: -float(row[1] or 0))
    blanks = (None,) * len(phases)
    idle_ns = sum(idle.ns for idle in kernels.idle)
    rows.append(("idle", idle_ns, idle_ns / step_ns, None, *blanks))
    unattributed = kernels.unattributed_ns
    rows.append(("unattributed", unattributed, unattributed / step_ns, None, *blanks))
    return Table(
        name="categories",
        title=f"Categories of the traced {kernels.whole}, {kernels.step_ms:.2f} ms",
        columns=(
            *("category", "exclusive_ns", "share", "calls"),
            *(f"{phase}_ns" for phase in phases),
        ),
        rows=tuple(rows),
    )
