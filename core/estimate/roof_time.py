"""The least time that a predicted step can take under a device's roof."""

from __future__ import annotations

from ..record.roof import Roof
from .exact import PhasePrediction


def roof_ms(phase: PhasePrediction, roof: Roof) -> float | None:
    """Milliseconds of a phase if every operation ran at its ceiling; None without a bandwidth.

    A matrix product takes its FLOPs at the peak or its operands' bytes at the bandwidth,
    whichever is longer; all else takes its bytes. What a launch costs is not in it, nor what
    caches save, and a product of another dtype than the run's counts at the run's peak.
    """
    if not roof.bandwidth:
        return None
    seconds = phase.moved_bytes / roof.bandwidth
    for one in phase.products:
        seconds += one.count * max(one.flops / roof.peak_flops, one.bytes / roof.bandwidth)
    return 1e3 * seconds
