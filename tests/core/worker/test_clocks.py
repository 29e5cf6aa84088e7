"""The clock of CUDA devices, on a device of virtual time whose launch queue is short."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sysbench.core.worker.ranks.merged_block import slowest
from sysbench.core.worker.step_clock import CudaClock

LAUNCH_NS, KERNEL_NS = 1_000_000, 10_000_000
QUEUE = 4
"""Launches that may be outstanding before the host has to wait."""


class Device:
    """Works off launches in order; the host waits where the queue is full. All time is virtual."""

    def __init__(self) -> None:
        self.host_ns = 0
        self.ends_ns: list[int] = []

    def launch(self) -> None:
        self.host_ns += LAUNCH_NS
        outstanding = [end for end in self.ends_ns if end > self.host_ns]
        if len(outstanding) >= QUEUE:
            self.host_ns = outstanding[-QUEUE]
        begins = max([self.host_ns, *self.ends_ns[-1:]])
        self.ends_ns.append(begins + KERNEL_NS)

    def synchronize(self, _: object = None) -> None:
        self.host_ns = max([self.host_ns, *self.ends_ns[-1:]])

    @property
    def done_ns(self) -> int:
        """The time at which all work so far is done."""
        return max([self.host_ns, *self.ends_ns[-1:]])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at_ns = 0

        def record(self, stream: object) -> None:
            self.at_ns = made.done_ns

        def elapsed_time(self, other: Any) -> float:
            elapsed: float = (other.at_ns - self.at_ns) / 1e6
            return elapsed

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: made.host_ns)
    return made


def step_of(device: Device, launches: int) -> Callable[[Callable[[str], None]], None]:
    def step(enter: Callable[[str], None]) -> None:
        enter("forward")
        for _ in range(launches):
            device.launch()
        enter("")

    return step


def test_issue_is_the_hosts_own_time_where_the_queue_is_full_later(device: Device) -> None:
    clock = CudaClock(torch.device("cpu"), every_step=False)
    for _ in range(2):
        timed = clock.time(step_of(device, 3), 10)
        assert timed.issue_ms == [3 * LAUNCH_NS / 1e6]
        assert len(timed.step_ms) == 10
        assert timed.step_ms[-1] == pytest.approx(3 * KERNEL_NS / 1e6)


def test_every_step_that_waits_for_the_device_times_its_issue(device: Device) -> None:
    clock = CudaClock(torch.device("cpu"), every_step=True)
    timed = clock.time(step_of(device, 2), 3)
    assert timed.issue_ms == [2 * LAUNCH_NS / 1e6] * 3
    assert timed.step_ms == [(LAUNCH_NS + 2 * KERNEL_NS) / 1e6] * 3


def test_the_slowest_rank_of_a_batch_keeps_its_issue(device: Device) -> None:
    clock = CudaClock(torch.device("cpu"), every_step=False)
    quick, slow = (clock.time(step_of(device, launches), 3) for launches in (1, 3))
    assert slowest([quick, slow]).issue_ms == slow.issue_ms
