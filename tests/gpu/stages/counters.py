"""What NVML and GPM answer to this user on this card, what asking costs, and beside CUPTI."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec

from sysbench.core import RunSpec, run
from sysbench.core.machine.devices import nvml_index, sample_of
from sysbench.core.machine.doctor_checks import examine
from sysbench.core.machine.machine_reader import Probe, Sampler
from sysbench.core.machine.nvml import read_throttle_time, throttle_shares
from sysbench.core.machine.sample import DeviceSample, Sample
from tests.gpu.stages.stage import NO_TIME, Bench, header, line

READINGS = 50
ACTIVITY = ("sm_active", "tensor_active", "dram_active")
KEPT_SAMPLES = 40
NOBODYS = ("uuid", "processes", "name", "index")
"""Fields that say nothing of the card's counters, or too much of its owner."""


def lines(bench: Bench) -> Iterator[str]:
    """What doctor finds, the fields under load, the counters beside a profiler, and the cost."""
    yield from header("doctor", "status", "found")
    for check in examine():
        if check.name not in ("home", "terminal", "host memory", "load"):
            yield line([check.name, check.status, check.found])
    yield ""
    device = sample_of(bench.device)
    if device is None:
        yield "NVML cannot identify the device: nothing else is read."
        return
    yield from _under_load(bench, device)
    yield ""
    yield from _cost(bench)


def _under_load(bench: Bench, device: DeviceSample) -> Iterator[str]:
    taken: list[Sample] = []
    model = "tiny" if bench.is_quick else "cs336-2025/small"
    spec = RunSpec(model=model, device=bench.device, precision="bf16", max_seconds=6)
    sets = {}
    for name in ("timing", "trace"):
        first, before = len(taken), read_throttle_time(device.uuid)
        with Sampler(taken.append) as sampler:
            record = run(spec, [name]).record
        shares, why_none = throttle_shares(before, read_throttle_time(device.uuid))
        sets[name] = (_of(bench, taken[first:]), shares, why_none, sampler.error, record)
    timed = sets["timing"][0]
    yield f"Fields of {len(timed)} samples while {model} ran, and how many samples have each:"
    yield ""
    yield from header("field", "samples", "least", "most")
    for field in msgspec.structs.fields(DeviceSample):
        if field.name in NOBODYS:
            continue
        values = [v for one in timed if (v := getattr(one, field.name)) is not None]
        ends = [str(end(values)) for end in (min, max)] if _is_numeric(values) else ["", ""]
        yield line([field.name, str(len(values)), *ends])
    yield ""
    for name, (samples, shares, why_none, error, record) in sets.items():
        active = sum(any(getattr(one, key) is not None for key in ACTIVITY) for one in samples)
        held = why_none or ", ".join(f"{key} {share:.1%}" for key, share in (shares or {}).items())
        held = NO_TIME if bench.is_null else held
        text = f"{name} pass {record.passes[0].outcome}, GPM answered in {active} of {len(samples)}"
        text += f" samples; clock held: {held}"
        if record.kernels is not None:
            coverage = record.kernels.coverage
            text += f"; {coverage.kernels} {record.kernels.source} of {coverage.launches} launches"
        yield f"- {text}" + (f"; sampler: {error}" if error else "")
    missing = record.telemetry.missing if record.telemetry else {}
    yield from (f"- telemetry without {name}: {why}" for name, why in missing.items())
    yield ""
    plain = [msgspec.structs.replace(one, uuid="", processes=None) for one in timed]
    yield bench.keep(msgspec.json.encode(plain[:KEPT_SAMPLES]), "nvml.json")


def _of(bench: Bench, samples: list[Sample]) -> list[DeviceSample]:
    return [
        device
        for sample in samples
        for device in sample.devices
        if device.index == nvml_index(bench.device, sample.devices)
    ]


def _is_numeric(values: list[object]) -> bool:
    return bool(values) and all(type(value) in (int, float) for value in values)


def _cost(bench: Bench) -> Iterator[str]:
    """Host time of a reading; the first of a pair within 100 ms leaves GPM alone."""
    yield from header("reading", "median µs", "most µs")
    for name, gpm, pause in (("NVML", False, 0.0), ("NVML and GPM", True, 0.11)):
        times = []
        with Probe(gpm=gpm) as probe:
            probe.take()
            for _ in range(5 if bench.is_quick else READINGS):
                time.sleep(pause)
                began = time.perf_counter()
                probe.take()
                times.append((time.perf_counter() - began) * 1e6)
        yield line([name, *(bench.time(end(times), "{:.0f}") for end in (statistics.median, max))])
