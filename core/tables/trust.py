"""How far a run's numbers can be trusted: coverage, perturbation, prediction error."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from sysbench.core.compare.rounds import counting, inside, middle
from sysbench.core.findings.kernels_rules import COVERAGE_LIMIT, PERTURBATION_LIMIT
from sysbench.core.findings.measuring_rules import sm_clock_words
from sysbench.core.formatting import counted, format_bytes, percent, signed_percent
from sysbench.core.record.memory import RESIDUAL
from sysbench.core.record.record import Kernels, LedgerRow, Memory, Record, Telemetry, Timing
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.spec.own_model import is_own
from sysbench.core.tables.cells import decimal_cell, literal
from sysbench.core.tables.timing_tables import interval_words, throttled_words

PERTURBED_MARK = "~"
"""Prefix of a time perturbed by tracing."""


def is_perturbed(kernels: Kernels) -> bool:
    """Return whether traced and untraced step differ by more than `PERTURBATION_LIMIT`.

    Smaller differences also occur between processes.
    """
    change = 0.0 if kernels.perturbation is None else kernels.perturbation - 1
    return abs(change) > PERTURBATION_LIMIT


def mark_perturbed(text: str) -> str:
    return f"{PERTURBED_MARK}{text}" if any(map(str.isdigit, text)) else text


def coverage_words(kernels: Kernels) -> list[str]:
    """Describe the explained share and the counts that it comes from, over all traced steps."""
    coverage = kernels.coverage
    words = [f"explains {percent(coverage.explained)} of the {kernels.whole}"]
    if kernels.source == "operators":
        return [*words, "CPU operators, self time"]
    words.append(f"{coverage.launches:,} launches, {coverage.kernels:,} kernels seen")
    words.append(f"{coverage.dropped:,} dropped")
    if coverage.unlinked:
        words.append(f"{coverage.unlinked:,} kernels without a launch event")
    if coverage.captured:
        words.append(f"{coverage.captured:,} launches captured into graphs, which replays run")
    if coverage.graph_kernels:
        words.append(f"{coverage.graph_kernels:,} in CUDA graphs")
    return words


def coverage_warning(kernels: Kernels) -> str:
    """Return a warning if the tables explain too little, else empty."""
    coverage = kernels.coverage
    if kernels.source == "kernels" and not coverage.launches and coverage.unlinked:
        return (
            "The file has no launches of the CPU: its kernels have no module, and the causes of "
            "idle time are unknown."
        )
    if coverage.explained >= COVERAGE_LIMIT:
        return ""
    if kernels.lacks_kernels:
        return f"These tables are not of the GPU: {literal(kernels.missing['kernels'])}."
    if coverage.dropped and coverage.dropped == coverage.dropped_fills and not coverage.unlinked:
        were = "fill of memory was" if coverage.dropped == 1 else "fills of memory were"
        return (
            f"{coverage.dropped:,} {were} launched but not recorded; no kernel is missing. "
            f"{percent(1 - coverage.explained)} of the {kernels.whole}, in gaps after such a "
            "launch, counts as unattributed, not as idle."
        )
    return f"{'; '.join(_not_explained(kernels))}."


def _not_explained(kernels: Kernels) -> Iterator[str]:
    """Name the kernels and the time that the tables cannot place."""
    coverage, whole = kernels.coverage, kernels.whole
    whole_ns = kernels.step_ms * 1e6 or 1.0
    unlinked_ns = fsum(row.exclusive_ns for row in kernels.rows if not row.linked)
    if unlinked_ns:
        yield (
            f"{coverage.unlinked:,} of {coverage.kernels:,} kernels "
            f"({percent(unlinked_ns / whole_ns)} of the {whole}) have no launch event: they are in "
            "Table, without a module in Tree"
        )
    if kernels.unattributed_ns:
        yield (
            f"{percent(kernels.unattributed_ns / whole_ns)} of the {whole} follows launches "
            f"without a recorded kernel ({coverage.dropped:,}): it counts as unattributed"
        )


def steps_words(record: Record) -> list[str]:
    """Describe the untraced, traced and memory-traced step, with their changes."""
    bare = record.timing.step.median_ms if record.timing else None
    words = [] if bare is None else [f"untraced {decimal_cell(bare, 2)} ms"]
    for name, label in (("trace", "traced"), ("memory", "memory-traced")):
        pass_record = record.pass_named(name)
        if pass_record is None or not pass_record.step_ms:
            continue
        change = f" ({signed_percent(pass_record.step_ms / bare - 1)})" if bare else ""
        words.append(f"{label} {decimal_cell(pass_record.step_ms, 2)} ms{change}")
    return words


def perturbation_note(kernels: Kernels) -> str:
    """Explain marked times; empty if none are marked."""
    if kernels.perturbation is None or not is_perturbed(kernels):
        return ""
    return (
        f"{PERTURBED_MARK} = time of the traced step, which differs by "
        f"{signed_percent(kernels.perturbation - 1)} from the untraced one "
        f"(limit {percent(PERTURBATION_LIMIT, 0)}): "
        "use the shares; real times are under Timing."
    )


def trust_lines(record: Record) -> list[tuple[str, str]]:
    """Return checks with their results, in reading order."""
    lines: list[tuple[str, str]] = []
    if record.timing:
        lines += _of_timing(record.timing, is_job=record.job is not None)
    bare = record.timing.step.median_ms if record.timing else None
    for pass_record in record.passes:
        if pass_record.name != "timing" and pass_record.step_ms:
            text = f"step {decimal_cell(pass_record.step_ms, 2)} ms"
            if bare:
                text += (
                    f" ({signed_percent(pass_record.step_ms / bare - 1)} against the untraced step)"
                )
            lines.append((f"{pass_record.name} pass", text))
    if record.kernels:
        lines.append(("coverage", f"the table {'; '.join(coverage_words(record.kernels))}"))
    if record.memory:
        lines += _of_memory(record.memory, is_own=is_own(record.spec.get("model")))
    if record.telemetry:
        lines += _of_telemetry(record.telemetry)
    lines += _of_clock(record)
    return lines


def _of_timing(timing: Timing, *, is_job: bool) -> Iterator[tuple[str, str]]:
    step, within = timing.step, inside(timing)
    clock = "CUDA events" if timing.clock == "cuda-events" else "host clock"
    of_what = "steps" if timing.interval_of == "steps" else "rounds"
    low, high = decimal_cell(step.ci_low_ms, 2), decimal_cell(step.ci_high_ms, 2)
    if timing.of_command:
        of_what = "rounds" if timing.rounds else "run"
    yield (
        timing.whole,
        f"{decimal_cell(step.median_ms, 2)} ms ±{percent(step.half_width)}: median of {step.n} "
        f"{of_what}, {interval_words(timing)} {low} to {high} ms, {clock}",
    )
    if len(timing.rounds) > 1:
        yield "rounds", _round_words(timing)
    if timing.phases:
        total = sum(phase.median_ms for phase in timing.phases.values())
        share = total / step.median_ms if step.median_ms else 0.0
        yield (
            "includes",
            f"{' + '.join(timing.phases)}, timed directly; "
            f"their medians add up to {percent(share)} of the step",
        )
    if timing.of_command:
        return
    # A watched command runs to its end, whether its steps agree or not.
    steady = "" if is_job else "settled: " if timing.settled else "not settled: "
    warm = "settled" if timing.warmup_settled else "not settled"
    yield (
        "steady",
        f"{steady}{literal(timing.stop_reason)}; drift {signed_percent(within.drift)}, "
        f"{counted(len(within.outliers), 'outlier')} kept; "
        f"warm-up {warm} after {counted(len(timing.warmup_ms), 'step')}",
    )


def _round_words(timing: Timing) -> str:
    """``4 of 5 count; inside one process ±0.8 % at most; …``."""
    counted_rounds = counting(timing.rounds)
    parts = [f"{len(counted_rounds)} of {len(timing.rounds)} count"]
    if widths := [row.half_width for row in counted_rounds if row.half_width is not None]:
        parts.append(f"inside one process ±{percent(max(widths))} at most")
    if not timing.of_command and (middle_round := middle(timing.rounds)) is not None:
        parts.append(f"first step, warm-up and steadiness are of round {middle_round.index}")
    return "; ".join(parts)


def _of_memory(memory: Memory, *, is_own: bool) -> Iterator[tuple[str, str]]:
    whole = "what was allocated" if memory.is_state else "the peak allocated"
    if memory.residual_bytes is not None:
        whole = "the allocator's counter"
    yield ("ledger", _closing(memory.ledger, memory.peak_allocated_bytes, whole))
    if memory.card and memory.driver_used_bytes:
        counted_by = (
            "what the driver counts" if memory.source == "cuda-snapshot" else "the resident set"
        )
        yield ("card", _closing(memory.card, memory.driver_used_bytes, counted_by))
    if memory.compared_bytes and memory.prediction_error is not None:
        predicted = format_bytes(memory.compared_bytes)
        error = signed_percent(memory.prediction_error)
        method = "dry run" if is_own or memory.predicted_allocated_bytes else "closed form"
        text = f"{method} {predicted}, {error} against the measured peak"
        if memory.library_workspace_bytes and memory.tensor_prediction_error is not None:
            text += f", {signed_percent(memory.tensor_prediction_error)} without library workspace"
        yield ("prediction", text)
    if memory.clock_offset_us is not None:
        off = f"{memory.clock_offset_us:+.1f} µs"
        yield ("clock join", f"the allocator's clock was {off} off; timestamps were corrected")
    if memory.events_dropped:
        yield ("dropped", f"{memory.events_dropped:,} allocation events were lost")


def _closing(rows: list[LedgerRow], total_bytes: int, total_name: str) -> str:
    # The residual closes any sum, so it is excluded.
    sum_bytes = sum(row.bytes for row in rows if row.name != RESIDUAL)
    gap = percent(abs(sum_bytes - total_bytes) / total_bytes if total_bytes else 0.0, 2)
    total = format_bytes(total_bytes)
    return f"rows sum to {format_bytes(sum_bytes)}, {total_name} is {total} (gap {gap})"


def _of_telemetry(telemetry: Telemetry) -> Iterator[tuple[str, str]]:
    if telemetry.other_processes:
        names = ", ".join(
            f"{process.get('name') or '?'} (pid {process.get('pid', '?')})"
            for process in telemetry.other_processes
        )
        yield ("other processes", f"also on the device: {literal(names)}")
    for name, why in telemetry.missing.items():
        if name.startswith("device") and "." not in name:  # the whole device, not one series
            yield ("telemetry", f"no GPU telemetry: {literal(why)}")


def _of_clock(record: Record) -> Iterator[tuple[str, str]]:
    """Describe the SM clock and what limited it."""
    reasons = limiting_reasons(record.telemetry.clock_reasons) if record.telemetry else []
    counted = throttled_words(record.timing) if record.timing else None
    parts = [
        sm_clock_words(record),
        f"limited by: {literal(', '.join(reasons))}" if reasons else "",
        f"share of the measured part by the driver's counters: {counted}" if counted else "",
    ]
    if any(parts):
        yield ("clocks", "; ".join(filter(None, parts)))
