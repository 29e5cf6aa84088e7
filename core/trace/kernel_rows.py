"""The kernel table of a trace, whose rows sum to the step, and the copies of a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sysbench.core.record.record import CategoryRow, Coverage, IdleRow, KernelRow, Kernels
from sysbench.core.record.steps import TracedCopy
from sysbench.core.trace.classify import (
    GRAD_ACCUMULATE,
    LOSS,
    MODEL_PHASES,
    WHOLE_MODEL,
    classify,
    classify_operator,
    fused_operators,
)
from sysbench.core.trace.health import unread_words
from sysbench.core.trace.intervals import sums_by
from sysbench.core.trace.kernel_names import CopyKind, copy_kind
from sysbench.core.trace.module_tree import fold_layer_numbers, group_by
from sysbench.core.trace.time_ledger import TimeLedger
from sysbench.core.trace.trace_events import NONE, Numbers, follow_flow

OTHER = "other"
NO_KERNELS = (
    "no GPU work was recorded, so the rows are CPU operators: another profiler, another libcupti "
    "or the driver blocked CUPTI; look for CUPTI in the log of the pass"
)


def kernel_rows(ledger: TimeLedger, *, by_layer: bool = False, on_device: bool = False) -> Kernels:
    """Return rows by name, phase, module and operator, per step, longest first.

    Operators of a host do not explain a step that a device computed: if the trace shows launches
    but no work on a device, or device events in an unknown form, the table explains nothing and
    ``missing`` has the reason. Modules that differ only in the layer number are one row, unless
    ``by_layer``.
    """
    is_blind = ledger.source == "operators" and bool(on_device or ledger.dropped or ledger.unread)
    rows = _rows(ledger, by_layer=by_layer)
    steps, length = ledger.window.steps, ledger.window.length
    return Kernels(
        source=ledger.source,
        steps=steps,
        step_ms=length / steps / 1e6,
        busy_ns=ledger.busy / steps,
        span_ns=ledger.span / steps,
        phases_ns={name: ns / steps for name, ns in ledger.phase_times.items()},
        rows=rows,
        categories=_categories(rows),
        idle=[
            IdleRow(cause=cause, ns=ns / steps, share=ns / length)
            for cause, ns in ledger.idle.items()
            if ns
        ],
        unattributed_ns=ledger.unattributed / steps,
        coverage=_coverage(ledger, is_blind=is_blind),
        marked_steps=ledger.marked,
        device=ledger.device,
        other_devices=ledger.other_devices,
        missing=_missing(ledger)
        | ({"kernels": NO_KERNELS if on_device else _no_kernels(ledger)} if is_blind else {}),
    )


def _no_kernels(ledger: TimeLedger) -> str:
    unread = unread_words(ledger.unread)
    launches = f"{ledger.dropped_kernels:,} launch{'' if ledger.dropped_kernels == 1 else 'es'}"
    reason = (
        f"this file has no GPU kernels ({launches}, 0 kernels); times below are CPU times"
        if ledger.dropped or not unread
        else "the device's work in this file has an unknown form; times below are CPU times"
    )
    return f"{reason} (not read: {unread})" if unread else reason


def _rows(ledger: TimeLedger, *, by_layer: bool) -> list[KernelRow]:
    work = ledger.work
    if not len(work):
        return []
    # The first piece of a call stands for it: name, phase and module are equal in all of them.
    _, first, call = np.unique(work.call, return_index=True, return_inverse=True)
    duration = sums_by(call, work.end - work.start, len(first))
    exclusive = sums_by(call, ledger.exclusive, len(first))
    numbers = Numbers()
    label = numbers.of(ledger.modules if by_layer else [*map(fold_layer_numbers, ledger.modules)])
    labels = list(numbers)
    keys = np.stack(
        (
            work.name[first],
            work.phase[first],
            follow_flow(work.module[first], label),
            work.operator[first],
            work.linked[first],
        )
    )
    # Sorted by all keys, the calls of a row are adjacent, the shortest first; `begins` is the
    # first of each row.
    order = np.lexsort((duration, *keys))
    keys, duration, exclusive = keys[:, order], duration[order], exclusive[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(keys) != 0).any(axis=0)])
    counts = np.diff(np.r_[begins, len(order)])
    below, above = begins + (counts - 1) // 2, begins + counts // 2
    columns = zip(
        *keys[:, begins].tolist(),
        counts.tolist(),
        np.add.reduceat(duration, begins).tolist(),
        np.add.reduceat(exclusive, begins).tolist(),
        duration[begins].tolist(),
        ((duration[below] + duration[above]) / 2).tolist(),
        duration[begins + counts - 1].tolist(),
        strict=True,
    )
    steps, length = ledger.window.steps, ledger.window.length
    rows = [
        KernelRow(
            name=ledger.names[name],
            category=category_of(ledger, name, operator),
            phase=ledger.phases[phase],
            module=labels[module] if module != NONE else "",
            op=ledger.names[operator] if operator != NONE else "",
            calls=calls / steps,
            total_ns=total / steps,
            exclusive_ns=own / steps,
            mean_ns=total / calls,
            min_ns=shortest,
            max_ns=longest,
            median_ns=median,
            share=own / length if length else 0.0,
            fused=bool(fused_operators(ledger.names[name])),
            ops=list(fused_operators(ledger.names[name])),
            linked=bool(linked),
        )
        for name, phase, module, operator, linked, calls, total, own, shortest, median, longest in (
            columns
        )
    ]
    return sorted(rows, key=lambda row: -row.exclusive_ns)


def category_of(ledger: TimeLedger, name: int, operator: int) -> str:
    """Return the category by the name; where it says nothing, by the operator, unless it is -1."""
    if ledger.source == "operators":
        return classify_operator(ledger.names[name])
    category = classify(ledger.names[name])
    if category == OTHER and operator != NONE:
        return classify_operator(ledger.names[operator])
    return category


def _categories(rows: list[KernelRow]) -> list[CategoryRow]:
    groups = group_by(rows, lambda row: (row.category, row.phase))
    summed = [
        CategoryRow(
            category=category,
            phase=phase,
            calls=sum(row.calls for row in members),
            exclusive_ns=sum(row.exclusive_ns for row in members),
            share=sum(row.share for row in members),
        )
        for (category, phase), members in groups.items()
    ]
    return sorted(summed, key=lambda row: -row.exclusive_ns)


def _coverage(ledger: TimeLedger, *, is_blind: bool) -> Coverage:
    work, length = ledger.work, ledger.window.length
    is_device = ledger.source == "kernels"
    unlinked = ~work.linked
    unexplained = ledger.unattributed + int(ledger.exclusive[unlinked].sum())
    of_model = np.isin(ledger.phases, MODEL_PHASES)[work.phase] if len(work) else unlinked
    model_time = int(ledger.exclusive[of_model].sum())
    # What a CUDA graph launches has the module around the one launch: the root says nothing then.
    at_root = np.isin(work.module, _indices(ledger.modules, WHOLE_MODEL))
    is_placed = (work.module != NONE) & ~(work.in_graph & at_root)
    with_module = int(ledger.exclusive[of_model & is_placed].sum()) if _has_modules(ledger) else 0
    return Coverage(
        launches=ledger.launches,
        kernels=len(work) if is_device else 0,
        unlinked=int(unlinked.sum()),
        explained=1 - unexplained / length if length and not is_blind else 0.0,
        with_module=with_module / model_time if model_time else 0.0,
        graph_kernels=int(work.in_graph.sum()),
        dropped=ledger.dropped,
        dropped_fills=ledger.dropped_fills,
        captured=ledger.captured,
    )


def _indices(names: Sequence[str], wanted: str) -> list[int]:
    return [index for index, name in enumerate(names) if name == wanted]


def _has_modules(ledger: TimeLedger) -> bool:
    """Return whether the file has module ranges; loss and accumulation follow from operators."""
    return bool(set(ledger.modules) - {LOSS, GRAD_ACCUMULATE})


def _missing(ledger: TimeLedger) -> dict[str, str]:
    missing = {}
    if not ledger.phase_times:
        missing["phases_ns"] = (
            f"phases are inferred (no {'' if ledger.marked else 'step or '}phase markers)"
        )
    if not _has_modules(ledger):
        missing["module"] = (
            "the file has no module ranges; torch.profiler records them with with_stack=True"
        )
    if ledger.other_devices:
        others = ", ".join(map(str, ledger.other_devices))
        why = "as selected" if ledger.is_chosen else "the busiest"
        missing["devices"] = (
            f"only device {ledger.device} is shown ({why}); others: {others} (--device N)"
        )
    return missing


def copy_rows(ledger: TimeLedger) -> list[TracedCopy]:
    """Sum the device's copies by direction and host memory, longest first."""
    if ledger.source != "kernels":
        return []
    work = ledger.work
    groups: defaultdict[CopyKind, list[int]] = defaultdict(list)
    for name in np.unique(work.name).tolist():
        if (kind := copy_kind(ledger.names[name])) is not None:
            groups[kind] += np.flatnonzero(work.name == name).tolist()
    rows = [_row(ledger, kind, np.array(pieces)) for kind, pieces in groups.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _row(ledger: TimeLedger, kind: CopyKind, pieces: np.ndarray) -> TracedCopy:
    work = ledger.work
    total_ns = int((work.end[pieces] - work.start[pieces]).sum())
    # A copy that the window cuts has several pieces or a shorter one, and its bytes once.
    _, first = np.unique(work.call[pieces], return_index=True)
    sizes = work.bytes[pieces[first]]
    known = int(sizes.sum()) if (sizes >= 0).all() else None
    return TracedCopy(
        direction=kind.direction,
        memory=kind.memory,
        calls=len(first),
        total_ns=total_ns,
        exposed_ns=int(ledger.exclusive[pieces].sum()),
        bytes=known,
        gbs=known / total_ns if known is not None and total_ns else None,
    )
