"""The roof of a foreign trace: device from the file, precision from the names of kernels."""

from __future__ import annotations

from math import fsum

import msgspec

from sysbench.core.formatting import percent
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.machine.peaks import REMEDY, Peak, roof_of
from sysbench.core.record.record import Kernels
from sysbench.core.trace.expectations import precision_from_kernel_names
from sysbench.core.trace.operators import COUNTED_CATEGORIES
from sysbench.core.trace.roofline import with_roof

MOSTLY = 0.95
"""Part of the time of products whose FLOPs must be known, or the table says how much it is."""
MOST_OF_ROOF = 1.02
"""Part of the roof up to which a row is not remarked: clocks and data sheets are rounded."""


def under_roof(kernels: Kernels, device: str | None, given: Peak | None = None) -> Kernels:
    """The table with each row's part of the roof; without a roof the reason is kept.

    Args:
        kernels: Of a foreign file.
        device: Driver's name of the table's device.
        given: Takes precedence over the table of GPUs.
    """
    on_device = kernels.source == "kernels"
    precision = precision_from_kernel_names(kernels)
    if on_device and device and precision is None and given is None:
        reason = (
            f"the names of the kernels do not give the precision, and so not the peak: {REMEDY}"
        )
        return with_roof(kernels, None, reason)
    environment = {"device": {"name": device}}
    kind = "cuda" if on_device else "cpu"
    name = precision.name if precision else ""
    peak_key = precision.peak_key if precision else ""
    return with_roof(kernels, *roof_of(kind, name, peak_key, environment, given))


def with_known_share(kernels: Kernels) -> Kernels:
    """The table with what its FLOPs leave out, and what is above the roof, where that is much.

    A replay of a graph has no operators and so no shapes; the peak may be of another variant of
    the card, and bytes that stayed in a cache come faster than memory gives them.
    """
    reasons = {}
    products = [row for row in kernels.rows if row.category in COUNTED_CATEGORIES]
    whole_ns = fsum(row.exclusive_ns for row in products)
    known_ns = fsum(row.exclusive_ns for row in products if row.flops is not None)
    if kernels.counted_flops is not None and known_ns < MOSTLY * whole_ns:
        reasons["flops.share"] = (
            f"FLOPs are known for {percent(known_ns / whole_ns)} of the time of products and "
            "attention: their sums leave out the rest"
        )
        if kernels.coverage.graph_kernels and "capture" not in kernels.missing:
            reasons["flops.share"] += " (--capture FILE has those of graph replays)"
    above = [row.of_roof for row in kernels.rows if row.of_roof and row.of_roof > MOST_OF_ROOF]
    if above:
        rows = "row reaches more" if len(above) == 1 else "rows reach more"
        reasons["of_roof"] = (
            f"{len(above)} {rows}, up to {percent(max(above), 0)} of the roof: bytes "
            "came from a cache, or the peak is of another card (--peak)"
        )
    return msgspec.structs.replace(kernels, missing=kernels.missing | reasons)


def under_peak(inspection: Inspection, given: Peak) -> Inspection:
    """The inspection with its kernels against the roof that was given."""
    if inspection.kernels is None:
        return inspection
    kernels = under_roof(inspection.kernels, inspection.device, given)
    return msgspec.structs.replace(inspection, kernels=kernels)
