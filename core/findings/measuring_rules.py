"""Rules on the measurement: its end, precision, disturbances, clock, fallbacks to eager code."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from sysbench.core.compare.rounds import inside, middle
from sysbench.core.formatting import counted, format_bytes, percent, signed_percent
from sysbench.core.memory.oom import asked_by, held, out_of_memory, place, refused, remedy
from sysbench.core.record.environment import (
    changed_settings,
    device_name,
    is_simulated,
    left_out_gpu,
    threads,
)
from sysbench.core.record.memory import Oom
from sysbench.core.record.record import Finding, PassRecord, Record, Timing
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.step_patterns import noisy_period_of

DRIFT_LIMIT = 0.02
MIN_CORES = 0.1
"""CPU cores above which a finding names a process."""
BUSY_CORES_LIMIT = 0.75
FIXED_STEPS_LIMIT = 0.02
ENDINGS = {
    "oom": "The {name} pass ran out of memory.",
    "killed": "The {name} pass was killed.",
    "hung": "The {name} pass stopped responding.",
    "cancelled": "You stopped the {name} pass.",
    "disk-full": "The {name} pass ran out of disk space.",
    "cuda-error": "The {name} pass stopped on a CUDA error.",
    "failed": "The {name} pass failed.",
}
SIGNAL = re.compile(r"\bSIG[A-Z0-9]+\b")
UNKNOWN_SENDER = "Find out what ended it: a person, the scheduler or a limit; then rerun."
CRASHED = (
    "A library crashed: the log ends with the Python stack. Rerun with CUDA_LAUNCH_BLOCKING=1 to "
    "check that it crashes in the same place."
)
AFTER_SIGNAL = {
    "SIGKILL": "Check for the kernel's out-of-memory killer, then rerun.",
    "SIGBUS": "Free space in /dev/shm and on the disk, then rerun: a mapped file could not grow.",
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE"), CRASHED),
}
AFTER_CUDA = {
    r"busy or unavailable|exclusive-thread": "Look for another process on the device, and at its "
    "compute mode (nvidia-smi -q -d COMPUTE): an exclusive or prohibited device refuses this one.",
    r"\bECC\b|NVLink error|hardware error": "The hardware reported a fault: look at `nvidia-smi -q "
    "-d ECC,ROW_REMAPPER` and for Xid in the kernel's log, then reset or replace the device.",
    r"system not yet initialized": "A machine with NVSwitch needs nvidia-fabricmanager of the "
    "driver's version: start it, then rerun.",
    r"driver combination|unknown error": "The driver was updated or lost since it was loaded: "
    "reload its modules or reboot, and restart a container that uses it.",
    r"forward compatibility|stub library": "The libcuda that is loaded is not the driver's: take "
    "cuda-compat and stubs off LD_LIBRARY_PATH.",
    r"driver version is insufficient|is too old|unsupported toolchain|installed CUDA driver": (
        "Update NVIDIA's driver, or install a torch that was built for an older CUDA."
    ),
    r"no kernel image|kernel image is invalid|invalid device function": "This torch has no code "
    "for the GPU: install a build whose torch.cuda.get_arch_list() has its compute capability.",
    r"no CUDA-capable device|invalid device ordinal|no NVIDIA driver": "The device is hidden or "
    "gone: check CUDA_VISIBLE_DEVICES, the container's devices, and nvidia-smi.",
    r"\bMPS\b|device connections": "MPS refused it: read the log of nvidia-cuda-mps-control, and "
    "restart that or rerun without it.",
    r"\bcaptur": "The step does what no CUDA graph records: use a compile mode without graphs.",
}
"""What to do about errors of CUDA that no launch caused, by the driver's words in the detail."""
AFTER_LAUNCH = "Read the worker's log; rerun with CUDA_LAUNCH_BLOCKING=1."

