"""Split the time of a trace into busy, idle by cause and unattributed.

All parts are integer nanoseconds that add up to the window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.steps import MarkedSteps
from sysbench.core.trace.classify import (
    BETWEEN,
    HOST_LATE,
    LAUNCHING,
    ON_SYNC,
    OUTSIDE_OPERATORS,
    UNKNOWN,
)
from sysbench.core.trace.columns import FILL_LAUNCH, KERNEL_LAUNCH, Launches
from sysbench.core.trace.intervals import Cover, Times, exclusive
from sysbench.core.trace.marked_steps import (
    Gaps,
    device_cuts,
    marked_steps,
    rows_between,
)
from sysbench.core.trace.markers import find_steps
from sysbench.core.trace.scopes import (
    OTHER_PHASE,
    STEPS_RANGE,
    Activities,
    PhaseRanges,
    Scopes,
    device_activities,
    host_activities,
    host_scopes,
    loader_cover,
)
from sysbench.core.trace.trace_events import NONE, PROCESS_SHIFT, Index, Kind, Trace


def gaps_of(launches: Launches, work: Activities, low: int, high: int) -> Gaps:
    """Return the time of [low, high) in which nothing ran, by cause.

    Until the launch of the work that ends a gap begins, the host is late; but it waits on a sync
    while a thread that launches this work is inside a synchronizing call. Then it is inside the
    launch call, which can be long: it loads code or waits for a full queue. After that the work is
    launched but not started. After the launch of work that the trace never shows, a gap cannot be
    called idle.
    """
    begin, end = Cover(work.start, work.end).gaps(low, high)
    # A gap is split in up to four: begin … launch … return … idle_end … end.
    idle_end = _until_lost_launch(launches.lost(), begin, end)
    order = np.argsort(work.start, kind="stable")
    # The first work that starts at a gap's end or later is the one that ends the gap.
    following = np.searchsorted(work.start[order], end)
    has_next = following < len(order)
    launched = np.full(len(end), high)  # nothing follows: the host is late until the end
    launched[has_next] = work.launched[order[following[has_next]]]
    returned = launched.copy()
    returned[has_next] = work.returned[order[following[has_next]]]
    unknown = has_next & (launched == NONE)
    known = ~unknown
    launched = np.clip(launched, begin, idle_end)
    returned = np.clip(returned, launched, idle_end)
    on_host, syncs = Cover(begin[known], launched[known]), launches.syncs()
    return Gaps(
        causes={
            HOST_LATE: on_host.without(syncs),
            ON_SYNC: on_host.shared(syncs),
            LAUNCHING: Cover(launched[known], returned[known]),
            BETWEEN: Cover(returned[known], idle_end[known]),
            UNKNOWN: Cover(begin[unknown], idle_end[unknown]),
        },
        unattributed=Cover(idle_end, end),
    )


def _until_lost_launch(lost: Times, begin: Times, end: Times) -> Times:
    """Return the first lost launch after the previous gap and inside each gap, else its end."""
    result = end.copy()
    # The first gap that ends after the launch: it holds the launch, or follows while work runs.
    gap = np.searchsorted(end, lost, side="right")
    lost, gap = lost[gap < len(end)], gap[gap < len(end)]
    np.minimum.at(result, gap, np.maximum(lost, begin[gap]))  # `at`: a gap may have several
    return result


MARKED_STEPS = re.compile(re.escape(STEPS_RANGE) + r"([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Window:
    low: int
    high: int
    steps: int = 1

    @property
    def length(self) -> int:
        return self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLedger:
    """Time of a window in ns: ``exclusive``, ``idle`` and ``unattributed`` sum to its length.

    ``exclusive`` is per piece of work. ``launches`` counts calls that launched device work;
    ``dropped`` those whose work the trace never shows, of which ``dropped_kernels`` and
    ``dropped_fills`` launched kernels and fills; ``captured`` those captured into a graph.
    ``device`` is None if the trace shows no device work; ``is_chosen`` if the caller chose it.
    ``scopes`` are those of the host's events, ``unread`` is as in `Trace`. ``marked`` are the steps
    of an imported file; if some are selected, ``host_window`` spans their markers. ``late`` is idle
    time of the device caused by the host.
    """

    source: Literal["kernels", "operators"]
    scopes: Scopes
    window: Window
    names: list[str]
    phases: list[str]
    modules: list[str]
    work: Activities
    exclusive: Times
    busy: int
    span: int
    phase_times: dict[str, int]
    idle: dict[str, int]
    unattributed: int
    launches: int
    dropped: int
    dropped_kernels: int
    dropped_fills: int
    captured: int
    device: int | None
    other_devices: list[int]
    is_chosen: bool
    unread: dict[str, int]
    marked: MarkedSteps | None = None
    host_window: Window | None = None
    late: Cover | None = None


def time_ledger(
    trace: Trace,
    window: Window | None = None,
    device: int | None = None,
    steps: tuple[int, int] | None = None,
) -> TimeLedger:
    """Account for every nanosecond of the window.

    The window is by default that of the steps marked by the trace pass; in an imported trace, from
    first to last work, or over the selected ``steps``. The device is by default the busiest.
    DamagedFileError if the trace marks no such step, or the step ran nothing.
    """
    scopes = host_scopes(trace)
    devices = devices_by_work(trace)
    if device is not None:
        devices = [device, *(other for other in devices if other != device)]
    launches = Launches(trace, devices[0] if devices else None)
    names = trace.names
    if devices:
        work = device_activities(trace, scopes, devices[0])
    else:
        names, work = host_activities(trace, scopes)
    own = window or steps_window(trace)
    window = own or _whole(work)
    work = work.clipped(window.low, window.high)
    marked = gaps = host_window = None
    if own is None:
        marked, gaps = _marked_steps(trace, launches, work, window, on_device=bool(devices))
    if gaps is None:
        gaps = window_gaps(launches, work, window, on_device=bool(devices))
    if steps is not None:
        marked, window, host_window = _select_steps(marked, steps)
        work = work.clipped(window.low, window.high)
    idle, unattributed = gaps.within(window.low, window.high)
    busy = Cover(work.start, work.end).total
    dropped = _within(launches.lost(), window)
    if devices:
        phase_times = _device_phase_times(scopes.ranges, work, window)
        # Work that runs in the window may have been launched before it.
        earliest = int(work.launched[work.linked].min(initial=window.low))
        launched = launches.count(earliest, window.high)
    else:
        phase_times = _host_phase_times(scopes.ranges, window)
        launched = dropped
    return TimeLedger(
        source="kernels" if devices else "operators",
        scopes=scopes,
        window=window,
        names=names,
        phases=scopes.phases,
        modules=scopes.modules,
        work=work,
        exclusive=exclusive(work.start, work.end, work.rank),
        busy=busy,
        span=int(work.end.max() - work.start.min()) if len(work) else 0,
        phase_times=phase_times,
        idle=idle,
        unattributed=unattributed,
        launches=launched,
        dropped=dropped,
        dropped_kernels=_within(launches.lost(KERNEL_LAUNCH), window),
        dropped_fills=_within(launches.lost(FILL_LAUNCH), window),
        captured=launches.count_captured(window.low, window.high),
        device=devices[0] if devices else None,
        other_devices=sorted(devices[1:]),
        is_chosen=device is not None,
        unread=trace.unread,
        marked=marked,
        host_window=host_window,
        late=gaps.causes[HOST_LATE].clipped(window.low, window.high) if devices else None,
    )


def window_gaps(launches: Launches, work: Activities, window: Window, *, on_device: bool) -> Gaps:
    """Return the time of the window in which nothing ran, by cause (see `gaps_of`)."""
    if on_device:
        return gaps_of(launches, work, window.low, window.high)
    outside = Cover(work.start, work.end).gaps(window.low, window.high)
    nothing = np.zeros(0, dtype=np.int64)
    return Gaps({OUTSIDE_OPERATORS: Cover(*outside)}, unattributed=Cover(nothing, nothing))


def _marked_steps(
    trace: Trace, launches: Launches, work: Activities, window: Window, *, on_device: bool
) -> tuple[MarkedSteps | None, Gaps | None]:
    """Return the steps of an imported trace; the span includes their markers."""
    steps = find_steps(trace) if len(work) else None
    if steps is None:
        return None, None
    cuts = device_cuts(steps, work) if on_device else (steps.start, steps.end)
    low, high = min(window.low, int(cuts[0][0])), max(window.high, int(cuts[1][-1]))
    gaps = window_gaps(launches, work, Window(low, high), on_device=on_device)
    clock = "device" if on_device else "host"
    loading = loader_cover(trace)
    if on_device:
        loading = loading.shared(gaps.causes[HOST_LATE])
    marked = marked_steps(steps, cuts, work, gaps, loading, low, high, clock=clock)
    return marked, gaps


def _select_steps(
    marked: MarkedSteps | None, wanted: tuple[int, int]
) -> tuple[MarkedSteps, Window, Window]:
    """Return the steps with the selection noted, its window, and that of its markers."""
    if marked is None:
        raise DamagedFileError("no step markers found in this file")
    rows = rows_between(marked, *wanted)
    first, last = rows[0], rows[-1]
    window = Window(first.start_ns, last.start_ns + last.ns, len(rows))
    if not any(row.busy_ns or row.kernels for row in rows):
        raise DamagedFileError(f"nothing ran in {first.name}")
    host_low = first.host_start_ns or 0
    host_high = (last.host_start_ns or 0) + (last.host_ns or 0)
    numbers = (first.number or 0, last.number or 0)
    return (
        msgspec.structs.replace(marked, chosen=numbers),
        window,
        Window(host_low, host_high, len(rows)),
    )


def _within(times: Times, window: Window) -> int:
    return int(((times >= window.low) & (times < window.high)).sum())


def steps_window(trace: Trace) -> Window | None:
    """Return the window of the steps marked by the trace pass; None in an imported trace."""
    for index, name in enumerate(trace.names):
        if match := MARKED_STEPS.fullmatch(name):
            marked = trace.host.take(trace.host.name == index)
            if len(marked):
                return Window(int(marked.start[0]), int(marked.end[0]), int(match[1]))
    return None


def _whole(work: Activities) -> Window:
    if not len(work):
        return Window(0, 0)
    return Window(int(work.start.min()), int(work.end.max()))


def devices_by_work(trace: Trace) -> list[int]:
    events = trace.device
    devices, index = np.unique(events.device, return_inverse=True)
    # bincount's float64 sums may round; they only rank the devices. Ties keep their order.
    busy = np.bincount(index, weights=(events.end - events.start), minlength=len(devices))
    return [int(device) for device in devices[np.argsort(-busy, kind="stable")]]


def device_trace(trace: Trace, device: int | None) -> Trace:
    """Return the trace without the host processes that launched onto other devices only."""
    return without_processes(trace, processes_elsewhere(trace, device))


def processes_elsewhere(trace: Trace, device: int | None) -> Index:
    """Return the processes that launched work of other devices, but none of this one."""
    host = trace.host
    nothing = np.zeros(0, dtype=np.int64)
    if device is None or not len(host) or not np.ptp(host.thread >> PROCESS_SHIFT):
        return nothing
    calls = host.take((host.kind == Kind.RUNTIME) & (host.correlation > 0))
    is_here = trace.device.device == device
    here, elsewhere = (
        np.unique(calls.thread[np.isin(calls.correlation, ids)] >> PROCESS_SHIFT)
        for ids in (trace.device.correlation[is_here], trace.device.correlation[~is_here])
    )
    return np.setdiff1d(elsewhere, here) if len(here) else nothing


def without_processes(trace: Trace, processes: Index) -> Trace:
    if not len(processes):
        return trace
    host, functions = trace.host, trace.functions
    return replace(
        trace,
        host=host.take(~np.isin(host.thread >> PROCESS_SHIFT, processes)),
        functions=functions.take(~np.isin(functions.thread >> PROCESS_SHIFT, processes)),
    )


def shown_device(trace: Trace, chosen: int | None) -> int | None:
    """Return the device that the tables are of: the chosen one, else the busiest, if any."""
    return next(iter(devices_by_work(trace)), None) if chosen is None else chosen


def chosen_device(trace: Trace, device: int | None) -> int | None:
    """Return the device selected by the user, or None; DamagedFileError if nothing ran there."""
    devices = devices_by_work(trace)
    if device is not None and device not in devices:
        numbers = ", ".join(map(str, sorted(devices))) or "none"
        raise DamagedFileError(f"no device {device} in this file; devices with work: {numbers}")
    return device


def _host_phase_times(ranges: PhaseRanges, window: Window) -> dict[str, int]:
    low, high = window.low, window.high
    length = np.clip(ranges.end, low, high) - np.clip(ranges.start, low, high)
    times = _by_phase(ranges, length)
    if times:
        times[OTHER_PHASE] = window.length - sum(times.values())
    return times


def _device_phase_times(ranges: PhaseRanges, work: Activities, window: Window) -> dict[str, int]:
    """Cut the window where the device begins the first work launched by each phase.

    A phase that launched nothing has no time; time before the first work belongs to the first
    phase.
    """
    # The last range that began before the launch, even if it ended: launches between two
    # ranges count for the earlier phase.
    instance = np.searchsorted(ranges.start, work.launched, side="right") - 1
    in_phase = work.linked & (instance >= 0)
    begins = np.full(len(ranges.phase) + 1, window.high)  # one more: the end of the last phase
    np.minimum.at(begins, instance[in_phase], work.start[in_phase])
    # From behind, so that a phase without work begins where the next one does: its length is 0.
    begins = np.minimum.accumulate(begins[::-1])[::-1]
    begins[0] = window.low
    return _by_phase(ranges, np.diff(begins))


def _by_phase(ranges: PhaseRanges, length: Times) -> dict[str, int]:
    return {
        name: int(length[ranges.phase == index].sum()) for index, name in enumerate(ranges.names)
    }
