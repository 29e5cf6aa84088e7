from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.machine.sample import DeviceSample, HostSample, ProcessUse, Sample
from sysbench.core.machine.telemetry_summary import conditions, summarise

SECOND = 10**9


def sample(
    t_ns: int, *devices: DeviceSample, cpu: float | None = 0.5, no_devices: str = ""
) -> Sample:
    host = HostSample(cores=4, cpu=cpu, memory_used_bytes=100 + t_ns, memory_total_bytes=1000)
    return Sample(t_ns=t_ns, devices=list(devices), host=host, no_devices=no_devices)


def gpu(index: int = 0, **fields: Any) -> DeviceSample:
    return DeviceSample(index=index, name="a GPU", **fields)


ratios = st.one_of(st.none(), st.floats(0, 1))


@given(st.lists(ratios, min_size=1, max_size=30))
def test_a_series_counts_what_was_reported_and_nothing_else(values: list[float | None]) -> None:
    summary = summarise([sample(n, gpu(utilization=v)) for n, v in enumerate(values)], 0)
    known = sorted(value for value in values if value is not None)
    if not known:
        assert "device0.utilization" not in summary.series
        assert summary.missing["device0.utilization"]
        return
    spread = summary.series["device0.utilization"]
    assert spread["n"] == len(known)
    assert (spread["min"], spread["max"]) == (known[0], known[-1])
    below = sum(value <= spread["median"] for value in known)
    above = sum(value >= spread["median"] for value in known)
    assert min(below, above) >= len(known) / 2
    assert "device0.utilization" not in summary.missing


@given(
    st.lists(st.integers(0, 100), max_size=30, unique=True).map(sorted),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_only_samples_between_the_two_instants_count(times: list[int], a: int, b: int) -> None:
    low, high = sorted((a, b))
    summary = summarise([sample(t) for t in times], None, [(low, high)])
    inside = [t for t in times if low <= t <= high]
    assert summary.samples == len(inside)
    if inside:
        assert summary.series["host.memory_used_bytes"] == {
            "min": 100 + inside[0],
            "median": pytest.approx(
                100 + (inside[len(inside) // 2] + inside[~(len(inside) // 2)]) / 2
            ),
            "max": 100 + inside[-1],
            "n": len(inside),
        }
    else:
        assert summary.series == {}
        assert summary.missing["samples"]


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1000)), min_size=2, max_size=20))
def test_power_from_the_counter_integrates_to_its_energy(
    steps: list[tuple[int, float]],
) -> None:
    t_ns, joules, samples = 0, 0.0, []
    watts = []
    for seconds, power in steps:
        samples.append(sample(t_ns, gpu(energy_joules=joules)))
        t_ns, joules = t_ns + seconds * SECOND, joules + seconds * power
        watts.append(power)
    spread = summarise(samples, 0).series["device0.energy_watts"]
    assert spread["n"] == len(steps) - 1
    assert spread["max"] == pytest.approx(max(watts[:-1]), abs=1e-6)
    assert spread["min"] == pytest.approx(min(watts[:-1]), abs=1e-6)


def test_a_counter_that_restarts_gives_no_power() -> None:
    counter = [1000.0, 1200.0, 5.0, 105.0]
    samples = [sample(n * SECOND, gpu(energy_joules=value)) for n, value in enumerate(counter)]
    spread = summarise(samples, 0).series["device0.energy_watts"]
    assert (spread["min"], spread["max"], spread["n"]) == (100, 200, 2)


def test_the_first_cpu_share_is_unknown_not_zero() -> None:
    samples = [sample(0, cpu=None), sample(1, cpu=0.25), sample(2, cpu=0.75)]
    spread = summarise(samples, None).series["host.cpu_percent"]
    assert spread == {"min": 25, "median": 50, "max": 75, "n": 2}
    assert "host.cpu_percent" in summarise(samples[:1], None).missing


def test_a_run_on_the_cpu_has_no_device_series() -> None:
    summary = summarise([sample(0, gpu(utilization=0.5))], None)
    assert set(summary.series) == {"host.cpu_percent", "host.memory_used_bytes"}
    assert summary.missing == {}


def test_only_the_device_of_the_run_counts() -> None:
    summary = summarise([sample(0, gpu(0, utilization=0.1), gpu(1, utilization=0.9))], 1)
    assert summary.series["device1.utilization"]["median"] == 0.9
    assert not any(key.startswith("device0") for key in summary.series)


def test_a_lost_device_keeps_its_series_and_is_named() -> None:
    samples = [sample(0, gpu(utilization=0.5)), sample(1, gpu(lost=True))]
    summary = summarise(samples, 0)
    assert summary.series["device0.utilization"]["n"] == 1
    assert "lost" in summary.missing["device0"]