OF_CUDA = {"allow_tf32", "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_deterministic"}
"""Settings of torch without effect on the CPU."""
ROUNDING = {"float32_matmul_precision", "allow_tf32", "cudnn_allow_tf32", "default_dtype"}
ROUNDED_BY = {"fp32", "tf32"}
"""Settings that decide how these precisions round."""
MAX_WALL_RATIO, MIN_OUTSIDE_MS = 1.5, 0.5
"""Wall time over the time of steps, and their difference, that issuing and waiting can explain."""
MIN_HELD_SHARE = 0.01
STEADY = ("power cap", "application clocks", "sync boost")
"""Reasons that are the same in every run; the others depend on the temperature."""
EAGER_VERDICTS = {
    "none": "compile is on, but the whole step ran eagerly.",
    "part": "compile is on, but part of the step ran eagerly.",
}
EAGER_REMEDIES = {
    "disabled": "Unset the variable and rerun.",
    "recompile-limit": "Set compile_dynamic=on, or keep the shapes in the guard constant.",
    "graph-break": "Set compile_fullgraph=true to make graph breaks errors; fix the line shown.",
    "unsupported": "Move this line out of the compiled module, or compile only the blocks.",
    "failed": "Read the log of the timing pass; try another backend to locate the failure.",
    "nothing-compiled": "Read the log of the timing pass.",
}


def null_gpu(record: Record) -> Finding | None:
    """The device is simulated and computes nothing: times mean nothing."""
    if not is_simulated(record.environment):
        return None
    return Finding(
        rule="null-gpu",
        severity="problem",
        verdict="Null GPU: times mean nothing.",
        why=f"{device_name(record.environment)} simulates a GPU and computes nothing. Memory, "
        "launches and kernel names are real; times, clocks, throughput, MFU, losses and norms "
        "are not.",
        next="Use memory and counts only; measure times on a real GPU.",
    )


def gpu_left_out(record: Record) -> Finding | None:
    """The run is on the CPU of a machine with a GPU that no run could use."""
    why = left_out_gpu(record.environment)
    if record.spec["device"] != "cpu" or not why:
        return None
    return Finding(
        rule="gpu-left-out",
        severity="warning",
        verdict="Measured on the CPU: the GPU of this machine could not be used.",
        why=f"{why}.",
        next="`sysbench-tui doctor` has the remedy; rerun with device=cuda.",
    )


def ended_early(record: Record) -> Finding | None:
    bad = next((entry for entry in record.passes if entry.outcome != "finished"), None)
    if bad is None:
        return None
    if bad.outcome == "oom" and (pass_and_oom := out_of_memory(record)) is not None:
        return _ran_out(*pass_and_oom, record.spec)
    signal = SIGNAL.search(bad.detail)
    remedy = {
        "oom": "Lower batch or context, or use bf16; the prediction shows what fits.",
        "killed": AFTER_SIGNAL.get(signal[0] if signal else "", UNKNOWN_SENDER),
        "hung": "Read the worker's log; check the device with doctor.",
        "cancelled": "Rerun at any time; finished passes are saved.",
        "disk-full": "Free disk space or move SYSBENCH_HOME, then rerun.",
        "cuda-error": _after_cuda(bad.detail),
        "failed": "See the traceback in the worker's log.",
    }[bad.outcome]
    return Finding(
        rule="ended-early",
        severity="note" if bad.outcome == "cancelled" else "problem",
        verdict=ENDINGS[bad.outcome].format(name=bad.name),
        why=bad.detail,
        next=remedy,
        numbers={"seconds": round(bad.seconds, 1)},
    )


def _after_cuda(detail: str) -> str:
    for words, advice in AFTER_CUDA.items():
        if re.search(words, detail, re.IGNORECASE):
            return advice
    return AFTER_LAUNCH


def _ran_out(bad: PassRecord, oom: Oom, spec: Mapping[str, Any]) -> Finding:
    parts = [", ".join(part for part in (asked_by(oom), place(oom)) if part), held(oom)]
    if oom.predicted_peak_bytes is not None:
        parts.append(f"the predicted peak is {format_bytes(oom.predicted_peak_bytes)}")
    device = spec.get("device", "cpu")
    where = "" if device == "cpu" else f" on {device}"
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
        verdict=f"The {bad.name} pass ran out of memory{where}: {refused(oom)}.",
        why=f"{'; '.join(part for part in parts if part)}.",
        next=remedy(oom, is_trained=spec.get("step") == "train"),
        numbers={name: count for name, count in numbers.items() if count is not None},
    )


