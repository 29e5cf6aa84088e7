"""The roof of a device, peak FLOP/s and bandwidth: a part of the record."""

from __future__ import annotations

import msgspec


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The two ceilings of a device, with the source of each.

    ``peak_flops`` is dense, in FLOP/s, for matrix products of ``precision``; ``bandwidth`` is
    of the device's memory, in bytes/s, null where no source has it. Where these were measured,
    the two ``quoted`` figures are the vendor's; null where there are none. ``attention_flops`` is
    the peak for fused attention where that may multiply in another format: in ``fp32`` the
    memory-efficient kernel takes three TF32 products for one, so that only the TF32 peak is sure to
    be above it. Null where it is the same peak.
    """

    precision: str
    peak_flops: float
    peak_source: str
    bandwidth: float | None = None
    bandwidth_source: str = ""
    quoted_flops: float | None = None
    quoted_bandwidth: float | None = None
    attention_flops: float | None = None

    @property
    def upper_flops(self) -> float:
        """FLOP/s that nothing can exceed: the vendor's figure, where there is one."""
        return max(self.peak_flops, self.quoted_flops or 0.0)

    def of(self, category: str) -> Roof:
        """The roof of a kernel of that category."""
        if category != "attention" or self.attention_flops is None:
            return self
        source = f"{self.peak_source}; fused attention by the TF32 peak"
        return msgspec.structs.replace(
            self,
            peak_flops=self.attention_flops,
            peak_source=source,
            quoted_flops=None,
            attention_flops=None,
        )

    @property
    def ridge(self) -> float | None:
        """Arithmetic intensity, in FLOP/byte, above which the peak is the bound."""
        return self.peak_flops / self.bandwidth if self.bandwidth else None
