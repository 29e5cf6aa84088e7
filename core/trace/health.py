"""Check a decoded trace for events that cannot be true.

Each rule looks at one kind. It repairs what can be read in one way only, and returns a finding that
says so; what stays is called doubtful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from sysbench.core.formatting import counted, format_duration
from sysbench.core.record.record import Finding
from sysbench.core.trace.intervals import Times
from sysbench.core.trace.json_repair import AFTER_EVENTS, BEFORE_EVENTS, TEXT_NUMBERS
from sysbench.core.trace.kernel_names import short_kernel_name
from sysbench.core.trace.trace_events import (
    NONE,
    PROCESS_SHIFT,
    DeviceEvents,
    Flags,
    Index,
    Kind,
    Trace,
    names_fit,
)

FAR_NS = 600 * 10**9
"""Ten minutes in which nothing at all is recorded."""
MAX_FAR_SHARE = 0.25
"""Share of all events above which events far from the others are a part of the recording."""
MIN_OVERRUN_NS = 1_000
"""Times of older profilers are rounded to a microsecond."""
MAX_NAMED = 3
BACKWARD = "autograd::engine::evaluate_function:"
RECORDS_EVENT = "EventRecord"
WAITS = ("Stream Wait Event", "Event Sync")

Rule = Callable[[Trace], tuple[Trace, Finding | None]]


def check_health(trace: Trace) -> tuple[Trace, list[Finding]]:
    """Return the repaired trace and what the rules found, the most severe first."""
    findings = []
    for rule in RULES:
        trace, finding = rule(trace)
        findings += [finding] if finding else []
    return trace, sorted(findings, key=lambda finding: finding.severity == "note")


def _finding(
    rule: str,
    severity: Literal["note", "warning", "problem"],
    verdict: str,
    numbers: dict[str, int],
    why: str = "",
    next_step: str = "",
) -> Finding:
    return Finding(rule, severity, verdict, why, next_step, {**numbers})


def repaired_text(trace: Trace) -> tuple[Trace, Finding | None]:
    """The file's JSON has faults that were repaired, or text around the events is left out."""
    found = {what: count for what, count in trace.repairs.items() if count}
    if not found:
        return trace, None
    parts = [
        what if what == TEXT_NUMBERS else f"{what} ({count:,})"
        for what, count in found.items()
        if what not in (BEFORE_EVENTS, AFTER_EVENTS)
    ]
    sentences = [f"Repaired in the file: {', '.join(parts)}."] if parts else []
    sentences += [
        f"{what.capitalize()} is not valid JSON and is left out."
        for what in (BEFORE_EVENTS, AFTER_EVENTS)
        if what in found
    ]
    verdict = " ".join(sentences)
    return trace, _finding("health-repaired-text", "note", verdict, found)


def unread_work(trace: Trace) -> tuple[Trace, Finding | None]:
    """Beside the device work that is read, the file has some of another form."""
    if not trace.unread or not len(trace.device):
        return trace, None
    what = unread_words(trace.unread)
    verdict = f"Device work that is not read is missing from every table: {what}."
    count = sum(trace.unread.values())
    return trace, _finding("health-unread-work", "warning", verdict, {"events": count})


def unread_words(unread: dict[str, int]) -> str:
    return ", ".join(
        f"{count:,} {what.replace('events ', 'event ', 1) if count == 1 else what}"
        for what, count in unread.items()
    )


def no_time(trace: Trace) -> tuple[Trace, Finding | None]:
    """Events whose start is no number, or that never end, were left out."""
    count = trace.without_time
    if not count:
        return trace, None
    verdict = f"{counted(count, 'event')} without a start or an end {_are(count)} left out."
    return trace, _finding("health-no-time", "warning", verdict, {"events": count})


def no_duration(trace: Trace) -> tuple[Trace, Finding | None]:
    """Leave out device events whose duration is missing, negative or absurd."""
    wrong, on_host = trace.wrong_durations, trace.wrong_on_host
    if wrong:
        is_wrong = np.zeros(len(trace.device), dtype=np.bool_)
        is_wrong[np.concatenate([*wrong.values()])] = True
        whole, count = len(trace.device), int(is_wrong.sum())
        which = _kinds(trace.device, is_wrong)
        why = ", ".join(f"{len(index):,} {what}" for what, index in wrong.items())
        verdict = (
            f"{count:,} of {whole:,} {which} {'has' if count == 1 else 'have'} no valid duration "
            f"({why}) and {_are(count)} left out: {whole - count:,} count."
        )
        left = replace(trace, device=trace.device.take(~is_wrong), wrong_durations={})
        return left, _finding(
            "health-no-duration", "warning", verdict, {"events": count, "whole": whole}
        )
    if sum(on_host.values()):
        why = ", ".join(f"{count:,} {what}" for what, count in on_host.items() if count)
        count = sum(on_host.values())
        verdict = f"{counted(count, 'CPU event')} without a valid duration ({why}) last 0."
        return trace, _finding("health-no-duration", "note", verdict, {"events": count})
    return trace, None


