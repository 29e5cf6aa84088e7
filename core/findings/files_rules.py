"""Rules on an imported file.

The file has no untraced timing and no spec, so each rule compares sums of the file.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from functools import partial
from math import fsum

from sysbench.core.findings.kernels_rules import FILE_REMEDIES, IDLE_LIMIT, heavy_category
from sysbench.core.formatting import counted, format_bytes, format_duration, percent
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.record.record import Finding, KernelRow, Kernels
from sysbench.core.record.steps import HostRange, StepRow
from sysbench.core.trace.classify import (
    BETWEEN,
    HOST_LATE,
    LAUNCH,
    LAUNCHING,
    ON_SYNC,
    SYNC,
    UNKNOWN,
    idle_label,
)
from sysbench.core.trace.kernel_names import UNIFIED, short_kernel_name
from sysbench.core.trace.scopes import LOADS_DATA, loads_data

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
MAX_LOST_SHARE = 0.01
"""Share of the launches; a trace often ends between a launch and its kernel."""
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
        "mostly while the CPU waited in a synchronization",
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
    UNKNOWN: (
        "mostly before kernels whose launch is not recorded",
        "Record the CPU, too (ProfilerActivity.CPU): its calls show why the GPU waits.",
    ),
}
"""By cause: end of the verdict, next step."""
LOADER_REMEDY = (
    "Raise num_workers and prefetch_factor, set pin_memory=True, or move work out of __getitem__ "
    "and collate_fn."
)
MAX_LAUNCH_NS = 20_000
"""Mean idle time per launch call up to which the calls are merely many, not slow."""
MAX_AROUND_SHARE = 0.9
"""Share of the span above which an open annotation explains nothing."""
NO_MAIN_CAUSE = ("for several reasons", "See the idle rows of the kernel table.")

LOADER_RULE = "file-data-loader"
FileRule = Callable[[Kernels], Finding | None]


def findings_of_file(kernels: Kernels, ranks: Ranks | None = None) -> list[Finding]:
    """The findings of all rules, the costliest first, then those of the file's ranks."""
    rules: list[FileRule] = [*RULES, partial(exposed_communication, ranks=ranks)]
    findings = [finding for rule in rules if (finding := rule(kernels)) is not None]
    findings.sort(key=lambda finding: -finding.cost)
    return [*findings, *(ranks.findings if ranks else ())]


def no_rows(kernels: Kernels) -> Finding | None:
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
    causes = _causes(kernels)
    cause = max(causes, key=lambda name: causes[name])
    reason, remedy = REMEDIES.get(cause, NO_MAIN_CAUSE)
    if causes[cause] < MAIN_CAUSE_SHARE * idle_ns:
        reason, remedy = NO_MAIN_CAUSE
    elif cause == HOST_LATE and _loader_ns(kernels) >= MAIN_CAUSE_SHARE * _late_ns(kernels):
        reason, remedy = "mostly waiting for the data loader", LOADER_REMEDY
    parts = ", ".join(
        f"{idle_label(row.cause)} {_ms(row.ns)} ms"
        for row in sorted(kernels.idle, key=lambda row: -row.ns)
    )
    return Finding(
        rule="file-device-idle",
        severity="warning",
        verdict=f"The GPU is idle for {percent(idle_ns / whole_ns, 0)} of the {kernels.whole}, "
        f"{reason}.",
        why=f"Of {_ms(kernels.step_ms * 1e6)} ms: {parts}.{_open_annotation(kernels)}"
        f"{_longest_calls(kernels, idle_ns)}{_outside_steps(kernels)} Profiling slows "
        "the CPU, not the kernels: the share may be lower without it.",
        next=remedy,
        numbers={"idle": idle_ns / whole_ns, "cause": cause, "cause_ns": causes[cause]},
        # The wait for the loader has a finding of its own.
        cost=(idle_ns - _loader_ns(kernels)) / whole_ns,
    )


def _ms(ns: float) -> str:
    """Milliseconds with four digits, never in exponent form above one."""
    return f"{ns / 1e6:,.0f}" if ns >= 1e10 else f"{ns / 1e6:.4g}"


def _causes(kernels: Kernels) -> dict[str, float]:
    """Nanoseconds by cause; many calls of the usual length mean that the host is late."""
    causes = {row.cause: row.ns for row in kernels.idle}
    late_ns, launching_ns = causes.get(HOST_LATE, 0.0), causes.get(LAUNCHING, 0.0)
    if launching_ns > late_ns and not _has_slow_launches(kernels):
        causes |= {HOST_LATE: late_ns + launching_ns, LAUNCHING: 0.0}
    return causes


def _has_slow_launches(kernels: Kernels) -> bool:
    launching_ns = fsum(row.ns for row in kernels.idle if row.cause == LAUNCHING)
    return launching_ns * kernels.steps > MAX_LAUNCH_NS * kernels.coverage.launches


