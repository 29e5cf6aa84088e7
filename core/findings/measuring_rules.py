"""Rules on the course of the run: its end, the precision of its median, disturbances."""

from __future__ import annotations

import re

from sysbench.core.compare.rounds import inside, middle
from sysbench.core.findings.rule_rules import Rule
from sysbench.core.formatting import counted, format_bytes, percent, signed_percent
from sysbench.core.memory.oom import (
    asked_by,
    held,
    out_of_memory,
    place,
    refused,
    what_fits,
)
from sysbench.core.record.environment import device_name, is_simulated, threads
from sysbench.core.record.memory import Oom
from sysbench.core.record.record import Finding, PassRecord, Record, Timing

DRIFT_LIMIT = 0.02
LEAST_CORES = 0.1
"""Cores from which on a finding names a process."""
BUSY_CORES_LIMIT = 0.75
FIXED_STEPS_LIMIT = 0.02
SIGNAL = re.compile(r"\bSIG[A-Z0-9]+\b")
OTHER_END = "Find out who ended it: a person, the scheduler or a limit; then run again."
CRASHED = (
    "A library crashed in the process: the log ends with the Python stack; run again with "
    "CUDA_LAUNCH_BLOCKING=1 to see whether it is the same place."
)
AFTER_SIGNAL = {
    "SIGKILL": "Look for the kernel's out-of-memory killer, then run again.",
    "SIGBUS": "Look for room in /dev/shm and on the disk: a file in memory could not grow; then "
    "run again.",
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"), CRASHED),
}


def null_gpu(record: Record) -> Finding | None:
    """The device is simulated and computes nothing, so no time of the run means anything."""
    if not is_simulated(record.environment):
        return None
    return Finding(
        rule="null-gpu",
        severity="problem",
        verdict="Null GPU: times mean nothing.",
        why=f"{device_name(record.environment)} simulates a card and computes nothing. Memory, "
        "launches and kernel names are real; times, clocks, throughput, MFU, losses and norms "
        "are not.",
        next="Read memory and counts here; measure times on a card.",
        numbers={},
    )


