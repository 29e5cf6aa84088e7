"""Energy of a step: by NVML's counter, by power readings, by RAPL, or with the reason why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.machine.host_sampler import PackageEnergy
from sysbench.core.machine.sample import DeviceSample, HostSample, Sample
from sysbench.core.machine.telemetry_summary import mean_power
from sysbench.core.record import events
from sysbench.core.record.job import JobStep, WatchedJob
from sysbench.core.record.record import Record
from sysbench.core.runs.builder import RecordBuilder
from sysbench.core.runs.run_directory import create_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.watch.job_block import job_timing
from sysbench.tui.cli import main
from tests.factories import spread, timing

SECOND = 10**9
PROBE = """
import json, msgspec
from sysbench.core.machine.machine_reader import Probe
with Probe(gpm=False) as probe:
    taken = [probe.take() for _ in range(7)]
print(json.dumps([msgspec.to_builtins(sample) for sample in taken]))
"""
STEPS, STEP_MS = 30, 100.0


def at_half_seconds(samples: Sequence[Any]) -> list[Sample]:
    """The samples from 0 s on, 0.5 s apart."""
    taken = msgspec.convert(samples, list[Sample])
    return [msgspec.structs.replace(row, t_ns=n * SECOND // 2) for n, row in enumerate(taken)]


def of_host(t_ns: int, joules: float | None) -> Sample:
    host = HostSample(cores=2, cpu=0.5, memory_used_bytes=1, memory_total_bytes=2)
    return Sample(t_ns=t_ns, host=msgspec.structs.replace(host, energy_joules=joules))


def measured(
    samples: Sequence[Sample],
    device: str = "cuda:0",
    seconds: float = 3.0,
    **place: Any,
) -> Record:
    """A run whose steps of 100 ms end after some seconds."""
    run = create_run(RunSpec(model="tiny", device=device), ["timing"])
    builder = RecordBuilder(run, run.header(), {})
    block = timing(spread(STEP_MS, n=STEPS), samples_ms=[STEP_MS] * STEPS, tokens_per_second=5120.0)
    index = 0 if device != "cpu" else None
    sampled = [
        events.TelemetrySampled(t_ns=row.t_ns, sample=msgspec.to_builtins(row), device_index=index)
        for row in samples
    ]
    end_ns = round(seconds * SECOND)
    last: list[events.AnyEvent] = [
        events.StepsTimed(
            t_ns=end_ns,
            first_index=0,
            step_ms=[STEP_MS] * STEPS,
            phases_ms={},
            median_ms=STEP_MS,
            half_width=0.01,
        ),
        events.ResultReported(t_ns=end_ns, block="timing", data=msgspec.to_builtins(block)),
        events.PassEnded(
            t_ns=9 * SECOND, name="timing", outcome="finished", detail="", seconds=9.0, exit_code=0
        ),
    ]
    for event in (
        events.RunStarted(
            t_ns=0,
            run=run.id,
            pid=1,
            identity="",
            passes=["timing"],
            spec=run.header().spec.known(),
        ),
        events.PassStarted(t_ns=0, name="timing", pid=1, **place),
        events.StageEntered(t_ns=0, stage="measure"),
        *sampled,
        *last,
    ):
        builder.add(event)
    builder.add(events.RunEnded(t_ns=9 * SECOND, status="finished"))
    run.write_record(builder.record())
    return builder.record()


@pytest.fixture(autouse=True)
def home(sysbench_home: Path) -> Path:
    return sysbench_home


def test_the_counter_of_nvml_is_read_between_the_steps(on_stub: Callable[..., Any]) -> None:
    """The stub's counter grows by 500 J from one sample to the next: 1000 W, 100 J a step."""
    record = measured(at_half_seconds(on_stub(PROBE)))
    assert record.timing is not None and (energy := record.timing.energy) is not None
    assert (energy.source, energy.seconds) == ("counter", 3.0)
    assert energy.joules_per_step == pytest.approx(100.0)
    assert energy.joules_per_token == pytest.approx(100.0 / 512)
    assert energy.uncertainty == pytest.approx(0.1 / 3)


def test_without_a_counter_power_readings_are_integrated(on_stub: Callable[..., Any]) -> None:
    record = measured(at_half_seconds(on_stub(PROBE, NVML_STUB_REFUSE="field83:3")))
    assert record.timing is not None and (energy := record.timing.energy) is not None
    assert (energy.source, energy.uncertainty) == ("sampled power", None)
    assert energy.joules_per_step == pytest.approx(61.2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"seconds": 0.9}, "at least 1 s apart"),
        ({"duet": True, "experiment": "e", "block": 0, "position": 0}, "took turns"),
        ({"device": "cpu"}, "(RAPL) cannot be read"),
    ],
)
def test_an_unknown_energy_has_its_reason(
    options: dict[str, Any], reason: str, on_stub: Callable[..., Any]
) -> None:
    record = measured(at_half_seconds(on_stub(PROBE)), **options)
    assert record.timing is not None and record.timing.energy is None
    assert reason in record.timing.missing["energy"]


