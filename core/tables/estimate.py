"""The tables of `estimate`: a prediction's ledger and phases, and a grid of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..estimate.closed_form import Prediction
from ..estimate.exact import ExactPrediction
from ..estimate.grid import Cell, Fit
from .table import Table, facts


def predicted_ledger_table(prediction: Prediction) -> Table:
    """What is resident at the peak; the rows of ``bytes`` sum to it.

    ``block_bytes`` is what CUDA's allocator holds for the same tensors, where that was found.
    """
    blocks = prediction.block_ledger if isinstance(prediction, ExactPrediction) else None
    block_bytes = {row.name: row.bytes for row in blocks or ()}
    return Table(
        name="ledger",
        title=f"Peak memory, predicted, in {prediction.peak_phase} ({prediction.peak_place})",
        columns=("name", "bytes", "share", *(("block_bytes",) if blocks else ())),
        rows=tuple(
            (
                *(row.name, row.bytes, row.bytes / (prediction.peak_bytes or 1)),
                *((block_bytes[row.name],) if blocks else ()),
            )
            for row in prediction.ledger
        ),
    )


def predicted_phases_table(prediction: ExactPrediction, roof: Mapping[str, float]) -> Table:
    """Each phase's own peak and work.

    Args:
        roof: Phase to the milliseconds of `roof_ms`; empty where no roof is known.
    """
    has_blocks = prediction.block_ledger is not None
    optional = (*(("block_bytes",) if has_blocks else ()), *(("roofline_ms",) if roof else ()))
    return Table(
        name="phases",
        title="Peak and matrix products by phase, predicted",
        columns=("phase", "peak_bytes", "place", "flops", *optional),
        rows=tuple(
            (
                *(phase.phase, phase.peak_bytes, phase.place, phase.flops),
                *((phase.block_bytes,) if has_blocks else ()),
                *((roof[phase.phase],) if roof else ()),
            )
            for phase in prediction.phases
        ),
    )


def fit_table(fit: Fit) -> Table:
    """The largest value that fits, and the next one."""
    return facts(
        "fit",
        f"The largest {fit.key} that fits",
        {
            fit.key: fit.largest,
            "peak_bytes": fit.peak_bytes,
            "capacity_bytes": fit.capacity_bytes,
            f"next {fit.key}": fit.next,
            "next_peak_bytes": fit.next_peak_bytes,
            "over_bytes": fit.over_bytes,
        },
    )


def grid_table(cells: Sequence[Cell]) -> Table:
    """A row per cell, the axes' columns first."""
    keys = tuple(cells[0].settings)
    notes = any(cell.why for cell in cells)
    return Table(
        name="grid",
        title=f"Peak memory, predicted, by {' and '.join(keys)}",
        columns=(*keys, "peak_bytes", "peak_phase", "fits", *(("note",) if notes else ())),
        rows=tuple(
            (
                *cell.settings.values(),
                *(cell.peak_bytes, cell.peak_phase, cell.fits),
                *((cell.why,) if notes else ()),
            )
            for cell in cells
        ),
    )
