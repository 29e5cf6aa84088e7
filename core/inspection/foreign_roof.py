"""The roof of a foreign trace: device from the file, precision from the names of kernels."""

from __future__ import annotations

import msgspec

from ..analysis.costs.roofline import with_roof
from ..analysis.kernels.expectations import precision_from_kernel_names
from ..machine.peaks import REMEDY, Peak, measured_roof
from ..record.record import Kernels
from .inspection import Inspection


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
    return with_roof(kernels, *measured_roof(kind, name, peak_key, environment, given))


def under_peak(inspection: Inspection, given: Peak) -> Inspection:
    """The inspection with its kernels against the roof that was given."""
    if inspection.kernels is None:
        return inspection
    kernels = under_roof(inspection.kernels, inspection.device, given)
    return msgspec.structs.replace(inspection, kernels=kernels)
