"""After how many steps compiling has paid for itself."""

from __future__ import annotations

import math

import msgspec

from ..record.record import Record


class BreakEven(msgspec.Struct, frozen=True):
    """A compiled run against the eager run of the same spec, medians of the bare step.

    ``saved_ms`` is eager minus compiled. ``steps_cold`` and ``steps_warm`` are how many
    steps the saving takes to make up for compiling with empty and with full caches. Null
    values have their reason in ``missing``.
    """

    compiled_ms: float | None = None
    eager_ms: float | None = None
    eager_run: str | None = None
    saved_ms: float | None = None
    speed_up: float | None = None
    steps_cold: int | None = None
    steps_warm: int | None = None
    missing: dict[str, str] = {}


def break_even(record: Record, eager: Record | None, how: str) -> BreakEven:
    """Steps = ceil(compile seconds / seconds saved a step), if any are surely saved.

    Args:
        record: A compiled run.
        eager: The run of the same spec without torch.compile, if there is one.
        how: How to get one, told where there is none.
    """
    if record.timing is None or record.compile is None:
        return _never(BreakEven(), "this run has no timing")
    if record.compile.extent == "none":
        return _never(BreakEven(), "nothing ran compiled")
    step = record.timing.step
    if eager is None or eager.timing is None:
        missing = {**_never(BreakEven(), "it takes an eager run").missing, "eager_ms": how}
        return BreakEven(compiled_ms=step.median_ms, missing=missing)
    other = eager.timing.step
    found = BreakEven(
        compiled_ms=step.median_ms,
        eager_ms=other.median_ms,
        eager_run=eager.id,
        saved_ms=other.median_ms - step.median_ms,
        speed_up=other.median_ms / step.median_ms if step.median_ms else None,
    )
    if other.median_ms <= step.median_ms:
        return _never(found, "never: compiled steps are not shorter")
    if other.ci_low_ms <= step.ci_high_ms:
        return _never(found, "the two medians cannot be told apart: their intervals overlap")
    seconds = {"cold": record.compile.cold_seconds, "warm": record.compile.warm_seconds}
    steps = {f"steps_{name}": _steps(value, found.saved_ms) for name, value in seconds.items()}
    missing = {
        f"steps_{name}": record.compile.missing.get(f"{name}_seconds", "it was not measured")
        for name, value in seconds.items()
        if value is None
    }
    return msgspec.structs.replace(found, **steps, missing=missing)


def _steps(seconds: float | None, saved_ms: float | None) -> int | None:
    return None if seconds is None or not saved_ms else math.ceil(seconds * 1e3 / saved_ms)


def _never(found: BreakEven, reason: str) -> BreakEven:
    missing = dict.fromkeys(("steps_cold", "steps_warm"), reason)
    return msgspec.structs.replace(found, missing=missing)
