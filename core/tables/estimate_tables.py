"""The tables of `estimate`: a prediction's ledger and phases, and a grid of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sysbench.core.predict.closed_form import Prediction
from sysbench.core.predict.dry_run_client import ExactPrediction, PhasePrediction
from sysbench.core.predict.fit_grid import Fit, FitCell
from sysbench.core.predict.savings import Saving, Savings
from sysbench.core.record.memory import LedgerRow
from sysbench.core.tables.table import Column, Table, facts, fields_of, tabulate


def predicted_ledger_table(prediction: Prediction) -> Table:
    """The ledger at the peak; the rows of ``bytes`` sum to it.

    ``block_bytes`` are the blocks of CUDA's allocator for the same tensors, where they are known.
    """
    blocks = prediction.block_ledger if isinstance(prediction, ExactPrediction) else None
    block_bytes = {row.name: row.bytes for row in blocks or ()}
    peak = prediction.peak_bytes or 1
    return tabulate(
        prediction.ledger,
        (
            *fields_of(LedgerRow, "name", "bytes"),
            Column("share", lambda row: row.bytes / peak),
            Column("block_bytes", lambda row: block_bytes.get(row.name), is_optional=True),
        ),
        name="ledger",
        title=f"Peak memory, predicted, in {prediction.peak_phase} ({prediction.peak_place})",
    )


def predicted_phases_table(prediction: ExactPrediction, roof: Mapping[str, float]) -> Table:
    """Each phase's own peak and work.

    Args:
        roof: Phase to the milliseconds of `roof_ms`; empty where no roof is known.
    """
    roofline = Column[PhasePrediction]("roofline_ms", lambda phase: roof[phase.phase])
    return tabulate(
        prediction.phases,
        (
            *fields_of(PhasePrediction, "phase", "peak_bytes", "place", "flops"),
            Column("block_bytes", lambda phase: phase.block_bytes, is_optional=True),
            *((roofline,) if roof else ()),
        ),
        name="phases",
        title="Peak and matrix products by phase, predicted",
    )


def fit_words(key: str) -> str:
    """Name of the key in a sentence about its largest value."""
    return "number of layers" if key == "layers" else key


def fit_table(fit: Fit) -> Table:
    """The largest value that fits, and the next one."""
    return facts(
        "fit",
        f"The largest {fit_words(fit.key)} that fits",
        {
            fit.key: fit.largest,
            "peak_bytes": fit.peak_bytes,
            "capacity_bytes": fit.capacity_bytes,
            f"next {fit.key}": fit.next,
            "next_peak_bytes": fit.next_peak_bytes,
            "over_bytes": fit.over_bytes,
        },
    )


def grid_table(cells: Sequence[FitCell]) -> Table:
    """A row per cell, the axes' columns first."""
    keys = tuple(cells[0].settings)
    return tabulate(
        cells,
        (
            *(Column[FitCell](key, _setting(key)) for key in keys),
            *fields_of(FitCell, "peak_bytes", "peak_phase", "fits"),
            Column("note", lambda cell: cell.why, is_optional=True),
        ),
        name="grid",
        title=f"Peak memory, predicted, by {' and '.join(keys)}",
    )


def savings_table(savings: Savings) -> Table:
    """A row per change that saves anything, the most first."""
    return tabulate(
        savings.savings,
        (
            Column("change", _change),
            *fields_of(Saving, "saved_bytes"),
            Column("share", lambda saving: saving.saved_bytes / savings.peak_bytes),
            *fields_of(Saving, "peak_bytes", "peak_phase"),
            Column("reserved_bytes", lambda saving: saving.reserved_bytes, is_optional=True),
            *fields_of(Saving, "price"),
        ),
        name="savings",
        title="What one change would save of the peak, predicted",
    )


def _change(saving: Saving) -> str:
    return " ".join(f"{key}={value}" for key, value in saving.settings.items())


def _setting(key: str) -> Callable[[FitCell], Any]:
    return lambda cell: cell.settings[key]
