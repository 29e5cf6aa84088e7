"""The driver's counters of throttled time, read through the real pynvml, and their arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.machine.nvml import (
    THROTTLE_FIELDS,
    ThrottleTime,
    read_throttle_time,
    throttle_shares,
)

RunPython = Callable[..., Any]

READ_TWICE = """
import json
from sysbench.core.machine.nvml import read_throttle_time
readings = [read_throttle_time("GPU-000000a1-0000-4000-8000-000000000000") for _ in range(2)]
print(json.dumps(readings))
"""


def test_counters_are_read_of_the_gpu_with_the_uuid(on_stub: RunPython) -> None:
    held = "74:250000000,75:0,269:7"
    before, after = on_stub(READ_TWICE, NVML_STUB_GPUS="2", NVML_STUB_HELD=held)
    assert before[1] == {"power cap": 250_000_000, "thermal": 0, "software thermal": 7}
    assert after[1] == {"power cap": 500_000_000, "thermal": 0, "software thermal": 14}
    assert after[0] > before[0]


def test_a_driver_without_counters_is_a_reason(on_stub: RunPython) -> None:
    readings = on_stub(READ_TWICE, NVML_STUB_GPUS="2")
    assert [reading[1:] for reading in readings] == [
        [{}, "this GPU or driver does not count it"] for _ in range(2)
    ]


def test_a_gpu_that_nvml_does_not_know_is_a_reason(on_stub: RunPython) -> None:
    (_, held, why), _ = on_stub(READ_TWICE, NVML_STUB_GPUS="1")
    assert held == {}
    assert why.startswith("NVML does not report")


def test_without_a_driver_there_is_a_reason(without_nvml: RunPython) -> None:
    (_, held, why), _ = without_nvml(READ_TWICE)
    assert held == {}
    assert why.startswith("NVML does not report")


counters = st.dictionaries(
    st.sampled_from(sorted(THROTTLE_FIELDS)), st.integers(0, 10**18), min_size=1
)


@given(counters, st.integers(1, 10**12), st.data())
def test_the_share_is_of_the_time_between_the_readings(
    start: dict[str, int], passed_ns: int, data: st.DataObject
) -> None:
    grown = {name: data.draw(st.integers(0, passed_ns)) for name in start}
    after = ThrottleTime(7 + passed_ns, {name: start[name] + grown[name] for name in start})
    shares, why = throttle_shares(ThrottleTime(7, start), after)
    assert why == ""
    assert shares is not None
    assert shares.keys() == start.keys()
    for name, share in shares.items():
        assert share == pytest.approx(grown[name] / passed_ns)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (ThrottleTime(0, {}, "no driver"), ThrottleTime(9, {}, "no driver"), "no driver"),
        (ThrottleTime(0, {"thermal": 5}), ThrottleTime(9, {"thermal": 4}), "restarted"),
        (ThrottleTime(0, {"thermal": 5}), ThrottleTime(100, {"thermal": 150}), "more than"),
        (ThrottleTime(0, {"thermal": 5}), ThrottleTime(0, {"thermal": 5}), "no time passed"),
    ],
)
def test_counters_that_cannot_be_believed_give_a_reason(
    before: ThrottleTime, after: ThrottleTime, why: str
) -> None:
    shares, reason = throttle_shares(before, after)
    assert shares is None
    assert why in reason


def test_an_interpreter_without_pynvml_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    read = read_throttle_time("GPU-0")
    assert not read.held_ns and "nvidia-ml-py" in read.missing
