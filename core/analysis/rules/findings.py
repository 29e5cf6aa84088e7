"""Verdict / Why / Next: what every rule has to say of a record."""

from __future__ import annotations

from ...formatting import percent, signed_percent
from ...record.record import Finding, Record
from . import compiling, kernels, measuring, memory, ranks, roof
from .rule import Rule

SEVERITIES = ("problem", "warning", "note", "good")
RULES: tuple[Rule, ...] = (
    *measuring.RULES,
    *compiling.RULES,
    *kernels.RULES,
    *roof.RULES,
    *memory.RULES,
    *ranks.RULES,
)


def findings_of(record: Record) -> list[Finding]:
    """What every rule has to say of the record, most severe first."""
    found = [finding for rule in (*RULES, all_is_well) if (finding := rule(record)) is not None]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def all_is_well(record: Record) -> Finding | None:
    """Nothing else was found: say what the number is worth."""
    timing = record.timing
    if timing is None or any(rule(record) is not None for rule in RULES):
        return None
    known = percent(timing.step.half_width, 2)
    return Finding(
        rule="trustworthy",
        severity="good",
        verdict=f"{timing.step.median_ms:.4g} ms per step, known to ±{known}.",
        why=f"{timing.step.n} steps after {len(timing.warmup_ms)} of warm-up, drift "
        f"{signed_percent(timing.step.drift, 2)}, nobody else on the device.",
        next="Change one factor and compare.",
        numbers={"median_ms": timing.step.median_ms, "half_width": timing.step.half_width},
    )