def _late_ns(kernels: Kernels) -> float:
    return fsum(row.ns for row in kernels.idle if row.cause == HOST_LATE) * kernels.steps


def _open_annotation(kernels: Kernels) -> str:
    late_ns, whole_ns = _late_ns(kernels), kernels.step_ms * 1e6 * kernels.steps
    ranges = kernels.host.annotations if kernels.host else []
    steps = kernels.marked_steps.rows if kernels.marked_steps else []
    around = {name for row in steps for name in (row.name, re.sub(r"\d+", "*", row.name))}
    candidates = [
        row
        for row in ranges
        if row.own_late_ns >= max(MIN_CAUSE_SHARE * late_ns, 1)
        and row.host_ns < MAX_AROUND_SHARE * whole_ns
        and row.name not in around
    ]
    if not candidates:
        return ""
    main = max(candidates, key=lambda row: row.own_late_ns)
    return (
        f" {_ms(main.late_ns)} of {_ms(late_ns)} ms of the wait for launches lie in "
        f"the annotation {main.name}."
    )


def _longest_calls(kernels: Kernels, idle_ns: float) -> str:
    calls = kernels.host.calls if kernels.host else []
    causes = {row.cause for row in kernels.idle if row.ns >= MIN_CAUSE_SHARE * idle_ns}
    words = ""
    is_slow = LAUNCHING in causes and _has_slow_launches(kernels)
    if is_slow and (launches := [row for row in calls if LAUNCH.search(row.name)]):
        longest = max(launches, key=lambda row: row.max_ns)
        words += f" The longest launch call, {longest.name}, took {_ms(longest.max_ns)} ms."
    if ON_SYNC in causes and (waits := [row for row in calls if SYNC.search(row.name)]):
        longest = max(waits, key=lambda row: row.total_ns)
        words += (
            f" The CPU waited longest in {longest.name}: {_ms(longest.total_ns)} ms in "
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
    return f" {_ms(outside_ns)} ms of it lie outside the marked steps (--steps)."


def exposed_communication(kernels: Kernels, ranks: Ranks | None = None) -> Finding | None:
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
    rows_of_device = [row for row in ranks.rows if row.device == kernels.device] if ranks else []
    own = rows_of_device[0] if len(rows_of_device) == 1 else None
    if own is not None and own.waiting_ns + own.transfer_ns:
        parts = (
            f"Of {own.exposed_ns / 1e6:.4g} ms on this device {own.waiting_ns / 1e6:.4g} ms wait "
            f"for other ranks, and {own.transfer_ns / 1e6:.4g} ms transfer."
        )
        remedy = "See --section ranks for the rank that is late. "
    else:
        whose = "no other device of this file matches them" if ranks else "this file has one rank"
        parts = (
            "The kernel also runs while a rank waits for another one; "
            f"{whose}, so waiting and transfer are not separated."
        )
        remedy = "Compare the files of all ranks first. "
    return Finding(
        rule="file-exposed-communication",
        severity="warning",
        verdict=f"{percent(exposed_ns / whole_ns, 0)} of the {kernels.whole} is exposed "
        "communication.",
        why=f"{_ms(exposed_ns)} of {_ms(all_ns)} ms of communication overlap with no "
        f"computation. {parts}",
        next=f"{remedy}Larger buckets, or starting collectives earlier, increase the overlap.",
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
    found = heavy_category(kernels, FILE_REMEDIES)
    is_known = found is not None and found.numbers["category"] == "copy" and copies(kernels)
    return None if is_known else found


def data_loader(kernels: Kernels) -> Finding | None:
    """The loop waits for the next batch."""
    whole_ns, waiting_ns = kernels.step_ms * 1e6 * kernels.steps, _loader_ns(kernels)
    steps, of_step = kernels.marked_steps, ""
    if steps is not None and not steps.chosen:
        whole_ns = steps.span_ns
        waiting_ns = fsum(row.loading_ns for row in (*steps.rows, steps.outside))
        loading_ns = statistics.median(row.loading_ns for row in steps.rows)
        step_ns = statistics.median(row.ns for row in steps.rows)
        of_step = f" In the median step it is {loading_ns / 1e6:.4g} of {step_ns / 1e6:.4g} ms."
    if not whole_ns or waiting_ns < LOADER_LIMIT * whole_ns:
        return None
    who = "GPU" if kernels.source == "kernels" else "loop"
    rows = _loader_ranges(kernels)
    calls, open_ns = sum(row.calls for row in rows), sum(row.host_ns for row in rows)
    return Finding(
        rule=LOADER_RULE,
        severity="warning",
        verdict=f"The {who} waits {_ms(waiting_ns)} of {_ms(whole_ns)} ms "
        f"({percent(waiting_ns / whole_ns, 0)}) for the data loader.",
        why=f"{counted(calls, 'call')} of {rows[0].name} take {_ms(open_ns)} ms on the CPU."
        f"{of_step}",
        next=LOADER_REMEDY,
        numbers={"share": waiting_ns / whole_ns, "limit": LOADER_LIMIT},
        cost=waiting_ns / whole_ns,
    )


def _loader_ranges(kernels: Kernels) -> list[HostRange]:
    ranges = kernels.host.annotations if kernels.host else []
    rows = [row for row in ranges if loads_data(row.name)]
    # Ranges of the program contain those of torch.
    return [row for row in rows if row.name.startswith(LOADS_DATA)] or rows


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
    is_many = small_calls >= max(MANY_CALLS, SMALL_CALLS * calls)
    if kernels.source != "kernels" or not is_many or small_ns < SMALL_SHARE * whole_ns:
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
    alike = {
        row.kind: [other for other in marked.rows if other.kind == row.kind and not other.is_empty]
        for row in odd
    }
    medians = {kind: statistics.median(row.ns for row in rows) for kind, rows in alike.items()}
    row = max(odd, key=lambda row: abs(row.ns - medians[row.kind]))
    median, others = medians[row.kind], [_parts(other) for other in alike[row.kind]]
    change = {
        name: ns - statistics.median(other.get(name, 0) for other in others)
        for name, ns in _parts(row).items()
    }
    main = max(change, key=lambda name: abs(change[name]))
    ratio = row.ns / median
    change_of_all = f"{percent(abs(ratio - 1), 0)} {'slower' if ratio > 1 else 'faster'}"
    kind = f"{row.kind} " if row.kind else ""
    more = f" {counted(len(odd) - 1, 'more outlier')}." if len(odd) > 1 else ""
    return Finding(
        rule="file-odd-step",
        severity="note",
        verdict=f"Step {row.number} is {change_of_all} than the other {kind}steps.",
        why=f"{_ms(row.ns)} ms, median {_ms(median)} ms; the largest difference is "
        f"{main}, {change[main] / 1e6:+.4g} ms.{more}",
        next=f"Show it with --step {row.number}; select the others with --steps.",
        numbers={"step": row.number or 0, "ratio": ratio, "part": main},
    )


def _parts(row: StepRow) -> dict[str, float]:
    """Nanoseconds of a step by what it does; idle time by its cause."""
    return {
        "exposed communication": row.communication_ns,
        "other busy time": row.busy_ns - row.communication_ns,
        "unattributed": row.unattributed_ns,
        **row.idle,
    }


def empty_steps(kernels: Kernels) -> Finding | None:
    """Marked steps in which the device ran nothing."""
    marked = kernels.marked_steps
    empty = [row for row in marked.rows if row.is_empty] if marked else []
    if marked is None or not empty or marked.chosen or marked.clock != "device":
        return None
    count, share = len(marked.rows), len(empty) / len(marked.rows)
    first = next((row for row in marked.rows if not row.is_empty), None)
    return Finding(
        rule="file-empty-steps",
        severity="warning" if share >= MAIN_CAUSE_SHARE else "note",
        verdict=f"{len(empty):,} of {counted(count, 'marked step')} "
        f"{'has' if len(empty) == 1 else 'have'} no GPU event.",
        why="Nothing was launched in them, or the profiler did not record it: sums of the file "
        "cover fewer steps than it marks.",
        next="Record again, with fewer steps or without stacks and shapes"
        + (f"; --step {first.number} has GPU events." if first else "."),
        numbers={"empty": len(empty), "steps": count},
        cost=share if share >= MAIN_CAUSE_SHARE else 0.0,
    )


def host_tables_only(kernels: Kernels) -> Finding | None:
    """A device computed, and the tables are of the host."""
    if not kernels.lacks_kernels:
        return None
    why = kernels.missing["kernels"]
    verdict = f"{why[:1].upper()}{why[1:]}."
    return Finding("health-no-kernels", "problem", verdict, "", "")


def lost_kernels(kernels: Kernels) -> Finding | None:
    """Launches whose kernel is not in the file."""
    coverage = kernels.coverage
    lost = coverage.dropped - coverage.dropped_fills
    if kernels.source != "kernels" or lost < max(1, MAX_LOST_SHARE * coverage.launches):
        return None
    return Finding(
        rule="health-lost-kernels",
        severity="warning",
        verdict=f"{lost:,} of {coverage.launches:,} launches have no kernel in the file: "
        "the tables lack their time.",
        why=f"Gaps after such a launch count as unattributed: {_ms(kernels.unattributed_ns)} "
        "ms, not as idle.",
        next="Record fewer steps or less detail: a profiler with full buffers loses events.",
        numbers={"launches": lost, "limit": MAX_LOST_SHARE},
    )


RULES: tuple[FileRule, ...] = (
    *(host_tables_only, no_rows, lost_kernels),
    *(odd_call, copies, data_loader, device_idle),
    *(category_in_file, small_kernels, odd_step, empty_steps),
)