def not_settled(record: Record) -> Finding | None:
    """The median is less precise than the spec requires."""
    timing = record.timing
    if timing is None or timing.settled or noisy_period_of(timing.samples_ms):
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
        verdict=f"Noisy: ±{percent(width)} after {counted(step.n, 'step')} "
        f"(target ±{percent(goal)}).",
        why=f"{timing.stop_reason}; median {step.median_ms:.4g} ms, IQR {step.iqr_ms:.3g} ms"
        f"{_in_round(timing)}.",
        next="Free the machine, or raise the limit that ended it. To compare runs use `ab`.",
        numbers={"half_width": width, "until": goal, "n": step.n},
    )


def settings_changed(record: Record) -> Finding | None:
    """The measured code changed settings of torch that the spec or this program had set."""
    on_cuda = str(record.spec["device"]).startswith("cuda")
    changed = {
        name: values
        for name, values in changed_settings(record.environment).items()
        if on_cuda or name not in OF_CUDA
    }
    if not changed:
        return None
    precision = str(record.spec["precision"])
    keys = ["precision"] * (precision in ROUNDED_BY and not ROUNDING.isdisjoint(changed))
    keys += ["threads"] * ("threads" in changed and bool(record.spec.get("threads")))
    asked = " and ".join(f"{key}={record.spec[key]}" for key in keys)
    rows = [f"{name} was {was}, is {now}" for name, (was, now) in changed.items()]
    return Finding(
        rule="settings-changed",
        severity="problem" if keys else "warning",
        verdict=f"The measured code changed {', '.join(changed)}"
        f"{f', which contradicts {asked}' if keys else ''}.",
        why=f"{'; '.join(rows)}, read after the steps.",
        next=f"Set {' and '.join(keys)} to match the code, or remove these lines from it."
        if keys
        else "Compare only with runs under the same settings.",
        numbers={name: str(now) for name, (_, now) in changed.items()},
    )


def work_outside_steps(record: Record) -> Finding | None:
    """The host waits much longer for the steps than the events around them are apart."""
    timing = record.timing
    if timing is None or timing.clock != "cuda-events" or timing.wall_ms is None:
        return None
    step_ms = statistics.fmean(timing.samples_ms or [timing.step.mean_ms])
    if timing.wall_ms < max(MAX_WALL_RATIO * step_ms, step_ms + MIN_OUTSIDE_MS):
        return None
    return Finding(
        rule="work-outside-steps",
        severity="problem",
        verdict=f"Steps of {step_ms:.4g} ms take {timing.wall_ms:.4g} ms of wall time: part of "
        "their work is not timed.",
        why="CUDA events time the current stream from the first to the last phase; the device is "
        "idle only later. Work on another stream that the step does not wait for is outside.",
        next="Let the current stream wait for the other one before the step ends "
        "(`torch.cuda.current_stream().wait_stream`), or set sync=every-step.",
        numbers={"step_ms": step_ms, "wall_ms": timing.wall_ms},
    )


