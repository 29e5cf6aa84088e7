"""The samples of a run, as its events bring them, and which device of theirs is measured."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...record.events import ClockMoved, TelemetrySampled
from ...record.record import Telemetry
from ..devices import nvml_index
from .sample import Sample
from .summary import summarise


class SampleLog:
    """All samples so far.

    Attributes:
        samples: In the order they came.
        device_index: The measured device's as NVML counts; None on the CPU, and where NVML cannot
            identify it.
        missing: The reason why they have no summary; else empty.
    """

    def __init__(self, device: str) -> None:
        self.samples: list[Sample] = []
        self.device_index: int | None = None
        self.missing = "no sample was taken"
        self._device = device
        self._clock_moved = False

    def take(self, event: TelemetrySampled) -> str:
        """Add a sample. Returns why what is measured meanwhile is not of the run's device, or
        nothing."""
        sample = msgspec.convert(event.sample, Sample)
        index = event.device_index
        if index is msgspec.UNSET:  # of an older version, which asked its reader's variables
            index = nvml_index(self._device, sample.devices)
        if not self.samples:
            self.device_index = index
        self.samples.append(sample)
        if not self._clock_moved:
            self.missing = ""
        if index in (None, self.device_index) or self.device_index is None:
            return ""
        return f"measured on GPU {index}, earlier rounds on GPU {self.device_index}"

    def move_clock(self, event: ClockMoved) -> str:
        """The times of the samples cannot be compared from here on; returns that in words."""
        moved = f"the clock was set by {event.seconds:+.0f} s, or the machine slept"
        self._clock_moved, self.missing = True, f"{moved}: the samples have no certain place"
        return moved

    def summary(
        self, between: Sequence[tuple[int, int]], own_pids: frozenset[int]
    ) -> Telemetry | None:
        """`summarise` of the samples; None where ``missing`` has a reason."""
        if self.missing:
            return None
        on_cuda = self._device != "cpu"
        return summarise(self.samples, self.device_index, between, own_pids, on_cuda=on_cuda)
