"""What bounds the work of a device: a part of the record."""

from __future__ import annotations

import msgspec


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The two ceilings of a device, and where each is from.

    ``peak_flops`` is dense, in FLOP/s, for matrix products of ``precision``; ``bandwidth`` is
    of the device's memory, in bytes/s, null where nobody says.
    """

    precision: str
    peak_flops: float
    peak_source: str
    bandwidth: float | None = None
    bandwidth_source: str = ""

    @property
    def ridge(self) -> float | None:
        """FLOP/byte from which on the peak binds, not the bandwidth."""
        return self.peak_flops / self.bandwidth if self.bandwidth else None
