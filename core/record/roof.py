"""The roof of a device, peak FLOP/s and bandwidth: a part of the record."""

from __future__ import annotations

import msgspec


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The two ceilings of a device, with the source of each.

    ``peak_flops`` is dense, in FLOP/s, for matrix products of ``precision``; ``bandwidth`` is
    of the device's memory, in bytes/s, null where no source has it.
    """

    precision: str
    peak_flops: float
    peak_source: str
    bandwidth: float | None = None
    bandwidth_source: str = ""

    @property
    def ridge(self) -> float | None:
        """Arithmetic intensity, in FLOP/byte, above which the peak is the bound."""
        return self.peak_flops / self.bandwidth if self.bandwidth else None
