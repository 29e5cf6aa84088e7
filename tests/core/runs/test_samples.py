"""Samples of the devices in a run's events: no serial numbers, but the device's index."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sysbench.core.machine.sample import DeviceSample, HostSample, Sample
from sysbench.core.record.events import (
    AnyEvent,
    ClockMoved,
    PassEnded,
    PassStarted,
    StageEntered,
    TelemetrySampled,
)
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import EventLog, RunDirectory, create_run, replay_events
from sysbench.core.runs.supervised_run import Supervision
from sysbench.core.spec.spec import RunSpec

HOST = HostSample(cores=2, cpu=0.5, memory_used_bytes=1, memory_total_bytes=2)


def sample_of_two_gpus(t_ns: int) -> Sample:
    """GPU 0 draws 100 W, GPU 1 draws 200 W."""
    devices = [
        DeviceSample(index=n, name="A", uuid=f"GPU-{n}f00", power_watts=100.0 * (n + 1))
        for n in range(2)
    ]
    return Sample(t_ns=t_ns, devices=devices, host=HOST)


def ended(t_ns: int, number: int) -> PassEnded:
    return PassEnded(
        t_ns=t_ns,
        name="timing",
        outcome="finished",
        detail="",
        seconds=0.0,
        exit_code=0,
        round=number,
    )


def sampled_run(monkeypatch: pytest.MonkeyPatch, *visible: str) -> RunDirectory:
    """A run on ``cuda:0`` with one round for each value of CUDA_VISIBLE_DEVICES."""
    run = create_run(RunSpec(device="cuda:0"), ["timing"], repeat=len(visible))
    with EventLog(run) as log:
        supervision = Supervision(run, run.header(), log, Cancellation())
        for number, value in enumerate(visible, 1):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            t_ns = 10 * number
            events: list[AnyEvent] = [
                PassStarted(t_ns=t_ns, name="timing", pid=1, round=number),
                StageEntered(t_ns=t_ns + 1, stage="measure"),
                supervision.sampled(sample_of_two_gpus(t_ns + 2)),
                ended(t_ns + 3, number),
            ]
            for event in events:
                list(supervision.emit(event))
    return run


def test_a_later_reader_takes_the_samples_of_the_device_that_was_measured(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sampled_run(monkeypatch, "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # here cuda:0 is GPU 0
    telemetry = replay_events(run).record().telemetry
    assert telemetry is not None
    assert telemetry.series["device1.power_watts"]["median"] == 200.0


def test_a_round_on_another_gpu_of_that_name_does_not_count(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sampled_run(monkeypatch, "1", "0")
    supervision = Supervision(run, run.header(), None, Cancellation())  # type: ignore[arg-type]
    supervision.resume()
    rounds = supervision.builder.rounds()
    assert [one.disturbed for one in rounds] == ["", "measured on GPU 0, earlier rounds on GPU 1"]


def test_a_clock_that_moves_takes_the_round_and_the_telemetry_with_it(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(RunSpec(device="cpu"), ["timing"], repeat=2)
    with EventLog(run) as log:
        builder = Supervision(run, run.header(), log, Cancellation()).builder
        sample = TelemetrySampled(sample=msgspec.to_builtins(sample_of_two_gpus(5)))
        for number in (1, 2):
            builder.add(PassStarted(t_ns=1, name="timing", pid=1, round=number))
            builder.add(sample)
            if number == 1:
                builder.add(ClockMoved(t_ns=2, seconds=-3600.0))
            builder.add(ended(9, number))
    record = builder.record()
    assert record.telemetry is None
    assert "-3600 s" in record.missing["telemetry"]
    assert [bool(one.disturbed) for one in builder.rounds()] == [True, False]


def test_events_hold_no_serial_numbers(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sampled_run(monkeypatch, "1")
    assert "f00" not in run.events_path.read_text()
    (event,) = [one for one in run.tail().read() if isinstance(one, TelemetrySampled)]
    assert event.device_index == 1
