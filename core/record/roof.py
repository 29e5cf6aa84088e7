"""The roof of a device, peak FLOP/s and bandwidth: a part of the record."""

from __future__ import annotations

import msgspec


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The two ceilings of a device, with the source of each.

    ``peak_flops`` is dense, in FLOP/s, for matrix products of ``precision``; ``bandwidth`` is
    of the device's memory, in bytes/s, null where no source has it. Where these were measured,
    the two ``quoted`` figures are the vendor's; null where there are none.
    """

    precision: str
    peak_flops: float
    peak_source: str
    bandwidth: float | None = None
    bandwidth_source: str = ""
    quoted_flops: float | None = None
    quoted_bandwidth: float | None = None

    @property
    def upper_flops(self) -> float:
        """FLOP/s that nothing can exceed: the vendor's figure, where there is one."""
        return max(self.peak_flops, self.quoted_flops or 0.0)

    @property
    def ridge(self) -> float | None:
        """Arithmetic intensity, in FLOP/byte, above which the peak is the bound."""
        return self.peak_flops / self.bandwidth if self.bandwidth else None