def far_off(trace: Trace) -> tuple[Trace, Finding | None]:
    """Leave out the few events that lie at time zero or far from all others."""
    host, device = trace.host, trace.device
    start = np.concatenate((host.start, device.start))
    cluster = _clusters(start, np.concatenate((host.end, device.end)))
    if not len(start) or not cluster.any():
        return trace, None
    with_time = cluster[start + trace.base_ns != 0]
    is_far = cluster != int(np.bincount(with_time).argmax())
    low, high = int(start[~is_far].min()), int(start[~is_far].max())
    on_host, on_device = is_far[: len(host)], is_far[len(host) :]
    at_zero = bool((start[is_far] + trace.base_ns == 0).all())
    if not at_zero and len(host) and len(device) and (on_host.all() or on_device.all()):
        apart = abs(int(device.start.min()) - int(host.start.min()))
        verdict = (
            f"The times of GPU and CPU are {format_duration(apart)} apart: causes of idle time are "
            "doubtful."
        )
        return trace, _finding("health-clocks-apart", "warning", verdict, {"ns": apart})
    if not at_zero and is_far.mean() > MAX_FAR_SHARE:
        length = format_duration(int(start.max() - start.min()))
        verdict = (
            f"The events lie in {int(cluster.max()) + 1} groups, {length} from the first to the "
            "last: the span covers the time between them."
        )
        return trace, _finding(
            "health-groups-apart", "warning", verdict, {"groups": int(cluster.max()) + 1}
        )
    chosen = on_device if on_device.any() else on_host
    count, whole = int(chosen.sum()), len(chosen)
    which = f"{_kinds(device, on_device)}{_names(trace, device, on_device)}"
    apart = max(low - int(start[is_far].min()), int(start[is_far].max()) - high)
    side = "before" if low - int(start[is_far].min()) == apart else "after"
    where = "at time 0" if at_zero else f"{format_duration(apart)} {side} the others"
    verdict = (
        f"{count:,} of {whole:,} {which if on_device.any() else 'CPU events'} "
        f"{'starts' if count == 1 else 'start'} {where} and {_are(count)} left out."
    )
    left = replace(trace, host=host.take(~on_host), device=device.take(~on_device))
    for name in ("functions", "projected"):
        ranges = getattr(trace, name)
        near = (ranges.start >= low - FAR_NS) & (ranges.start <= high + FAR_NS)
        left = replace(left, **{name: ranges.take(near)})
    return left.since(low), _finding(
        "health-far-off", "warning", verdict, {"events": int(is_far.sum())}
    )


def _clusters(start: Times, end: Times) -> Index:
    """Number the groups of events between which nothing is recorded for `FAR_NS`."""
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(end[order]) if len(order) else end
    number = np.zeros(len(start), dtype=np.int64)
    number[order[1:]] = np.cumsum(start[order][1:] - reached[:-1] > FAR_NS)
    return number


def duplicates(trace: Trace) -> tuple[Trace, Finding | None]:
    """Count device work and calls that are in the file more than once only once."""
    device, host = trace.device, trace.host
    columns: tuple[Index, ...] = (device.device, device.stream, device.kind, device.correlation)
    again = _repeated(*columns, device.name, device.start, device.end)
    again &= (device.stream != NONE) | (device.correlation > 0)
    calls = (host.kind == Kind.RUNTIME) & (host.correlation > 0)
    called_again = np.zeros(len(host), dtype=np.bool_)
    columns = (host.thread, host.correlation, host.name, host.start, host.end)
    called_again[calls] = _repeated(*(column[calls] for column in columns))
    if not again.any() and not called_again.any():
        return trace, None
    left = replace(trace, device=device.take(~again), host=host.take(~called_again))
    if again.any():
        whole, which = len(device), _kinds(device, again)
        count = int(again.sum())
        verdict = f"{count:,} of {whole:,} {which} are exact copies and count once."
    else:
        count = int(called_again.sum())
        verdict = f"{counted(count, 'call')} of the runtime {_are(count)} in the file twice and "
        verdict += "count once."
    return left, _finding("health-duplicates", "warning", verdict, {"events": count})