def test_energy_is_shown_and_compared(
    on_stub: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    samples = at_half_seconds(on_stub(PROBE))
    a, b = measured(samples), measured(samples[:1])
    assert main(["show", a.id]) == 0
    assert capsys.readouterr().out.count("100 J a step (counter)") == 2
    assert main(["show", b.id, "--section", "timing"]) == 0
    assert "at least 1 s apart" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", a.id, b.id]) == 0
    shown = capsys.readouterr().out.partition("Energy on the device: not tested")[2]
    assert shown.splitlines()[2].split() == ["A", "100", "0.1953", "counter"]
    assert main(["compare", a.id, b.id, "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["a_energy"]["joules_per_step"] == pytest.approx(100.0)
    assert comparison["b_energy"] is None


def test_energy_of_a_watched_command_is_that_of_its_steps() -> None:
    """Of steps that count: not of the warm-up, nor of steps before the end of a window."""
    steps = [
        JobStep(
            step=n,
            rank=0,
            start_ns=n * SECOND,
            wall_ms=1000.0,
            input_ms=0.0,
            forward_ms=0.0,
            backward_ms=0.0,
            optimizer_ms=0.0,
            evaluation_ms=0.0,
            other_ms=1000.0,
            traced=n == 7,
        )
        for n in range(20)
    ]
    job = WatchedJob(
        command=["x"],
        exit_code=0,
        wall_ms=1.0,
        world_size=1,
        ranks=[],
        steps=steps,
        warmup_steps=5,
    )
    assert job.measured_span == (8 * SECOND, 20 * SECOND, 12)
    run = create_run(RunSpec(workload="job", model="x", command='["x"]'), ["timing"])
    builder = RecordBuilder(run, run.header(), {"settings": {"device": "cpu"}})
    block = job_timing({0: steps}, "")
    assert block is not None
    measured_events: list[events.AnyEvent] = [
        events.PassStarted(t_ns=0, name="timing", pid=1),
        *(
            events.TelemetrySampled(
                t_ns=n * SECOND, sample=msgspec.to_builtins(of_host(n * SECOND, 7.0 * n))
            )
            for n in range(21)
        ),
        events.ResultReported(t_ns=0, block="timing", data=msgspec.to_builtins(block)),
        events.ResultReported(t_ns=0, block="job", data=msgspec.to_builtins(job)),
        events.PassEnded(name="timing", outcome="finished", detail="", seconds=1.0, exit_code=0),
    ]
    for event in measured_events:
        builder.add(event)
    found = builder.record().timing
    assert found is not None and found.energy is not None
    assert found.energy.joules_per_step == pytest.approx(7.0)
    assert found.energy.joules_per_token is None


@given(
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 1000)), min_size=2, max_size=20),
    st.booleans(),
)
def test_mean_power_times_its_time_is_the_energy(
    parts: list[tuple[float, float]], has_counter: bool
) -> None:
    t_ns, joules, before, samples = 0, 0.0, parts[0][1], []
    for seconds, watts in [(0.0, parts[0][1]), *parts]:
        t_ns += round(seconds * SECOND)
        joules += seconds * (before + watts) / 2
        before = watts
        counter = joules if has_counter else None
        gpu = DeviceSample(index=0, name="g", power_watts=watts, energy_joules=counter)
        samples.append(Sample(t_ns=t_ns, devices=[gpu], host=of_host(0, None).host))
    power = mean_power(samples, 0, (0, t_ns))
    if t_ns < SECOND:
        assert power is None
    else:
        assert power is not None
        assert power.source == ("counter" if has_counter else "sampled power")
        assert power.watts * power.seconds == pytest.approx(joules, rel=1e-6, abs=1e-6)


def test_rapl_counters_of_all_packages_add_up_and_wrap(tmp_path: Path) -> None:
    assert PackageEnergy(tmp_path).joules() is None
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "max_energy_range_uj").write_text("10000000\n")
        (tmp_path / name / "energy_uj").write_text("9000000\n")
    energy = PackageEnergy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("9500000\n")
    assert energy.joules() == pytest.approx(0.5)
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("1000000\n")
    assert energy.joules() == pytest.approx(2.5)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()  # as for a user who may not read it
    assert energy.joules() is None