def steps_repeat(record: Record) -> Finding | None:
    """The times of the steps follow a pattern: they do different work."""
    timing = record.timing
    period = noisy_period_of(timing.samples_ms) if timing else None
    if timing is None or period is None:
        return None
    positions = [statistics.median(timing.samples_ms[start::period]) for start in range(period)]
    low, high = min(positions), max(positions)
    slowest = positions.index(high) + 1
    mean = sum(positions) / period
    return Finding(
        rule="steps-repeat",
        severity="note",
        verdict=f"Steps differ, the same every {period} steps: from {low:.4g} to {high:.4g} ms.",
        why=f"Step {slowest} of each {period} takes the longest. This is no noise: the steps do "
        f"different work, as with inputs of several sizes. A step takes {mean:.4g} ms on average.",
        next="Compare averages over whole periods, not medians; or measure one size at a time.",
        numbers={"period": period, "low_ms": low, "high_ms": high, "mean_ms": mean},
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
    course = "slowed down" if change > 0 else "sped up"
    cause = "throttling" if change > 0 else "warm-up too short"
    return Finding(
        rule="drifting",
        severity="warning",
        verdict=f"Steps {course} by {percent(abs(change), 0)} during the run ({cause}?).",
        why=f"The median of the second half is {signed_percent(change)} off the first; noise "
        f"±{percent(noise)}{_in_round(timing)}.",
        next="Check clocks and temperature on the Telemetry tab; use a longer warm-up.",
        numbers={"drift": change, "half_width": noise},
    )


def _in_round(timing: Timing) -> str:
    median_round = middle(timing.rounds)
    return "" if median_round is None else f", in round {median_round.index}"


def lost_rounds(record: Record) -> Finding | None:
    """Rounds that were started and are excluded; `ended_early` has a run's only process."""
    rounds = record.timing.rounds if record.timing else []
    lost = [entry for entry in rounds if not entry.counts]
    if not lost or (len(rounds) == 1 and not lost[0].disturbed):
        return None
    reasons = [f"round {entry.index}: {entry.disturbed or entry.outcome}" for entry in lost]
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return Finding(
        rule="lost-rounds",
        severity="note" if len(lost) < len(rounds) else "warning",
        verdict=f"{len(lost)} of {counted(len(rounds), 'round')} "
        f"{'was' if len(lost) == 1 else 'were'} excluded.",
        why=f"{'; '.join(reasons[:3])}{more}.",
        next="See Timing; rerun to get more samples.",
        numbers={"lost": len(lost), "rounds": len(rounds)},
    )


def other_tenants(record: Record) -> Finding | None:
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
        next="Rerun when nothing else uses the device; exclude this run from comparisons.",
        numbers={"processes": count},
    )


def busy_machine(record: Record) -> Finding | None:
    """Other processes take CPU cores from a run on the CPU."""
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
    others = timed.neighbours if timed is not None else []
    names = ", ".join(f"{each.name} {each.cores:.1f}" for each in others if each.cores >= MIN_CORES)
    return Finding(
        rule="busy-machine",
        severity="warning",
        verdict=f"Other processes used {busy - count:.1f} CPU cores during the run"
        f"{f': {names}' if names else ''}.",
        why=f"{busy:.1f} of {cores} cores were busy, the run used {counted(count, 'thread')}. One "
        "delayed thread stalls all of them.",
        next="Stop them and rerun; exclude this run from comparisons.",
        numbers={"busy": busy, "threads": count, "cores": cores},
    )


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


def fell_back(record: Record) -> Finding | None:
    """The spec asks for compiled code, but eager code ran."""
    block = record.compile
    if block is None or not block.fell_back:
        return None
    first = block.eager_parts[0] if block.eager_parts else None
    more = f" ({len(block.eager_parts) - 1} more)" if len(block.eager_parts) > 1 else ""
    why = f"{block.graphs} graphs, {block.recompiles} recompiles, "
    why += f"{sum(block.graph_breaks.values())} graph breaks."
    if first is not None:
        place = f" at {first.place}" if first.place else ""
        why = f"{first.cause}{place}: {first.reason}{more}; {why}"
    return Finding(
        rule="fell-back-to-eager",
        severity="problem",
        verdict=EAGER_VERDICTS["part" if block.graphs else "none"],
        why=why,
        next="Do not report this run as compiled."
        + (f" {EAGER_REMEDIES[first.cause]}" if first is not None else ""),
        numbers={"graphs": block.graphs, "recompiles": block.recompiles},
    )


def recompiled(record: Record) -> Finding | None:
    """Shapes or values changed during the run and caused recompilations."""
    block = record.compile
    if block is None or not block.recompiled:
        return None
    first = block.recompiled[0]
    return Finding(
        rule="recompiled",
        severity="note",
        verdict=f"torch.compile recompiled {counted(block.recompiles, 'time')}.",
        why=f"A guard failed in {first.place}: {first.guard}",
        next="Keep the values in the guard constant, or set compile_dynamic=on.",
        numbers={"recompiles": block.recompiles},
    )


RULES = (
    *(null_gpu, gpu_left_out, ended_early, settings_changed, work_outside_steps),
    *(not_settled, steps_repeat, drifting, lost_rounds),
    *(other_tenants, busy_machine, clock_held, fell_back, recompiled),
)