def _repeated(*columns: Index) -> Flags:
    """Flag each event that equals one before it in all columns."""
    order = np.lexsort(columns)
    table = np.stack(columns)[:, order]
    again = np.zeros(table.shape[1], dtype=np.bool_)
    again[order[1:]] = (table[:, 1:] == table[:, :-1]).all(axis=0)
    return again


def overrun(trace: Trace) -> tuple[Trace, Finding | None]:
    """Cut work that lasts beyond the end of later work on its stream, where the next begins.

    The work of a stream runs in order. A dependent launch may begin some time before the work ahead
    of it ends, but ends after it; branches of one graph launch may have one stream. Processes that
    share a device number their streams alike. Pages of unified memory move while kernels run.
    """
    device = trace.device
    process = np.maximum(device.correlation, 0) >> PROCESS_SHIFT
    order = np.lexsort((device.end, device.start, device.stream, process, device.device))
    order = order[(device.kind[order] != Kind.COPY) | (device.correlation[order] > 0)]
    events, process = device.take(order), process[order]
    size = len(events)
    if size < 2:
        return trace, None
    changes: Flags = (np.diff(events.device) != 0) | (np.diff(events.stream) != 0)
    changes |= np.diff(process) != 0
    stream_of = np.r_[0, np.cumsum(changes)]
    # The next event: of a graph's launch, the first that another launch began.
    launch = (events.correlation[1:] != events.correlation[:-1]) | (events.correlation[1:] <= 0)
    launch_of = np.r_[0, np.cumsum(launch | changes)]
    following = np.searchsorted(launch_of, launch_of, side="right")
    has_next = following < size
    following = np.minimum(following, size - 1)
    has_next &= stream_of[following] == stream_of
    # The earliest end from there to the end of the stream: a minimum from behind over the ranks of
    # ends, which an offset keeps below those of the streams that follow.
    rank = np.argsort(np.argsort(events.end, kind="stable"), kind="stable")
    earliest = np.minimum.accumulate((rank + stream_of * size)[::-1])[::-1] - stream_of * size
    first_end = np.sort(events.end)[earliest[following]]
    is_long = has_next & (events.stream != NONE) & (events.end > first_end + MIN_OVERRUN_NS)
    if not is_long.any():
        return trace, None
    cut = np.where(is_long, np.maximum(events.start[following], events.start), events.end)
    at = int(np.argmax(np.where(is_long, events.end - cut, -1)))
    length, left = int(events.end[at] - events.start[at]), int(cut[at] - events.start[at])
    later = (stream_of == stream_of[at]) & (events.start < events.end[at])
    over = int(later[int(following[at]) :].sum())
    name = short_kernel_name(trace.names[int(events.name[at])])
    count = int(is_long.sum())
    what = (
        "An impossible duration" if count == 1 else f"{count:,} impossible durations; the longest"
    )
    verdict = (
        f"{what}: {name}, {format_duration(int(events.start[at]))} into the trace, lasts "
        f"{format_duration(length)} by the file, over the start of {over:,} later "
        f"{_kinds(events, later)} on its stream. It is cut to {format_duration(left)}."
    )
    end = device.end.copy()
    end[order] = cut
    return replace(trace, device=replace(device, end=end)), _finding(
        "health-impossible-duration",
        "problem",
        verdict,
        {"events": count, "file_ns": length, "cut_ns": left},
        "The work of one stream runs in order: a kernel takes at most the time until the next one "
        "on its stream begins.",
        "Do not rely on the time of this kernel; record the trace again.",
    )


def early_kernels(trace: Trace) -> tuple[Trace, Finding | None]:
    """Work begins before the call that launches it."""
    host, device = trace.host, trace.device
    calls = host.take((host.kind == Kind.RUNTIME) & (host.correlation > 0))
    order = np.lexsort((calls.start, calls.correlation))
    ids, first = np.unique(calls.correlation[order], return_index=True)
    called = device.start.copy()
    if len(ids):
        at = np.minimum(np.searchsorted(ids, device.correlation), len(ids) - 1)
        called = np.where(ids[at] == device.correlation, calls.start[order][first][at], called)
    early = called - device.start
    count = int((early > 0).sum()) + len(trace.early)
    if not count:
        return trace, None
    longest = max([*trace.early, int(early.max(initial=0))])
    which = _kinds(device, early > 0)
    verdict = (
        f"{count:,} of {len(device):,} {which} {'starts' if count == 1 else 'start'} before the "
        f"launch, by up to {format_duration(longest)}: the clocks of GPU and CPU differ, "
        "so causes of idle time are doubtful."
    )
    return trace, _finding(
        "health-early-kernels", "warning", verdict, {"events": count, "ns": longest}
    )


