"""How much of the step the kernel tables explain, and how far watching moved the step."""

from __future__ import annotations

from ..analysis.rules.kernels import COVERAGE_LIMIT, PERTURBATION_LIMIT
from ..formatting import percent, signed_percent
from ..record.record import Kernels, Record
from ..tables.cells import decimal

MOVED_MARK = "~"
"""Stands before a time that tracing moved; the screens strike it out as well."""


def explains_too_little(kernels: Kernels) -> bool:
    """Whether less of the step is explained than a table may be read with."""
    return kernels.coverage.explained < COVERAGE_LIMIT


def times_moved(kernels: Kernels) -> bool:
    """Whether tracing changed the step so far that its times are worth nothing."""
    change = 0.0 if kernels.perturbation is None else kernels.perturbation - 1
    return abs(change) > PERTURBATION_LIMIT


def marked(text: str) -> str:
    """A time that tracing moved, told apart where nothing can be struck out."""
    return f"{MOVED_MARK}{text}" if any(map(str.isdigit, text)) else text


def coverage_words(kernels: Kernels) -> list[str]:
    """What the tables explain, and the counts behind it over all traced steps."""
    coverage = kernels.coverage
    words = [f"explains {percent(coverage.explained)} of the {kernels.whole}"]
    if kernels.source == "operators":
        return [*words, "host operators, self time"]
    words.append(f"{coverage.launches:,} launches, {coverage.kernels:,} kernels seen")
    words.append(f"{coverage.dropped:,} dropped")
    if coverage.unlinked:
        words.append(f"launch not recorded for {coverage.unlinked:,}")
    if coverage.graph_kernels:
        words.append(f"{coverage.graph_kernels:,} in CUDA graphs")
    return words


def coverage_warning(kernels: Kernels) -> str:
    """Why the tables must be read with care; empty when they explain enough."""
    if not explains_too_little(kernels):
        return ""
    return (
        f"These tables explain only {percent(kernels.coverage.explained)} of the {kernels.whole} "
        f"({percent(COVERAGE_LIMIT, 0)} is the least to rely on): shares are of what was seen."
    )


def steps_words(record: Record) -> list[str]:
    """The step bare, traced and memory-traced, each beside the bare one."""
    bare = record.timing.step.median_ms if record.timing else None
    words = [] if bare is None else [f"bare {decimal(bare, 2)} ms"]
    for name, label in (("trace", "traced"), ("memory", "memory-traced")):
        one = record.pass_named(name)
        if one is None or not one.step_ms:
            continue
        change = f" ({signed_percent(one.step_ms / bare - 1)})" if bare else ""
        words.append(f"{label} {decimal(one.step_ms, 2)} ms{change}")
    return words


def moved_note(kernels: Kernels) -> str:
    """What a marked time means; empty when times hold."""
    if kernels.perturbation is None or not times_moved(kernels):
        return ""
    return (
        f"{MOVED_MARK} a time of the traced step, which tracing moved by "
        f"{signed_percent(kernels.perturbation - 1)} (limit {percent(PERTURBATION_LIMIT, 0)}): "
        "read the shares, take times from Timing."
    )
