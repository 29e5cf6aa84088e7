"""Tables of `estimate`: predicted ledger, phases and grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from sysbench.core.predict.cache_forms import LayoutFit
from sysbench.core.predict.closed_form import Prediction
from sysbench.core.predict.dry_run_client import (
    EagerStep,
    ExactPrediction,
    PhasePrediction,
    RankPrediction,
)
from sysbench.core.predict.fit_grid import Fit, FitCell
from sysbench.core.predict.layout_plan import Layout, LayoutPlan
from sysbench.core.predict.savings import Saving, Savings, setting_words
from sysbench.core.record.memory import LedgerRow
from sysbench.core.spec.world import DIVISIONS, World
from sysbench.core.tables.table import FIRST, Column, ColumnLook, Table, facts, tabulate


def predicted_ledger_table(prediction: Prediction, unknown: Sequence[str] = ()) -> Table:
    """The ledger at the predicted peak; ``bytes`` adds up to it.

    ``block_bytes`` are CUDA allocator blocks, if known.

    Args:
        unknown: Names of rows without bytes.
    """
    blocks = prediction.block_ledger if isinstance(prediction, ExactPrediction) else None
    block_bytes = {row.name: row.bytes for row in blocks or ()}
    peak = prediction.peak_bytes or 1

    def known(row: LedgerRow) -> int | None:
        return None if row.name in unknown else row.bytes

    return tabulate(
        [*prediction.ledger, *(LedgerRow(name, 0) for name in unknown)],
        "name",
        Column("bytes", known, about="bytes at the predicted peak"),
        Column(
            "share",
            lambda row: None if row.name in unknown else row.bytes / peak,
            about="share of the peak",
        ),
        Column("block_bytes", lambda row: block_bytes.get(row.name), is_optional=True),
        name="ledger",
        title=f"Peak memory, predicted, in {prediction.peak_phase} ({prediction.peak_place})",
    )


def ranks_table(ranks: Sequence[RankPrediction], world: World) -> Table:
    """A row for each rank that was played, the one that needs most first."""
    return tabulate(
        sorted(ranks, key=lambda one: -one.needed_bytes),
        "rank",
        Column("alike", about="number of ranks that execute the same"),
        *(
            Column[RankPrediction](
                name, _coordinate(name), about=f"index in the {name} dimension of the mesh"
            )
            for name in DIVISIONS
        ),
        Column("peak_bytes", about="bytes at the predicted peak of this rank"),
        Column("allocated_bytes", is_optional=True),
        Column("reserved_bytes", is_optional=True),
        Column("peak_phase", "prediction.peak_phase", about="phase of the peak"),
        Column("place", "prediction.peak_place", about="place of the peak"),
        name="ranks",
        title=f"Peak memory by rank of {world.words}, predicted",
    )


def _coordinate(name: str) -> Callable[[RankPrediction], int]:
    return lambda one: one.coordinates[name]


def phase_ledger_table(phase: PhasePrediction) -> Table:
    """The ledger at the peak of one phase; ``bytes`` adds up to it."""
    return tabulate(
        phase.ledger,
        "name",
        Column("bytes", about="bytes at the predicted peak of the phase"),
        Column("share", lambda row: row.bytes / (phase.peak_bytes or 1)),
        name="phase_ledger",
        title=f"Peak memory of {phase.phase}, predicted ({phase.place})",
    )


def predicted_phases_table(prediction: ExactPrediction, roof: Mapping[str, float]) -> Table:
    """Peak and work of each phase.

    Args:
        roof: Milliseconds of `roof_ms` by phase; empty without a roof.
    """
    return tabulate(
        prediction.phases,
        "phase",
        "peak_bytes",
        Column("place", priority=FIRST, about="module or operator at the peak"),
        "flops",
        Column("block_bytes", is_optional=True),
        Column(
            "roofline_ms",
            lambda phase: roof.get(phase.phase),
            is_optional=True,
            about="minimum time by the roofline, at the device's peak rates",
        ),
        name="phases",
        title="Peak and matrix products by phase, predicted",
    )


def eager_table(prediction: ExactPrediction, eager: EagerStep) -> Table:
    """What a compiled step changes: saved activations and peak, eager and compiled."""
    rows = [
        ("saved for backward", eager.saved_activation_bytes, prediction.saved_activation_bytes),
        ("peak", eager.peak_bytes, prediction.peak_bytes),
    ]
    return tabulate(
        rows,
        Column("name", itemgetter(0)),
        Column("eager_bytes", itemgetter(1), about="bytes of the step without torch.compile"),
        Column("compiled_bytes", itemgetter(2), about="bytes of the compiled step"),
        Column("change_bytes", lambda row: row[2] - row[1], about="compiled minus eager"),
        name="eager",
        title="Eager and compiled, predicted",
    )


def fit_words(key: str) -> str:
    counted = {"layers": "number of layers", "microbatches": "number of micro-batches"}
    return counted.get(key, key)


def fit_table(fit: Fit) -> Table:
    """The largest value that fits, and the next one."""
    values = {
        fit.key: fit.largest,
        "peak_bytes": fit.peak_bytes,
        "capacity_bytes": fit.capacity_bytes,
        f"next {fit.key}": fit.next,
        "next_peak_bytes": fit.next_peak_bytes,
        "over_bytes": fit.over_bytes,
    }
    table = facts("fit", f"The largest {fit_words(fit.key)} that fits", values)
    return msgspec.structs.replace(table, looks={"note": ColumnLook(in_detail=True)})


def layouts_table(layouts: Sequence[LayoutFit], key: str) -> Table:
    """One row per layout of the cache, each type of its elements."""
    return tabulate(
        layouts,
        Column("cache", about="type of the cache's elements"),
        Column("block_size", about="tokens in a block; 1 for a contiguous cache"),
        Column(
            "memory",
            heading="limit",
            about="what is filled: usable memory, or an engine's share of it",
        ),
        Column("memory_bytes", about="memory for weights, cache and temporaries"),
        Column("sequence_bytes", about="the cache of one sequence at the largest value"),
        Column("largest", about=f"the largest {key} that fits, in closed form"),
        name="layouts",
        title=f"The largest {fit_words(key)} by layout of the cache, closed form",
    )


def grid_table(cells: Sequence[FitCell]) -> Table:
    """One row per cell, axes first."""
    keys = tuple(cells[0].settings)
    return tabulate(
        cells,
        *(Column[FitCell](key, _setting(key), about="value of this axis") for key in keys),
        "peak_bytes",
        "peak_phase",
        Column("fits", about="true if the predicted peak fits in memory"),
        Column("note", "why", is_optional=True, in_detail=True, about="why there is no value"),
        name="grid",
        title=f"Peak memory, predicted, by {' and '.join(keys)}",
    )


def savings_table(savings: Savings) -> Table:
    """One row per change that saves memory, largest first."""
    return tabulate(
        savings.savings,
        Column("change", saving_words, about="setting that changes"),
        Column("saved_bytes", about="reduction of the predicted peak"),
        Column(
            "share",
            lambda saving: saving.saved_bytes / savings.peak_bytes,
            about="share of the peak",
        ),
        "peak_bytes",
        Column("peak_phase", priority=FIRST),
        Column("reserved_bytes", is_optional=True),
        Column("price", about="cost of the change"),
        name="savings",
        title="What one change would save of the peak, predicted",
    )


COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "send")
"""Kinds of transfers that are counted."""


def plan_table(plan: LayoutPlan) -> Table:
    """A row for each layout that divides the step: first those that fit, by headroom."""
    return tabulate(
        plan.layouts,
        Column("layout", "name", about="value of --world, with microbatches=pp if it has none"),
        Column("fits", "verdict", about="close: it may not fit"),
        Column("samples", about="samples of all ranks in a step"),
        Column(
            "headroom_bytes",
            about="memory to spare on the fullest rank, or at most; below 0 for a layout that "
            "fits: the cache that is released",
        ),
        Column("peak_bytes", about="bytes at the predicted peak of that rank; –: not played"),
        Column("reserved_bytes", is_optional=True),
        Column("sent_bytes", about="bytes that the rank sends in a step, as in a ring"),
        *(
            Column[Layout](
                f"{kind.replace('-', '_')}_bytes",
                _sent(kind),
                is_optional=True,
                priority=FIRST,
                about=f"the part of these by {kind}",
            )
            for kind in COLLECTIVES
        ),
        Column("rank", priority=FIRST, about="the fullest rank"),
        Column("peak_phase", priority=FIRST),
        name="plan",
        title=f"Layouts of {plan.devices:,} devices, predicted",
    )


def _sent(kind: str) -> Callable[[Layout], int | None]:
    return lambda layout: next((row.bytes for row in layout.sent if row.kind == kind), None)


def saving_words(saving: Saving) -> str:
    return setting_words(saving.settings)


def _setting(key: str) -> Callable[[FitCell], Any]:
    return lambda cell: cell.settings[key]