def synchronizations(trace: Trace) -> tuple[Trace, Finding | None]:
    """Waits refer to no event, or to a later one, or end while the stream still runs."""
    host, device = trace.host, trace.device
    is_record = (host.kind == Kind.RUNTIME) & names_fit(
        trace.names, host.name, lambda name: RECORDS_EVENT in name
    )
    recorded: dict[int, int] = {}
    for correlation, start in zip(
        host.correlation[is_record].tolist(), host.start[is_record].tolist(), strict=True
    ):
        recorded[correlation] = min(start, recorded.get(correlation, start))
    problems = dict.fromkeys(("no event", "an event that is not in the file", "a later event"), 0)
    for wait in trace.waits:
        if wait.kind in WAITS and wait.waits_for < 0:
            problems["no event"] += 1
        elif wait.kind == WAITS[0]:
            record = recorded.get(wait.waits_for)
            problems["an event that is not in the file"] += record is None
            problems["a later event"] += record is not None and record > wait.start
    parts = [f"{count:,} on {what}" for what, count in problems.items() if count]
    running = _syncs_that_overlap(trace, device)
    if running:
        parts.append(f"{running:,} on a stream whose kernel still runs")
    if not parts:
        return trace, None
    verdict = f"Synchronizations that contradict other events: {', '.join(parts)}."
    return trace, _finding(
        "trace-synchronizations", "note", verdict, {**problems, "running": running}
    )


def _syncs_that_overlap(trace: Trace, device: DeviceEvents) -> int:
    """Count synchronizations of a stream that begin while a kernel runs on it."""
    syncs = [wait for wait in trace.waits if wait.kind == "Stream Sync"]
    count = 0
    for place in {(wait.device, wait.stream) for wait in syncs}:
        on_it = (device.device == place[0]) & (device.stream == place[1])
        on_it &= device.kind == Kind.KERNEL
        start, end = np.sort(device.start[on_it]), np.sort(device.end[on_it])
        times = np.array([w.start for w in syncs if (w.device, w.stream) == place], dtype=np.int64)
        running = np.searchsorted(start, times, side="left") - np.searchsorted(
            end, times, side="right"
        )
        count += int((running > 0).sum())
    return count


def collective_arguments(trace: Trace) -> tuple[Trace, Finding | None]:
    count = trace.incomplete_calls
    if not count:
        return trace, None
    calls = "collective call" if count == 1 else "collective calls"
    verdict = (
        f"{count:,} {calls} without name, type, sizes or group: old versions of torch do not "
        "record them, so bytes and rates are unknown."
    )
    return trace, _finding("trace-collective-arguments", "note", verdict, {"calls": count})


def shared_sequences(trace: Trace) -> tuple[Trace, Finding | None]:
    """One sequence number stands for several backward operators."""
    host = trace.host
    is_backward = names_fit(trace.names, host.name, lambda name: BACKWARD in name)
    is_backward &= host.sequence >= 0
    pairs = np.unique(np.stack((host.sequence[is_backward], host.name[is_backward])), axis=1)
    count = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum()) if pairs.size else 0
    if not count:
        return trace, None
    verdict = (
        f"{counted(count, 'sequence number')} shared by different backward operators: modules of "
        "the backward pass are doubtful there."
    )
    return trace, _finding("trace-shared-sequences", "note", verdict, {"numbers": count})


RULES: tuple[Rule, ...] = (
    *(repaired_text, unread_work, no_time, no_duration, far_off, duplicates, overrun),
    *(early_kernels, synchronizations, collective_arguments, shared_sequences),
)
"""In the order in which repairs build on each other."""


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _kinds(device: DeviceEvents, chosen: Flags) -> str:
    is_kernels = bool((device.kind[chosen] == Kind.KERNEL).all())
    return "kernels" if is_kernels else "kernels and copies"


def _names(trace: Trace, device: DeviceEvents, chosen: Flags) -> str:
    numbers = dict.fromkeys(device.name[chosen].tolist())
    names = [short_kernel_name(trace.names[number]) for number in [*numbers][:MAX_NAMED]]
    more = ", …" if len(numbers) > MAX_NAMED else ""
    return f" ({', '.join(names)}{more})" if names else ""
