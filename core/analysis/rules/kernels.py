"""Rules on the kernel table: how far watching moved it, how much it explains."""

from __future__ import annotations

from ...record import Finding, Record
from .rule import Rule

PERTURBATION_LIMIT = 0.10
COVERAGE_LIMIT = 0.98


def tracing_perturbed(record: Record) -> Finding | None:
    """The profiler changed what it looked at."""
    kernels = record.kernels
    if kernels is None or kernels.perturbation is None:
        return None
    change = kernels.perturbation - 1
    if abs(change) <= PERTURBATION_LIMIT:
        return None
    return Finding(
        rule="tracing-perturbed",
        severity="warning",
        verdict=f"Tracing changed the step by {change:+.0%}.",
        why=f"Traced {kernels.step_ms:.4g} ms per step, bare "
        f"{kernels.step_ms / kernels.perturbation:.4g} ms: many small operators cost more to "
        "record than to run, or the machine was not quiet.",
        next="Trust the shares of the table more than its milliseconds.",
        numbers={"perturbation": kernels.perturbation, "limit": PERTURBATION_LIMIT},
    )


def low_coverage(record: Record) -> Finding | None:
    """The kernel table explains too little of the step."""
    kernels = record.kernels
    if kernels is None or kernels.coverage.explained >= COVERAGE_LIMIT:
        return None
    return Finding(
        rule="low-coverage",
        severity="warning",
        verdict=f"The table explains only {kernels.coverage.explained:.1%} of the step.",
        why=f"{kernels.coverage.unlinked} of {kernels.coverage.kernels} kernels have no recorded "
        "launch; the rest of the gap is in no event.",
        next="Read the unattributed row before you trust a share.",
        numbers={"explained": kernels.coverage.explained},
    )


RULES: tuple[Rule, ...] = (tracing_perturbed, low_coverage)
