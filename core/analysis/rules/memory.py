"""Rules on memory: predicted against measured, what was resident and why."""

from __future__ import annotations

from ...quantities import format_bytes
from ...record import Finding, Record
from .rule import Rule

PREDICTION_LIMIT = 0.05


def prediction_missed(record: Record) -> Finding | None:
    """The memory prediction was wrong by more than it should be."""
    memory = record.memory
    if memory is None or not memory.predicted_peak_bytes:
        return None
    error = memory.predicted_peak_bytes / memory.peak_allocated_bytes - 1
    if abs(error) <= PREDICTION_LIMIT:
        return None
    return Finding(
        rule="prediction-missed",
        severity="note",
        verdict=f"The peak was predicted {error:+.1%} off.",
        why=f"Predicted {format_bytes(memory.predicted_peak_bytes)}, measured "
        f"{format_bytes(memory.peak_allocated_bytes)} in {memory.peak_phase}.",
        next="Compare the two ledgers on the Memory tab.",
        numbers={"error": error},
    )


RULES: tuple[Rule, ...] = (prediction_missed,)
