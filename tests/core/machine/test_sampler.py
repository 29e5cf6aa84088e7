from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.machine.machine_reader import Probe, Sampler
from sysbench.core.machine.sample import Sample


def telemetry_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def test_samples_arrive_in_order_and_stopping_ends_the_thread() -> None:
    samples: SimpleQueue[Sample] = SimpleQueue()
    with Sampler(samples.put) as sampler:
        first, second = samples.get(timeout=30), samples.get(timeout=30)
    assert not telemetry_threads()
    assert sampler.error is None
    assert first.t_ns < second.t_ns
    assert first.host.cpu is None, "a share needs two readings"
    assert second.host.cpu is not None
    assert 0 <= second.host.cpu <= 1
    assert 0 < second.host.memory_used_bytes < second.host.memory_total_bytes


def test_stopping_does_not_wait_for_the_interval() -> None:
    arrived = threading.Event()
    sampler = Sampler(lambda _: arrived.set(), interval_seconds=3600)
    sampler.start()
    assert arrived.wait(30)
    sampler.stop(timeout_seconds=30)
    assert not telemetry_threads()
    assert sampler.error is None


def test_a_receiver_that_raises_ends_sampling_and_is_reported() -> None:
    raised = threading.Event()

    def refuse(sample: Sample) -> None:
        raised.set()
        raise OSError("disk full")

    with Sampler(refuse) as sampler:
        assert raised.wait(30)
    assert isinstance(sampler.error, OSError)


def test_a_look_that_hangs_is_abandoned_and_reported() -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(_: Sample) -> None:
        entered.set()
        release.wait()

    sampler = Sampler(hang)
    sampler.start()
    assert entered.wait(30)
    sampler.stop(timeout_seconds=0.01)
    assert isinstance(sampler.error, TimeoutError)
    release.set()
    for thread in telemetry_threads():
        thread.join(30)


@pytest.mark.parametrize("interval", [0.49, 0, -1, float("nan")])
def test_an_interval_below_half_a_second_is_refused(interval: float) -> None:
    with pytest.raises(SpecError, match="interval_seconds"):
        Sampler(lambda _: None, interval_seconds=interval)


def test_a_single_sample_has_the_host_and_says_what_is_not_there() -> None:
    with Probe() as probe:
        sample = probe.take()
    assert sample.host.cores >= 1
    assert bool(sample.devices) != bool(sample.no_devices)


def test_the_driver_is_asked_for_slow_fields_once_in_a_few_looks(
    on_stub: Callable[..., Any], tmp_path: Any
) -> None:
    log = tmp_path / "log"
    code = """
import json
from sysbench.core.machine.machine_reader import Probe
with Probe() as probe:
    samples = [probe.take() for _ in range(5)]
print(json.dumps([len(sample.devices) for sample in samples]))
"""
    assert on_stub(code, NVML_STUB_GPUS="2", NVML_STUB_LOG=str(log)) == [2] * 5
    lines = log.read_text().splitlines()
    assert lines.count("nvmlDeviceGetUtilizationRates 0") == 5
    assert lines.count("nvmlDeviceGetComputeRunningProcesses_v3 0") == 1
