"""Rules on an imported file.

The file has no untraced timing and no spec, so each rule compares sums of the file.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from functools import partial
from math import fsum

from sysbench.core.findings.kernels_rules import IDLE_LIMIT, heavy_category
from sysbench.core.formatting import counted, format_bytes, format_duration, percent, short_path
from sysbench.core.memory.snapshot_reading import Snapshot
from sysbench.core.record.record import Finding, KernelRow, Kernels
from sysbench.core.record.steps import HostRange, MarkedSteps, StepRow
from sysbench.core.trace.idle_causes import (
    BETWEEN,
    HOST_LATE,
    LAUNCH,
    LAUNCHING,
    ON_SYNC,
    SYNC,
    idle_label,
)
from sysbench.core.trace.kernel_names import UNIFIED, short_kernel_name
from sysbench.core.trace.scopes import LOADS_DATA

MAX_EXPOSED_SHARE = 0.10
COPY_LIMIT = 0.20
"""Share of busy time. Copies do not count as computation."""
LOADER_LIMIT = 0.05
SMALL_NS, MANY_CALLS, SMALL_CALLS, SMALL_SHARE = 5_000, 100, 0.5, 0.2
"""Mean time of a small kernel; their least count, share of the calls, and share of the span."""
MIN_CALLS, ODD_SHARE, ODD_OF_WHOLE = 5, 0.5, 0.05
"""Calls of a row, and the share of the row and of the span that one of them exceeds."""

DIRECTIONS = {
    "HtoD": "from the CPU to the GPU",
    "DtoH": "from the GPU to the CPU",
    "DtoD": "within the GPU",
    "PtoP": "between GPUs",
}
COPY_REMEDIES = {
    ("HtoD", "pageable"): "Pin the memory (pin_memory=True) and copy with non_blocking=True.",
    ("HtoD", UNIFIED): "Prefetch these pages (cudaMemPrefetchAsync) before kernels use them.",
    ("DtoH", UNIFIED): "Read these pages on the CPU less often, and prefetch them before.",
    ("HtoD", ""): "Keep this data on the GPU, or copy it on another stream while kernels run.",
    ("DtoH", ""): "Read fewer results back, and less often; copy into pinned memory.",
    ("DtoD", ""): "Avoid contiguous(), cat and clone: write into the target directly.",
}
MAIN_CAUSE_SHARE = 0.5
"""Share of the idle time above which one cause is the reason."""

MIN_CAUSE_SHARE = 0.2
"""Share of the idle time above which a finding names the calls that caused it."""

REMEDIES = {
    HOST_LATE: (
        "mostly waiting for the CPU to launch",
        "Look at the operators and the Python code around the gaps. CUDA graphs, torch.compile and "
        "larger batches need fewer launches.",
    ),
    ON_SYNC: (
        "mostly after a synchronization",
        "Look for .item(), .cpu(), print or a synchronization; read results later.",
    ),
    LAUNCHING: (
        "mostly while the CPU was inside a launch call",
        "A first launch loads the kernel's code: warm up before the profiler starts. A long launch "
        "later waits for a full queue or for memory.",
    ),
    BETWEEN: (
        "mostly between kernels that were already launched",
        "The GPU waited for another stream, a copy or another GPU: see what ends the gaps.",
    ),
}
"""By cause: end of the verdict, next step."""

NO_MAIN_CAUSE = ("for several reasons", "See the idle rows of the kernel table.")

FileRule = Callable[[Kernels], Finding | None]


def findings_of_file(kernels: Kernels) -> list[Finding]:
    """The findings of all rules, the costliest first."""
    findings = [finding for rule in RULES if (finding := rule(kernels)) is not None]
    return sorted(findings, key=lambda finding: -finding.cost)


def findings_of_snapshot(snapshot: Snapshot, device: int) -> list[Finding]:
    """The request that ran out of memory, if the snapshot has one."""
    failed = snapshot.failed_request(device)
    if failed is None:
        return []
    frame = failed.stack[0] if failed.stack else None
    where = f" at {short_path(frame.file)}:{frame.line} {frame.name}" if frame else ""
    of_device = f" on device {device}" if len(snapshot.used_devices) > 1 else ""
    free = "" if failed.free_bytes is None else f"{format_bytes(failed.free_bytes)} free, "
    return [
        Finding(
            rule="file-out-of-memory",
            severity="problem",
            verdict=f"Out of memory{of_device}: {format_bytes(failed.bytes)} requested{where}, "
            f"{free}{format_bytes(failed.allocated_bytes)} allocated.",
            why=f"The allocator had reserved {format_bytes(failed.reserved_bytes)}, of which "
            f"{format_bytes(failed.reserved_bytes - failed.allocated_bytes)} were unused.",
            next="See what was alive at the peak, on the Memory tab or with --section memory.",
            numbers={
                **{"requested_bytes": failed.bytes, "allocated_bytes": failed.allocated_bytes},
                **{"reserved_bytes": failed.reserved_bytes},
                **({} if failed.free_bytes is None else {"free_bytes": failed.free_bytes}),
            },
        )
    ]


def no_kernels(kernels: Kernels) -> Finding | None:
    """An export of nsys without kernels, and the reason."""
    reason = kernels.missing.get("rows")
    if reason is None:
        return None
    return Finding(
        rule="file-no-kernels",
        severity="problem",
        verdict=f"{reason[:1].upper()}{reason[1:]}.",
        why="",
        next="Profile again with nsys profile --trace=cuda,nvtx, until the program has ended.",
        cost=1.0,
    )


def device_idle(kernels: Kernels) -> Finding | None:
    whole_ns = kernels.step_ms * 1e6
    idle_ns = fsum(row.ns for row in kernels.idle)
    if kernels.source != "kernels" or not whole_ns or idle_ns < IDLE_LIMIT * whole_ns:
        return None
    longest = max(kernels.idle, key=lambda row: row.ns)
    reason, remedy = REMEDIES.get(longest.cause, NO_MAIN_CAUSE)
    if longest.ns < MAIN_CAUSE_SHARE * idle_ns:
        reason, remedy = NO_MAIN_CAUSE
    parts = ", ".join(
        f"{idle_label(row.cause)} {row.ns / 1e6:.4g} ms"
        for row in sorted(kernels.idle, key=lambda row: -row.ns)
    )
    return Finding(
        rule="file-device-idle",
        severity="warning",
        verdict=f"The GPU is idle for {percent(idle_ns / whole_ns, 0)} of the {kernels.whole}, "
        f"{reason}.",
        why=f"Of {kernels.step_ms:.4g} ms: {parts}.{_open_annotation(kernels)}"
        f"{_longest_calls(kernels, idle_ns)}{_outside_steps(kernels)} Profiling slows "
        "the CPU, not the kernels: the share may be lower without it.",
        next=remedy,
        numbers={"idle": idle_ns / whole_ns, "cause": longest.cause, "cause_ns": longest.ns},
        # The wait for the loader has a finding of its own.
        cost=(idle_ns - _loader_ns(kernels)) / whole_ns,
    )


def _open_annotation(kernels: Kernels) -> str:
    late_ns = fsum(row.ns for row in kernels.idle if row.cause == HOST_LATE) * kernels.steps
    ranges = kernels.host.annotations if kernels.host else []
    steps = kernels.marked_steps.rows if kernels.marked_steps else []
    around = {name for row in steps for name in (row.name, re.sub(r"\d+", "*", row.name))}
    candidates = [
        row
        for row in ranges
        if row.late_ns >= max(MAIN_CAUSE_SHARE * late_ns, 1) and row.name not in around
    ]
    if not candidates:
        return ""
    narrowest = min(candidates, key=lambda row: row.host_ns)
    return (
        f" {narrowest.late_ns / 1e6:.4g} of {late_ns / 1e6:.4g} ms of the wait for launches lie in "
        f"the annotation {narrowest.name}."
    )


def _longest_calls(kernels: Kernels, idle_ns: float) -> str:
    calls = kernels.host.calls if kernels.host else []
    causes = {row.cause for row in kernels.idle if row.ns >= MIN_CAUSE_SHARE * idle_ns}
    words = ""
    if LAUNCHING in causes and (launches := [row for row in calls if LAUNCH.search(row.name)]):
        longest = max(launches, key=lambda row: row.max_ns)
        words += f" The longest launch call, {longest.name}, took {longest.max_ns / 1e6:.4g} ms."
    if ON_SYNC in causes and (waits := [row for row in calls if SYNC.search(row.name)]):
        longest = max(waits, key=lambda row: row.total_ns)
        words += (
            f" The CPU waited longest in {longest.name}: {longest.total_ns / 1e6:.4g} ms in "
            f"{counted(longest.instances, 'call')}."
        )
    return words


def _outside_steps(kernels: Kernels) -> str:
    marked = kernels.marked_steps
    if marked is None or marked.chosen:
        return ""
    outside_ns = sum(marked.outside.idle.values())
    idle_ns = fsum(row.ns for row in kernels.idle)
    if outside_ns < MAIN_CAUSE_SHARE * idle_ns:
        return ""
    return f" {outside_ns / 1e6:.4g} ms of it lie outside the marked steps (--steps)."


def exposed_communication(kernels: Kernels) -> Finding | None:
    """Communication without overlapping computation takes much of the span."""
    whole_ns = kernels.step_ms * 1e6
    rows = [row for row in kernels.rows if row.category == "communication"]
    odd = _odd_row(kernels)
    one_call_ns = odd.max_ns / kernels.steps if odd in rows and odd else 0.0
    exposed_ns, all_ns = (
        max(0.0, fsum(values) - one_call_ns)
        for values in ((row.exclusive_ns for row in rows), (row.total_ns for row in rows))
    )
    if kernels.source != "kernels" or not whole_ns or exposed_ns < MAX_EXPOSED_SHARE * whole_ns:
        return None
    return Finding(
        rule="file-exposed-communication",
        severity="warning",
        verdict=f"{percent(exposed_ns / whole_ns, 0)} of the {kernels.whole} is exposed "
        "communication.",
        why=f"{exposed_ns / 1e6:.4g} of {all_ns / 1e6:.4g} ms of communication overlap with no "
        "computation. The kernel also runs while a rank waits for another one: one file cannot "
        "separate waiting from transfer.",
        next="Compare the files of all ranks first. Larger buckets, or starting collectives "
        "earlier, increase the overlap.",
        numbers={"exposed": exposed_ns / whole_ns, "limit": MAX_EXPOSED_SHARE},
        cost=exposed_ns / whole_ns,
    )


def copies(kernels: Kernels) -> Finding | None:
    """Copies take much of the time in which the device is busy."""
    busy_ns, whole_ns = kernels.busy_ns * kernels.steps, kernels.step_ms * 1e6 * kernels.steps
    exposed_ns = sum(row.exposed_ns for row in kernels.copies)
    if not kernels.copies or not busy_ns or exposed_ns < COPY_LIMIT * busy_ns:
        return None
    main = max(kernels.copies, key=lambda row: row.exposed_ns)
    way = DIRECTIONS.get(main.direction, main.direction)
    rate = f"{main.gbs:,.1f} GB/s" if main.gbs is not None else ""
    facts = ", ".join(filter(None, (f"{main.memory} memory" if main.memory else "", rate)))
    ranges = kernels.host.annotations if kernels.host else []
    around = [row for row in ranges if row.own_ns >= MAIN_CAUSE_SHARE * exposed_ns]
    where = f" Most are launched in the annotation {around[0].name}." if around else ""
    size = f" of {format_bytes(main.bytes)}" if main.bytes else ""
    return Finding(
        rule="file-copies",
        severity="warning",
        verdict=f"{percent(exposed_ns / busy_ns, 0)} of the GPU's busy time is copies, mostly "
        f"{way}{f' ({facts})' if facts else ''}.",
        why=f"{main.calls:,} calls{size} {way}; kernels take "
        f"{percent(1 - exposed_ns / busy_ns)} of the busy time.{where}",
        next=COPY_REMEDIES.get((main.direction, main.memory))
        or COPY_REMEDIES.get((main.direction, ""), "See --section copies."),
        numbers={"share": exposed_ns / busy_ns, "limit": COPY_LIMIT},
        cost=exposed_ns / whole_ns,
    )


def category_in_file(kernels: Kernels) -> Finding | None:
    """The category out of line, unless it is the copies that have a finding of their own."""
    found = heavy_category(kernels)
    is_known = found is not None and found.numbers["category"] == "copy" and copies(kernels)
    return None if is_known else found


def data_loader(kernels: Kernels) -> Finding | None:
    """The loop waits for the next batch."""
    whole_ns, waiting_ns = kernels.step_ms * 1e6 * kernels.steps, _loader_ns(kernels)
    if not whole_ns or waiting_ns < LOADER_LIMIT * whole_ns:
        return None
    who = "GPU" if kernels.source == "kernels" else "loop"
    rows = _loader_ranges(kernels)
    calls, open_ns = sum(row.calls for row in rows), sum(row.host_ns for row in rows)
    return Finding(
        rule="file-data-loader",
        severity="warning",
        verdict=f"The {who} waits {waiting_ns / 1e6:.4g} of {whole_ns / 1e6:.4g} ms "
        f"({percent(waiting_ns / whole_ns, 0)}) for the data loader.",
        why=f"{counted(calls, 'call')} of {rows[0].name} take {open_ns / 1e6:.4g} ms on the CPU.",
        next="Raise num_workers and prefetch_factor, set pin_memory=True, or move work out of "
        "__getitem__ and collate_fn.",
        numbers={"share": waiting_ns / whole_ns, "limit": LOADER_LIMIT},
        cost=waiting_ns / whole_ns,
    )


def _loader_ranges(kernels: Kernels) -> list[HostRange]:
    ranges = kernels.host.annotations if kernels.host else []
    return [row for row in ranges if row.name.startswith(LOADS_DATA)]


def _loader_ns(kernels: Kernels) -> float:
    """Time that the loop, or an idle device, waits for the data loader."""
    on_device = kernels.source == "kernels"
    return fsum(row.late_ns if on_device else row.host_ns for row in _loader_ranges(kernels))


def small_kernels(kernels: Kernels) -> Finding | None:
    """Most kernels are so short that launching them takes as long as running them."""
    whole_ns = kernels.step_ms * 1e6
    rows = [row for row in kernels.rows if row.category != "copy"]
    small = [row for row in rows if row.mean_ns < SMALL_NS]
    calls, small_calls = fsum(row.calls for row in rows), fsum(row.calls for row in small)
    small_ns = fsum(row.exclusive_ns for row in small)
    if kernels.source != "kernels" or small_calls < max(MANY_CALLS, SMALL_CALLS * calls):
        return None
    if small_ns < SMALL_SHARE * whole_ns:
        return None
    return Finding(
        rule="file-small-kernels",
        severity="note",
        verdict=f"{small_calls:,.0f} of {calls:,.0f} kernels run for less than "
        f"{SMALL_NS / 1e3:.0f} µs; together they take {percent(small_ns / whole_ns, 0)} of the "
        f"{kernels.whole}.",
        why="Kernels this short do not fill a GPU, and a launch takes the CPU about as long.",
        next="Fuse them with torch.compile, use a larger batch, or replay them with CUDA graphs.",
        numbers={"calls": small_calls, "share": small_ns / whole_ns, "limit": SMALL_SHARE},
        cost=small_ns / whole_ns,
    )


def odd_call(kernels: Kernels) -> Finding | None:
    """One call of a kernel takes longer than all its other calls together."""
    row = _odd_row(kernels)
    if row is None:
        return None
    calls, whole_ns = row.calls * kernels.steps, kernels.step_ms * 1e6 * kernels.steps
    rest_ns = (row.total_ns * kernels.steps - row.max_ns) / (calls - 1)
    waits = (
        "A first collective waits until the other ranks reach it."
        if row.category == "communication"
        else "A first call often waits for code to load or for a library to choose a kernel."
    )
    return Finding(
        rule="file-odd-call",
        severity="warning",
        verdict=f"One of {calls:,.0f} calls of {short_kernel_name(row.name)} takes "
        f"{format_duration(row.max_ns)}, {percent(row.max_ns / whole_ns, 0)} of the "
        f"{kernels.whole}; "
        f"the others take {format_duration(rest_ns)} each.",
        why=f"It is {percent(row.max_ns / (row.total_ns * kernels.steps))} of its row. {waits}",
        next="Leave it out: trace later steps, or select steps with --steps.",
        numbers={"call_ns": row.max_ns, "others_ns": rest_ns},
        cost=row.max_ns / whole_ns,
    )


def _odd_row(kernels: Kernels) -> KernelRow | None:
    """The row with the longest call that outweighs all other calls of the row, if it matters."""
    whole_ns = kernels.step_ms * 1e6 * kernels.steps
    odd = [
        row
        for row in kernels.rows
        if row.calls * kernels.steps >= MIN_CALLS
        and row.max_ns > ODD_SHARE * row.total_ns * kernels.steps
        and row.max_ns > ODD_OF_WHOLE * whole_ns
    ]
    return max(odd, key=lambda row: row.max_ns, default=None)


def odd_step(kernels: Kernels) -> Finding | None:
    """A step is much longer or shorter than the others of its kind."""
    marked = kernels.marked_steps
    odd = [row for row in marked.rows if row.is_odd] if marked else []
    if marked is None or not odd or marked.chosen:
        return None
    row = max(odd, key=lambda row: abs(row.ns - _median(marked, row, lambda other: other.ns)))
    median = _median(marked, row, lambda other: other.ns)
    parts: dict[str, Callable[[StepRow], float]] = {
        "exposed communication": lambda row: row.communication_ns,
        "other busy time": lambda row: row.busy_ns - row.communication_ns,
        "unattributed": lambda row: row.unattributed_ns,
        **{cause: partial(_idle, cause) for cause in row.idle},
    }
    change = {name: of(row) - _median(marked, row, of) for name, of in parts.items()}
    main = max(change, key=lambda name: abs(change[name]))
    ratio = row.ns / median if median else 0.0
    change_of_all = f"{percent(abs(ratio - 1), 0)} {'slower' if ratio > 1 else 'faster'}"
    kind = f"{row.kind} " if row.kind else ""
    others = f" {counted(len(odd) - 1, 'more outlier')}." if len(odd) > 1 else ""
    return Finding(
        rule="file-odd-step",
        severity="note",
        verdict=f"Step {row.number} is {change_of_all} than the other {kind}steps.",
        why=f"{row.ns / 1e6:.4g} ms, median {median / 1e6:.4g} ms; the largest difference is "
        f"{main}, {change[main] / 1e6:+.4g} ms.{others}",
        next=f"Show it with --step {row.number}; select the others with --steps.",
        numbers={"step": row.number or 0, "ratio": ratio, "part": main},
    )


def _idle(cause: str, row: StepRow) -> float:
    return row.idle.get(cause, 0)


def _median(marked: MarkedSteps, row: StepRow, of: Callable[[StepRow], float]) -> float:
    return statistics.median(of(other) for other in marked.rows if other.kind == row.kind)


RULES: tuple[FileRule, ...] = (
    *(no_kernels, odd_call, copies, data_loader, device_idle, exposed_communication),
    *(category_in_file, small_kernels, odd_step),
)
