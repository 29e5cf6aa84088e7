"""The three clocks of an nsys export: wall, GPU span, GPU busy; and of each device its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedFileError
from ..record.nsys import Clocks, NsysDevice
from .kernels.classify import classify
from .nsys.events import MOST_DEVICES, Events, Work, joined
from .trace.events import Kind
from .trace.intervals import Cover

Flags = NDArray[np.bool_]


def devices_of(events: Events, models: dict[int, str]) -> list[NsysDevice]:
    """Every device that ran something, by its number.

    Args:
        events: What ran.
        models: What the devices are called, by their number.

    Raises:
        DamagedFileError: More devices than a machine can have.
    """
    work = joined([events.work, events.graphs])
    numbers = np.unique(work.device).tolist()
    if len(numbers) > MOST_DEVICES:
        raise DamagedFileError(f"the export has work on {len(numbers)} devices")
    communicates = _communicates(events.names, work)
    devices = []
    for number in numbers:
        here = work.device == number
        kernel = here & (work.kind == Kind.KERNEL)
        computes = _cover(work, kernel & ~communicates)
        busy = _cover(work, kernel)
        devices.append(
            NsysDevice(
                device=number,
                name=models.get(number),
                kernels=int(kernel.sum()),
                copies=int(here.sum() - kernel.sum()),
                span_ns=_span(work, kernel),
                busy_ns=busy.total,
                summed_ns=int((work.end - work.start)[kernel].sum()),
                busy_with_copies_ns=_cover(work, here).total,
                communication_ns=_cover(work, kernel & communicates).total,
                exposed_communication_ns=busy.total - computes.total,
            )
        )
    return devices


def clocks_of(events: Events, devices: list[NsysDevice]) -> Clocks:
    """The clocks of the export: those of the GPU are of its busiest device."""
    parts = (events.work.end, events.graphs.end, events.calls.end, events.ranges.end)
    ends = [int(part.max()) for part in parts if len(part)]
    busiest = max(
        (one for one in devices if one.kernels), key=lambda one: one.busy_ns, default=None
    )
    return Clocks(
        wall_ns=max(ends, default=None),
        span_ns=busiest.span_ns if busiest else None,
        busy_ns=busiest.busy_ns if busiest else None,
    )


def _communicates(names: list[str], work: Work) -> Flags:
    used, index = np.unique(work.name, return_inverse=True)
    flags = [classify(names[name]) == "communication" for name in used.tolist()]
    return np.array(flags, dtype=bool)[index]


def _cover(work: Work, chosen: Flags) -> Cover:
    return Cover(work.start[chosen], work.end[chosen])


def _span(work: Work, chosen: Flags) -> int:
    if not chosen.any():
        return 0
    return int(work.end[chosen].max() - work.start[chosen].min())
