"""Stamps of a device on the host's clock, with a device in words."""

from __future__ import annotations

import time

import pytest
import torch

from sysbench.core.worker.ranks.watched_collectives import CudaStamps


def test_the_anchor_is_half_way_between_the_readings_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 1_000_000

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at_ns = 0

        def record(self) -> None:
            self.at_ns = now_ns + 7_000  # on the device, while the host waits

        def synchronize(self) -> None:
            nonlocal now_ns
            now_ns += 20_000

        def elapsed_time(self, end: Event) -> float:
            return (end.at_ns - self.at_ns) / 1e6

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    stamps = CudaStamps()
    stamps.align()
    assert stamps.error_ns == 10_000
    now_ns += 500_000
    stamp = stamps.now()
    assert abs(stamps.ns(stamp) - (now_ns + 7_000)) <= stamps.error_ns
    assert stamps.ns(42) == 42, "a stamp of the host is on its clock already"
