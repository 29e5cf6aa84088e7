"""Why the numbers of a record can be believed, or not: one line per check."""

from __future__ import annotations

from collections.abc import Iterator

from ..export.kernel_trust import coverage_words
from ..formatting import format_bytes, percent, signed_percent
from ..record.record import Kernels, LedgerRow, Memory, Record, Telemetry, Timing
from .cells import decimal, literal


def trust_lines(record: Record) -> list[tuple[str, str]]:
    """Pairs of what is checked and what was found, in reading order."""
    lines: list[tuple[str, str]] = []
    if record.timing:
        lines += _of_timing(record.timing)
    bare = record.timing.step.median_ms if record.timing else None
    for one in record.passes:
        if one.name != "timing" and one.step_ms:
            text = f"step {decimal(one.step_ms, 2)} ms"
            if bare:
                text += f" ({signed_percent(one.step_ms / bare - 1)} over the bare step)"
            lines.append((f"{one.name} pass", text))
    if record.kernels:
        lines += _of_kernels(record.kernels)
    if record.memory:
        lines += _of_memory(record.memory)
    if record.telemetry:
        lines += _of_telemetry(record.telemetry)
    return lines


def _of_timing(timing: Timing) -> Iterator[tuple[str, str]]:
    step = timing.step
    clock = "CUDA events" if timing.clock == "cuda-events" else "host clock"
    yield (
        "step",
        f"{decimal(step.median_ms, 2)} ms ±{percent(step.half_width)}: median of {step.n} steps, "
        f"95 % interval {decimal(step.ci_low_ms, 2)} to {decimal(step.ci_high_ms, 2)} ms, {clock}",
    )
    if timing.phases:
        total = sum(phase.median_ms for phase in timing.phases.values())
        share = total / step.median_ms if step.median_ms else 0.0
        yield (
            "includes",
            f"{' + '.join(timing.phases)}, timed directly; "
            f"their medians sum to {percent(share)} of it",
        )
    steady = "settled" if timing.settled else "not settled"
    warm = "settled" if timing.warmup_settled else "not settled"
    yield (
        "steady",
        f"{steady}: {literal(timing.stop_reason)}; drift {signed_percent(step.drift)}, "
        f"{len(step.outliers)} outliers kept; warm-up {warm} after {len(timing.warmup_ms)} steps",
    )


def _of_kernels(kernels: Kernels) -> Iterator[tuple[str, str]]:
    yield ("coverage", f"the table {'; '.join(coverage_words(kernels))}")


def _of_memory(memory: Memory) -> Iterator[tuple[str, str]]:
    yield ("ledger", _closing(memory.ledger, memory.peak_allocated_bytes, "the peak allocated"))
    if memory.card and memory.driver_used_bytes:
        whole = "what the driver counts" if memory.source == "cuda-snapshot" else "the resident set"
        yield ("card", _closing(memory.card, memory.driver_used_bytes, whole))
    if memory.predicted_peak_bytes:
        off = memory.peak_allocated_bytes / memory.predicted_peak_bytes - 1
        predicted = format_bytes(memory.predicted_peak_bytes)
        yield ("prediction", f"closed form {predicted}, measured {signed_percent(off)}")
    if memory.events_dropped:
        yield ("dropped", f"{memory.events_dropped:,} allocation events fell out of the ring")


def _closing(rows: list[LedgerRow], whole: int, what: str) -> str:
    total = sum(row.bytes for row in rows)
    gap = percent(abs(total - whole) / whole if whole else 0.0, 2)
    return f"rows sum to {format_bytes(total)}, {what} is {format_bytes(whole)} (gap {gap})"


def _of_telemetry(telemetry: Telemetry) -> Iterator[tuple[str, str]]:
    if telemetry.other_processes:
        names = ", ".join(
            f"{one.get('name') or '?'} (pid {one.get('pid', '?')})"
            for one in telemetry.other_processes
        )
        yield ("neighbours", f"also on the device: {literal(names)}")
    if telemetry.clock_reasons:
        yield ("clocks", f"held by: {literal(', '.join(telemetry.clock_reasons))}")
