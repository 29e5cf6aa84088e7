"""Work against the device's ceilings, and counted FLOPs beside the closed form's, as tables."""

from __future__ import annotations

from ..analysis.costs.roofline import RoofPoint, roof_points
from ..formatting import format_count
from ..record.record import Kernels, Record
from ..record.roof import Roof
from ..tables.table import Row, Table

CONVENTION = "bytes: every input and output of an operator once"


def roof_words(roof: Roof | None, reason: str = "") -> str:
    """The two ceilings and where they are from, or why there are none."""
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
    """Groups of work by phase, the longest first: the points of the roofline plot.

    ``known_share`` is the part of the group's time whose bytes are known; the other columns
    but ``share`` are of that part.
    """
    return Table(
        name="roofline",
        title=f"Roofline: {roof_words(kernels.roof, kernels.missing.get('roof', ''))}; "
        f"{CONVENTION}",
        columns=(
            *("group", "phase", "total_ns", "share", "intensity", "tflops"),
            *("gigabytes_per_second", "of_roof", "bound", "flops", "moved_bytes", "known_share"),
        ),
        rows=tuple(_row(point) for point in roof_points(kernels, by_phase=True)),
    )


def _row(point: RoofPoint) -> Row:
    return (
        *(point.label, point.phase, point.ns, point.share, point.intensity),
        *(point.flops_per_second / 1e12, point.bytes_per_second / 1e9),
        *(point.of_roof, point.bound, point.flops, point.moved_bytes, point.known),
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
    rows = [
        _flops_row(phase, counted.get(phase, 0.0), *closed.get(phase, (0, 0))) for phase in phases
    ]
    step = sum(counted.values())
    rows.append(_flops_row("step", step, (1 + backward) * full, (1 + backward) * causal))
    formula = prediction.get("formulas", {}).get("forward FLOPs", "")
    return Table(
        name="flops",
        title=f"FLOPs of matrix products a step; forward = {formula}; without the masked half of "
        "attention 2BT²dL less; backward twice that, fused attention computes its scores again",
        columns=("phase", "counted_flops", "model_flops", "over_model", "causal_model_flops"),
        rows=tuple(rows),
    )


def _flops_row(phase: str, counted: float, full: float, causal: float) -> Row:
    ratio = counted / full if full else None
    return (phase, counted, float(full), ratio, float(causal))