def ended_early(record: Record) -> Finding | None:
    """The first pass that did not finish."""
    unfinished = (passed for passed in record.passes if passed.outcome != "finished")
    bad = next(unfinished, None)
    if bad is None:
        return None
    if bad.outcome == "oom" and (pass_and_oom := out_of_memory(record)) is not None:
        return _ran_out(*pass_and_oom)
    following = {
        "oom": "Lower batch or context, or take bf16; the prediction says what fits.",
        "killed": _after_signal(bad.detail),
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


def _after_signal(detail: str) -> str:
    """What to do about a pass that a signal ended: a crash is not the system's refusal."""
    named = SIGNAL.search(detail)
    return AFTER_SIGNAL.get(named[0] if named else "", OTHER_END)


def _ran_out(bad: PassRecord, oom: Oom) -> Finding:
    """The finding for a pass that ran out of memory, with the details that it recorded."""
    parts = [", ".join(part for part in (asked_by(oom), place(oom)) if part), held(oom)]
    if oom.predicted_peak_bytes is not None:
        parts.append(f"the predicted peak is {format_bytes(oom.predicted_peak_bytes)}")
    fits = what_fits(oom) or "lower batch or context"
    numbers = {
        "requested_bytes": oom.requested_bytes,
        "free_bytes": oom.free_bytes,
        "allocated_bytes": oom.allocated_bytes,
        "capacity_bytes": oom.capacity_bytes,
        "predicted_peak_bytes": oom.predicted_peak_bytes,
        **{f"largest_{fit.key}": fit.largest for fit in oom.would_fit},
    }
    return Finding(
        rule="ended-early",
        severity="problem",
        verdict=f"The {bad.name} pass ran out of memory: {refused(oom)}.",
        why=f"{'; '.join(part for part in parts if part)}.",
        next=f"{fits[0].upper()}{fits[1:]}.",
        numbers={name: count for name, count in numbers.items() if count is not None},
    )


def not_settled(record: Record) -> Finding | None:
    """The median is not known as precisely as the spec requires."""
    timing = record.timing
    if timing is None or timing.settled:
        return None
    goal = float(record.spec["until"])
    step = inside(timing)
    width = step.half_width
    fixed_steps = int(record.spec.get("steps", 0)) > 0
    if fixed_steps and width <= FIXED_STEPS_LIMIT:
        return None
    return Finding(
        rule="not-settled",
        severity="warning" if width > 4 * goal else "note",
        verdict=f"The step time did not settle: ±{percent(width)} "
        f"where ±{percent(goal)} was asked for.",
        why=f"{timing.stop_reason}; {step.n} steps spread over an IQR of "
        f"{step.iqr_ms:.3g} ms around {step.median_ms:.4g} ms{_in_which(timing)}.",
        next="Quiet the machine or measure longer; compare with other runs by rounds (ab, "
        "or run --repeat), never by this interval.",
        numbers={"half_width": width, "until": goal, "n": step.n},
    )


def drifting(record: Record) -> Finding | None:
    """The second half of the samples is slower or faster than the first."""
    timing = record.timing
    if timing is None or (step := inside(timing)).n < 10:
        return None
    change = step.drift
    noise = step.half_width
    if abs(change) <= max(DRIFT_LIMIT, 2 * noise):
        return None
    word = "slower" if change > 0 else "faster"
    return Finding(
        rule="drifting",
        severity="warning",
        verdict=f"Steps grew {word} while they were measured: {signed_percent(change)}.",
        why="Median of the second half against the first, beyond the noise of "
        f"±{percent(noise)}{_in_which(timing)}.",
        next="Look at clocks and temperature on the Telemetry tab; warm up longer.",
        numbers={"drift": change, "half_width": noise},
    )


def _in_which(timing: Timing) -> str:
    """The round that a figure is of, where there are several."""
    standing = middle(timing.rounds)
    return "" if standing is None else f", in round {standing.index}"


def lost_rounds(record: Record) -> Finding | None:
    """Rounds that were measured, or begun, and do not count."""
    rounds = record.timing.rounds if record.timing else []
    lost = [one for one in rounds if not one.counts]
    if not lost:
        return None
    reasons = [f"round {one.index}: {one.disturbed or one.outcome}" for one in lost]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return Finding(
        rule="lost-rounds",
        severity="note" if len(lost) < len(rounds) else "warning",
        verdict=f"{len(lost)} of {counted(len(rounds), 'round')} "
        f"{'does' if len(lost) == 1 else 'do'} not count.",
        why=f"{'; '.join(reasons[:3])}{more}.",
        next="Look at the rounds in the timing section; measure as many again as you need.",
        numbers={"lost": len(lost), "rounds": len(rounds)},
    )


def other_tenants(record: Record) -> Finding | None:
    """Other processes used the device during the measurement."""
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
    if record.distributed is not None:
        return None  # threads that move data between ranks belong to the run
    load = telemetry.series.get("host.cpu_percent")
    if load is None:
        return None
    busy = load["median"] / 100 * cores
    if busy <= count + BUSY_CORES_LIMIT:
        return None
    timed = record.pass_named("timing")
    beside = timed.neighbours if timed is not None else []
    names = ", ".join(f"{one.name} {one.cores:.1f}" for one in beside if one.cores >= LEAST_CORES)
    named = f" Busiest beside it, in cores from the warm-up on: {names}." if names else ""
    return Finding(
        rule="busy-machine",
        severity="warning",
        verdict=f"Other work kept {busy - count:.1f} more processors busy while it was measured.",
        why=f"{busy:.1f} of {cores} were busy, the run used {counted(count, 'thread')}; threads "
        f"that wait for each other slow down far more than the share that was taken.{named}",
        next="End the other work and measure again; do not compare this run.",
        numbers={"busy": busy, "threads": count, "cores": cores},
    )


RULES: tuple[Rule, ...] = (
    *(null_gpu, ended_early, not_settled, drifting, lost_rounds),
    *(other_tenants, busy_machine),
)
