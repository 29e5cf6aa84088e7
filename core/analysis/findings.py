"""Verdict / Why / Next: rules over a record, each with an id and the numbers it used."""

from __future__ import annotations

from collections.abc import Callable

from ..machine import threads
from ..quantities import format_bytes
from ..record import Finding, Record

DRIFT_LIMIT = 0.02
PERTURBATION_LIMIT = 0.10
COVERAGE_LIMIT = 0.98
BUSY_CORES_LIMIT = 0.75
FIXED_STEPS_LIMIT = 0.02
PREDICTION_LIMIT = 0.05
SEVERITIES = ("problem", "warning", "note", "good")

Rule = Callable[[Record], Finding | None]


def findings_of(record: Record) -> list[Finding]:
    """What every rule has to say of the record, most severe first."""
    found = [finding for rule in RULES if (finding := rule(record)) is not None]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def ended_early(record: Record) -> Finding | None:
    """A pass that did not finish is the first thing to know."""
    bad = next((one for one in record.passes if one.outcome != "finished"), None)
    if bad is None:
        return None
    following = {
        "oom": "Lower batch or context, or take bf16; the prediction says what fits.",
        "killed": "Look for the kernel's out-of-memory killer, then run again.",
        "hung": "Read the worker's log; the device may need attention (doctor).",
        "cancelled": "Run again when you like; finished passes are kept.",
        "disk-full": "Free space, or move SYSBENCH_HOME, and run again.",
        "cuda-error": "Read the worker's log; run again with CUDA_LAUNCH_BLOCKING=1.",
        "failed": "Read the worker's log, it holds the traceback.",
    }[bad.outcome]
    return Finding(
        rule="ended-early",
        severity="note" if bad.outcome == "cancelled" else "problem",
        verdict=f"The {bad.name} pass ended early: {bad.outcome}.",
        why=bad.detail,
        next=following,
        numbers={"seconds": round(bad.seconds, 1)},
    )


def not_settled(record: Record) -> Finding | None:
    """The median is not known as well as the spec asked for."""
    timing = record.timing
    if timing is None or timing.settled:
        return None
    goal = float(record.spec["until"])
    width = timing.step.half_width
    asked_for_steps = int(record.spec.get("steps", 0)) > 0
    if asked_for_steps and width <= FIXED_STEPS_LIMIT:
        return None
    return Finding(
        rule="not-settled",
        severity="warning" if width > 4 * goal else "note",
        verdict=f"The step time did not settle: ±{width:.1%} where ±{goal:.1%} was asked for.",
        why=f"{timing.stop_reason}; {timing.step.n} steps spread over an IQR of "
        f"{timing.step.iqr_ms:.3g} ms around {timing.step.median_ms:.4g} ms.",
        next="Quiet the machine or measure longer; compare with other runs by interval only.",
        numbers={"half_width": width, "until": goal, "n": timing.step.n},
    )


def drifting(record: Record) -> Finding | None:
    """The second half of the samples is slower or faster than the first."""
    timing = record.timing
    if timing is None or timing.step.n < 10:
        return None
    change = timing.step.drift
    noise = timing.step.half_width
    if abs(change) <= max(DRIFT_LIMIT, 2 * noise):
        return None
    word = "slower" if change > 0 else "faster"
    return Finding(
        rule="drifting",
        severity="warning",
        verdict=f"Steps grew {word} while they were measured: {change:+.1%}.",
        why=f"Median of the second half against the first, beyond the noise of ±{noise:.1%}.",
        next="Look at clocks and temperature on the Telemetry tab; warm up longer.",
        numbers={"drift": change, "half_width": noise},
    )


def other_tenants(record: Record) -> Finding | None:
    """Somebody else computed on the device while it was measured."""
    telemetry = record.telemetry
    if telemetry is None or not telemetry.other_processes:
        return None
    names = ", ".join(
        f"{process.get('name') or '?'} (pid {process.get('pid')})"
        for process in telemetry.other_processes[:3]
    )
    count = len(telemetry.other_processes)
    return Finding(
        rule="other-tenants",
        severity="warning",
        verdict=f"{count} other process{'es' if count > 1 else ''} used the device.",
        why=f"Seen while measuring: {names}.",
        next="Measure again when the device is yours alone; do not compare this run.",
        numbers={"processes": count},
    )


def busy_machine(record: Record) -> Finding | None:
    """On the CPU, other work on the host takes processors from the steps."""
    telemetry, count = record.telemetry, threads(record.environment)
    cores = record.environment.get("cpu", {}).get("threads")
    if record.spec["device"] != "cpu" or telemetry is None or not count or not cores:
        return None
    load = telemetry.series.get("host.cpu_percent")
    if load is None:
        return None
    busy = load["median"] / 100 * cores
    if busy <= count + BUSY_CORES_LIMIT:
        return None
    return Finding(
        rule="busy-machine",
        severity="warning",
        verdict=f"Other work kept {busy - count:.1f} more processors busy while it was measured.",
        why=f"{busy:.1f} of {cores} were busy, the run used {count} threads; threads that wait "
        "for each other slow down far more than the share that was taken.",
        next="End the other work and measure again; do not compare this run.",
        numbers={"busy": busy, "threads": count, "cores": cores},
    )


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


def fell_back(record: Record) -> Finding | None:
    """A run labelled compiled that ran eagerly, in whole or in part."""
    compilation = record.compile
    if compilation is None or not compilation.fell_back:
        return None
    return Finding(
        rule="fell-back-to-eager",
        severity="problem",
        verdict="Labelled compiled, but torch.compile fell back to eager.",
        why=f"{compilation.graphs} graphs, {compilation.recompiles} recompiles, "
        f"{sum(compilation.graph_breaks.values())} graph breaks.",
        next="Do not publish this row as compiled; see the Compile block.",
        numbers={"graphs": compilation.graphs, "recompiles": compilation.recompiles},
    )


def all_is_well(record: Record) -> Finding | None:
    """Nothing else was found: say what the number is worth."""
    timing = record.timing
    if timing is None or any(rule(record) is not None for rule in RULES if rule is not all_is_well):
        return None
    return Finding(
        rule="trustworthy",
        severity="good",
        verdict=f"{timing.step.median_ms:.4g} ms per step, known to ±{timing.step.half_width:.2%}.",
        why=f"{timing.step.n} steps after {len(timing.warmup_ms)} of warm-up, drift "
        f"{timing.step.drift:+.2%}, nobody else on the device.",
        next="Change one factor and compare.",
        numbers={"median_ms": timing.step.median_ms, "half_width": timing.step.half_width},
    )


RULES: tuple[Rule, ...] = (
    ended_early,
    fell_back,
    not_settled,
    drifting,
    other_tenants,
    busy_machine,
    tracing_perturbed,
    low_coverage,
    prediction_missed,
    all_is_well,
)
