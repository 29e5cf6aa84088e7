"""The roofline model and MFU: work against the device's peak and bandwidth.

Time at the roof is max(FLOPs / peak, bytes / bandwidth); the share of the roof is that time over
the measured time. Only FLOPs of matrix products count, since peaks are quoted for these.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum
from typing import Literal

import msgspec

from sysbench.core.formatting import format_bytes, format_count
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import KernelRow, Kernels, Nsys, Timing
from sysbench.core.trace.attention_kernels import is_product
from sysbench.core.trace.module_tree import group_by
from sysbench.core.trace.operators import COUNTED_CATEGORIES

MIN_KNOWN = 0.5
ATTENTION_PRODUCTS = "attention products"

Bound = Literal["compute", "memory"]


class RoofPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A group of rows in the roofline plot, per step.

    ``ns`` is the time of the rows with known bytes, ``known`` its share of the group's time,
    ``share`` the group's share of the step.
    """

    label: str
    phase: str
    ns: float
    share: float
    known: float
    flops: float
    moved_bytes: float
    at_roof_ns: float | None = None
    bound: Bound | None = None

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.ns * 1e9 if self.ns else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.ns * 1e9 if self.ns else 0.0

    @property
    def of_roof(self) -> float | None:
        return self.at_roof_ns / self.ns if self.at_roof_ns is not None and self.ns else None


def at_roof(
    flops: float | None, moved_bytes: float | None, is_compute: bool, roof: Roof
) -> tuple[float, Bound] | None:
    """Return the minimum nanoseconds of the work and what limits it, or None."""
    times: list[tuple[float, Bound]] = []
    if flops is not None and is_compute:
        times.append((flops / roof.peak_flops * 1e9, "compute"))
    if moved_bytes is not None and roof.bandwidth:
        times.append((moved_bytes / roof.bandwidth * 1e9, "memory"))
    return max(times) if times else None


def with_roof(kernels: Kernels, roof: Roof | None, reason: str = "") -> Kernels:
    """Return the table with each row's share of the roof, or the reason why it has none."""
    if roof is None:
        return msgspec.structs.replace(
            kernels, roof=None, missing=kernels.missing | {"roof": reason}
        )
    rows = [
        msgspec.structs.replace(row, of_roof=best[0] / row.total_ns)
        if row.total_ns and (best := _row_at_roof(row, roof))
        else row
        for row in kernels.rows
    ]
    missing = {name: why for name, why in kernels.missing.items() if name != "roof"}
    if roof.bandwidth is None:
        missing |= {"bandwidth": "the memory bandwidth is unknown; see --peak"}
    return msgspec.structs.replace(kernels, rows=rows, roof=roof, missing=missing)


def _row_at_roof(row: KernelRow, roof: Roof) -> tuple[float, Bound] | None:
    is_compute = row.category in COUNTED_CATEGORIES
    return at_roof(row.flops, row.moved_bytes, is_compute, roof.of(row.category))


def with_mfu(timing: Timing, roof: Roof | None, reason: str, causal_flops: float) -> Timing:
    """Return the timing with the MFU, or ``reason`` without a roof.

    ``causal_flops`` are those of a step without attention's masked half.
    """
    seconds = timing.step.median_ms / 1e3
    missing = {name: why for name, why in timing.missing.items() if name != "mfu"}
    if roof is None or not seconds or timing.model_flops is None:
        return msgspec.structs.replace(
            timing, causal_model_flops=causal_flops, missing=missing | {"mfu": reason}
        )
    mfu = timing.model_flops / seconds / roof.peak_flops
    causal_mfu = causal_flops / seconds / roof.peak_flops
    return msgspec.structs.replace(
        timing,
        causal_model_flops=causal_flops,
        mfu=mfu,
        causal_mfu=causal_mfu,
        mfu_formula=f"{format_count(timing.model_flops)}FLOP / {seconds:.4g} s / "
        f"{format_count(roof.peak_flops)}FLOP/s = {100 * mfu:.2f} %; without attention's masked "
        f"half {format_count(causal_flops)}FLOP, {100 * causal_mfu:.2f} %. "
        f"Peak: {roof.peak_source}{_of_quoted(timing.model_flops / seconds, roof)}",
        roof=roof,
        missing=missing,
    )