@pytest.mark.parametrize(
    ("devices", "no_devices", "reason"),
    [
        ([gpu(mig=True)], "", "MIG slice"),
        ([gpu(0), gpu(1)], "", "CUDA_DEVICE_ORDER"),
        ([], "no NVIDIA driver", "no NVIDIA driver"),
    ],
)
def test_a_gpu_that_nvml_cannot_identify_has_a_reason(
    devices: list[DeviceSample], no_devices: str, reason: str
) -> None:
    samples = [sample(0, *devices, no_devices=no_devices)]
    summary = summarise(samples, None, on_cuda=True)
    assert reason in summary.missing["device"]
    assert "device" not in summarise(samples, None).missing


@pytest.mark.parametrize("reason", ["no NVIDIA driver", ""])
def test_no_device_gives_the_reason(reason: str) -> None:
    summary = summarise([sample(0, no_devices=reason)], 0)
    assert summary.missing["device0"] == (reason or "the driver does not list this device")


def test_clock_reasons_are_listed_once_in_the_order_seen() -> None:
    reasons: list[list[str] | None] = [["idle"], None, ["power cap"], ["power cap", "idle"], []]
    samples = [sample(n, gpu(clock_reasons=words)) for n, words in enumerate(reasons)]
    assert summarise(samples, 0).clock_reasons == ["power cap"]


@pytest.mark.parametrize("state", ["idle", "display clocks"])
def test_what_a_gpu_does_by_itself_holds_no_clock(state: str) -> None:
    samples = [sample(n, gpu(clock_reasons=[state])) for n in range(3)]
    assert summarise(samples, 0).clock_reasons == []
    around = conditions(samples, 0, lived=(0, 2), measured=(0, 2), own_pids=frozenset())
    assert around.clock_reasons == []


def test_other_processes_are_named_with_the_most_they_held() -> None:
    def uses(*held: tuple[int, int | None]) -> list[ProcessUse]:
        return [ProcessUse(pid=p, name=f"p{p}", memory_bytes=m) for p, m in held]

    samples = [
        sample(0, gpu(processes=uses((1, 50), (2, 10), (3, None)))),
        sample(1, gpu(processes=uses((2, 30), (3, None)))),
        sample(2, gpu(processes=None)),
        sample(3, gpu(processes=uses((2, 20)))),
    ]
    assert summarise(samples, 0, own_pids=frozenset({1})).other_processes == [
        {"pid": 2, "name": "p2", "memory_bytes": 30},
        {"pid": 3, "name": "p3", "memory_bytes": None},
    ]


def test_ids_of_the_host_are_no_other_processes_in_a_container() -> None:
    def seen(*pids: int) -> list[Sample]:
        rows = [ProcessUse(pid=pid, name="unseen process", memory_bytes=7) for pid in pids]
        return [sample(0, gpu(processes=[*rows, ProcessUse(pid=9, name="Xorg")]))]

    hidden = summarise(seen(40_001, 40_002), 0, own_pids=frozenset({12}))
    assert [row["name"] for row in hidden.other_processes] == ["Xorg"]
    assert "ids of the host" in hidden.missing["other_processes"]
    known = summarise(seen(12, 40_002), 0, own_pids=frozenset({12}))
    assert [row["pid"] for row in known.other_processes] == [40_002, 9]
    assert "other_processes" not in known.missing


def test_the_conditions_of_a_process_are_of_its_measured_part_and_its_tenants_of_its_life() -> None:
    def at(t_ns: int, clock: int, pid: int) -> Sample:
        processes = [ProcessUse(pid=1, name="own"), ProcessUse(pid=pid, name="other")]
        reasons = ["power cap"] if clock == 900 else []
        return sample(
            t_ns,
            gpu(
                sm_clock_mhz=clock,
                temperature_celsius=clock // 20,
                clock_reasons=reasons,
                processes=processes,
            ),
        )

    samples = [at(0, 300, 6), at(10, 400, 7), at(20, 1000, 8), at(30, 900, 8), at(90, 200, 9)]
    around = conditions(samples, 0, lived=(5, 40), measured=(20, 30), own_pids=frozenset({1}))
    assert (around.sm_clock_mhz, around.temperature_celsius) == (950, 47.5)
    assert around.clock_reasons == ["power cap"]
    assert around.tenants == ["other (7)", "other (8)"]
    unknown = conditions(samples, None, lived=(5, 40), measured=(20, 30), own_pids=frozenset())
    assert (unknown.sm_clock_mhz, unknown.tenants) == (None, [])


def test_samples_of_every_measured_part_count() -> None:
    summary = summarise([sample(t) for t in range(10)], None, [(1, 2), (5, 7)])
    assert summary.samples == 5
