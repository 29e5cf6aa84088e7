"""Where the time of a trace went, in integer nanoseconds that add up to the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .activities import Activities, device_activities, host_activities
from .chrome_trace import Trace
from .idle import OUTSIDE_OPERATORS, count_launches, idle_causes
from .intervals import Cover, Times, exclusive
from .nesting import NONE
from .scopes import OTHER_PHASE, STEPS_RANGE, host_scopes, phase_ranges


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a trace that a ledger is about, in its time, and the steps in it."""

    low: int
    high: int
    steps: int = 1

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLedger:
    """``exclusive`` (of each piece of work), ``idle`` and ``unattributed`` sum to the window.

    All in nanoseconds over all steps of the window. ``launches`` counts the calls that asked
    the device for work, 0 where there is no device. ``other_devices`` are left out.
    """

    source: Literal["kernels", "operators"]
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
    other_devices: list[int]


def time_ledger(trace: Trace, window: Window | None = None) -> TimeLedger:
    """Account for every nanosecond of the window.

    Without a window it is the traced steps of our own passes, and in a foreign trace from
    the first to the last piece of work. With several devices it is the busiest one's.
    """
    scopes = host_scopes(trace)
    device, *others = _devices_by_work(trace) or [NONE]
    names = trace.names
    if device == NONE:
        names, work = host_activities(trace, scopes)
    else:
        work = device_activities(trace, scopes, device)
    window = window or steps_window(trace) or _whole(work)
    work = work.clipped(window.low, window.high)
    covered = Cover(work.start, work.end)
    if device == NONE:
        idle, unattributed = {OUTSIDE_OPERATORS: window.length - covered.total}, 0
        phase_times = _host_phase_times(trace, window)
        launches = 0
    else:
        idle, unattributed = idle_causes(trace, work, window.low, window.high)
        phase_times = _device_phase_times(trace, work, window)
        launches = count_launches(trace, work, window.low, window.high)
    return TimeLedger(
        source="operators" if device == NONE else "kernels",
        window=window,
        names=names,
        phases=scopes.phases,
        modules=scopes.modules,
        work=work,
        exclusive=exclusive(work.start, work.end, work.rank),
        busy=covered.total,
        span=int(work.end.max() - work.start.min()) if len(work) else 0,
        phase_times=phase_times,
        idle=idle,
        unattributed=unattributed,
        launches=launches,
        other_devices=sorted(others),
    )


def steps_window(trace: Trace) -> Window | None:
    """The window of the steps that our trace pass marked, None in a foreign trace."""
    for index, name in enumerate(trace.names):
        text = name.removeprefix(STEPS_RANGE)
        if text != name and text.isascii() and text.isdigit() and int(text) > 0:
            marked = trace.host
            marked = marked.take(marked.name == index)
            return Window(int(marked.start[0]), int(marked.end[0]), int(text))
    return None


def _whole(work: Activities) -> Window:
    if not len(work):
        return Window(0, 0)
    return Window(int(work.start.min()), int(work.end.max()))


def _devices_by_work(trace: Trace) -> list[int]:
    """Devices that ran something, the busiest first."""
    events = trace.device
    devices, index = np.unique(events.device, return_inverse=True)
    busy = np.bincount(index, weights=(events.end - events.start), minlength=len(devices))
    return [int(device) for device in devices[np.argsort(-busy, kind="stable")]]


def _host_phase_times(trace: Trace, window: Window) -> dict[str, int]:
    """Length of each phase's ranges, and what lies between them."""
    phases, phase, start, end = phase_ranges(trace)
    length = np.clip(end, window.low, window.high) - np.clip(start, window.low, window.high)
    times = {name: int(length[phase == index].sum()) for index, name in enumerate(phases)}
    if times:
        times[OTHER_PHASE] = window.length - sum(times.values())
    return times


def _device_phase_times(trace: Trace, work: Activities, window: Window) -> dict[str, int]:
    """Cut the window where the device begins the first work that each phase launched.

    A phase that launched nothing takes no time; what precedes the first work is the first
    phase's, so the parts add up to the window.
    """
    phases, phase, start, _ = phase_ranges(trace)
    if not phases:
        return {}
    instance = np.searchsorted(start, work.launched, side="right") - 1
    known = work.linked & (instance >= 0)
    begins = np.full(len(phase) + 1, window.high)
    np.minimum.at(begins, instance[known], work.start[known])
    begins = np.minimum.accumulate(begins[::-1])[::-1]
    begins[0] = window.low
    length = np.diff(begins)
    return {name: int(length[phase == index].sum()) for index, name in enumerate(phases)}
