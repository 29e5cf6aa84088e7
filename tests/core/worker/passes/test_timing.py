"""The timing pass around its steps, on a device in words."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from sysbench.core.machine.nvml import ThrottleTime
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.passes import timing_pass as timing
from sysbench.core.worker.passes.timing_pass import time_steps
from sysbench.core.worker.step_clock import HostClock

SECOND = 10**9


class Stepped:
    """A workload that notes its steps."""

    spec = RunSpec(device="cuda:0", steps=3, warmup=2)

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def step(self, enter: Callable[[str], None]) -> None:
        enter("forward")
        self._log.append("step")
        enter("")

    def loss_value(self) -> float | None:
        return None


def test_the_drivers_counters_are_read_right_around_the_measured_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    def read(uuid: str) -> ThrottleTime:
        log.append(uuid)
        number = log.count(uuid)
        return ThrottleTime(number * SECOND, {"power cap": number * SECOND // 4})

    monkeypatch.setattr(timing, "read_throttle_time", read)
    properties = SimpleNamespace(uuid="0-1-2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    made = time_steps(Stepped(log), HostClock(), lambda event: None)
    assert log == ["step"] * 2 + ["GPU-0-1-2"] + ["step"] * 3 + ["GPU-0-1-2"]
    assert made.throttled == {"power cap": 0.25}
    assert "throttled" not in made.missing
