"""Words for what keeps a GPU's clock below its maximum, and which of them hold a workload back."""

from __future__ import annotations

from collections.abc import Iterable

STATES = ("idle", "display clocks")
"""Reasons that tell a state of the GPU: it lowers its clock by itself where nothing runs, and
follows the display where one is attached (GpuIdle and DisplayClockSetting of
nvmlClocksEventReasons)."""


def holding(reasons: Iterable[str]) -> list[str]:
    """The reasons that hold the clock of a workload down, each once in the order seen."""
    return [reason for reason in dict.fromkeys(reasons) if reason not in STATES]