def with_bandwidth(timing: Timing, roof: Roof | None, reason: str) -> Timing:
    """Return the timing of a decode step with its share of the memory bandwidth."""
    decode = timing.decode
    if decode is None or decode.token_ms is None or not decode.token_ms.median_ms:
        return timing
    if roof is None or roof.bandwidth is None:
        why = reason if roof is None else "the memory bandwidth is unknown; see --peak"
        return msgspec.structs.replace(timing, missing={"bandwidth_share": why} | timing.missing)
    if "bandwidth_share" in timing.missing:
        return timing
    seconds = decode.token_ms.median_ms / 1e3
    share = bandwidth_ms(decode.weight_bytes, decode.cache_bytes, roof.bandwidth) / 1e3 / seconds
    formula = (
        f"({bandwidth_words(decode.weight_bytes, decode.cache_bytes)}) / {seconds:.4g} s / "
        f"{format_count(roof.bandwidth)}B/s = {100 * share:.1f} %. Bandwidth: "
        f"{roof.bandwidth_source}"
    )
    decode = msgspec.structs.replace(decode, bandwidth_share=share, bandwidth_formula=formula)
    return msgspec.structs.replace(timing, decode=decode, roof=roof)


def bandwidth_ms(weight_bytes: int, cache_bytes: int, bandwidth: float) -> float:
    """Milliseconds to read weights and cache once, in bytes/s."""
    return (weight_bytes + cache_bytes) / bandwidth * 1e3


def bandwidth_words(weight_bytes: int, cache_bytes: int) -> str:
    return f"{format_bytes(weight_bytes)} weights + {format_bytes(cache_bytes)} cache"


def _of_quoted(flops_per_second: float, roof: Roof) -> str:
    if roof.quoted_flops is None or roof.quoted_flops == roof.peak_flops:
        return ""
    return f", of which {100 * flops_per_second / roof.quoted_flops:.2f} % is reached"


def under_roof(
    kernels: Kernels | None, timing: Timing | None, roof: Roof | None, no_roof: str
) -> Kernels | None:
    """Return the table with shares of the roof, and the ratio to the untraced step."""
    if kernels is None:
        return None
    if kernels.lacks_kernels:
        roof, no_roof = None, "the rows are CPU operators, the roof is the device's"
    kernels = with_roof(kernels, roof, no_roof)
    if timing is None:
        return kernels
    perturbation = kernels.step_ms / timing.step.median_ms
    return msgspec.structs.replace(kernels, perturbation=perturbation)


def nsys_under_roof(
    nsys: Nsys | None, timing: Timing | None, roof: Roof | None, no_roof: str
) -> Nsys | None:
    if nsys is None:
        return None
    kernels = under_roof(nsys.kernels, timing, roof, no_roof)
    return msgspec.structs.replace(nsys, kernels=kernels)


def memory_bound_share(kernels: Kernels) -> float | None:
    """Share of the rows' time that memory bandwidth limits; None if most bounds are unknown."""
    roof = kernels.roof
    all_ns = fsum(row.exclusive_ns for row in kernels.rows)
    bounds = [(row, _row_at_roof(row, roof)) for row in kernels.rows] if roof else []
    known_ns = fsum(row.exclusive_ns for row, best in bounds if best)
    if not all_ns or known_ns < MIN_KNOWN * all_ns:
        return None
    return fsum(row.exclusive_ns for row, best in bounds if best and best[1] == "memory") / all_ns


def group_of(row: KernelRow) -> str:
    return ATTENTION_PRODUCTS if is_product(row) else row.category


def roof_points(kernels: Kernels, *, by_phase: bool = False) -> list[RoofPoint]:
    groups = group_by(kernels.rows, lambda row: (group_of(row), row.phase if by_phase else ""))
    points = [_point(*key, rows, kernels.roof) for key, rows in groups.items()]
    return sorted((point for point in points if point.moved_bytes), key=lambda point: -point.ns)


def _point(label: str, phase: str, rows: Iterable[KernelRow], roof: Roof | None) -> RoofPoint:
    rows = list(rows)
    with_bytes = [row for row in rows if row.moved_bytes is not None]
    known_ns, all_ns = (fsum(row.total_ns for row in group) for group in (with_bytes, rows))
    best = [least for row in with_bytes if roof and (least := _row_at_roof(row, roof))]
    times = {bound: fsum(ns for ns, b in best if b == bound) for bound in ("compute", "memory")}
    return RoofPoint(
        label=label,
        phase=phase,
        ns=known_ns,
        share=fsum(row.share for row in rows),
        known=known_ns / all_ns if all_ns else 0.0,
        flops=fsum(row.flops or 0.0 for row in with_bytes),
        moved_bytes=fsum(row.moved_bytes or 0.0 for row in with_bytes),
        # Without a row's part the sum would be too small.
        at_roof_ns=fsum(times.values()) if len(best) == len(with_bytes) and best else None,
        bound=("memory" if times["memory"] > times["compute"] else "compute") if best else None,
    )
