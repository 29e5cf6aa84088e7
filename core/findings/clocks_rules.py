"""Rule on a GPU clock that the driver limited during the measurement."""

from __future__ import annotations

from sysbench.core.findings.rule_rules import Rule
from sysbench.core.formatting import percent
from sysbench.core.record.record import Finding, Record
from sysbench.core.record.timing import limiting_reasons

MIN_HELD_SHARE = 0.01
STEADY = ("power cap", "application clocks", "sync boost")
"""Reasons that are the same in every run; the others depend on the temperature."""


def clock_held(record: Record) -> Finding | None:
    """The driver limited the clock while the steps were timed."""
    # The driver's counters miss nothing, so samples count only for reasons without a counter.
    timing, telemetry = record.timing, record.telemetry
    counted = (timing.throttled if timing else None) or {}
    held = {reason: share for reason, share in counted.items() if share >= MIN_HELD_SHARE}
    sampled = limiting_reasons(telemetry.clock_reasons) if telemetry else []
    seen = [reason for reason in sampled if reason not in counted]
    if not held and not seen:
        return None
    reasons = [*sorted(held, key=lambda reason: -held[reason]), *seen]
    how_long = f" for {percent(max(held.values()))} of the measured part" if held else ""
    parts = [f"{reason} {percent(held[reason])} (driver counters)" for reason in held]
    parts += [f"{reason} in samples (2 per second)" for reason in seen]
    parts += [text] if (text := sm_clock_words(record)) else []
    steady = all(reason in STEADY for reason in reasons)
    return Finding(
        rule="clock-held",
        severity="note" if steady else "warning",
        verdict=f"The driver limited the GPU clock{how_long}: {', '.join(reasons)}.",
        why=f"{'; '.join(parts)}.",
        next="Compare only with runs at the same clock, or lock it: sudo nvidia-smi -lgc MHZ."
        if steady
        else "Cool the GPU or lock its clock lower, then rerun; exclude this run from comparisons.",
        numbers={f"{reason} share": share for reason, share in held.items()},
    )


def sm_clock_words(record: Record) -> str:
    """``SM clock 1410 to 1980 MHz, median 1965, of 12 samples``; empty without samples."""
    series = record.telemetry.series if record.telemetry else {}
    clocks = [spread for name, spread in series.items() if name.endswith(".sm_clock_mhz")]
    if not clocks:
        return ""
    clock = clocks[0]
    return (
        f"SM clock {clock['min']:.0f} to {clock['max']:.0f} MHz, median {clock['median']:.0f}, "
        f"of {clock['n']:.0f} samples"
    )


RULES: tuple[Rule, ...] = (clock_held,)
