"""Records by hand: the parts that a test does not speak of have values that decide nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from sysbench.core.machine.sample import (
    DeviceSample,
    DiskUse,
    GpuProcess,
    GpuState,
    HostState,
    MachineState,
    ProcessState,
)
from sysbench.core.record.record import Compile, Record, Round, Spread, Timing
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import Table


def spread(
    median: float, low: float | None = None, high: float | None = None, **fields: Any
) -> Spread:
    """A series with its median and interval in milliseconds; the interval is a point by default."""
    low, high = (median if end is None else end for end in (low, high))
    values: dict[str, Any] = {
        "median_ms": median,
        "ci_low_ms": low,
        "ci_high_ms": high,
        "mad_ms": 0.0,
        "iqr_ms": 0.0,
        "mean_ms": median,
        "std_ms": 0.0,
        "min_ms": low,
        "max_ms": high,
        "p10_ms": low,
        "p90_ms": high,
        "n": 30,
        "drift": 0.0,
    }
    return Spread(**values | fields)


def timing(step: Spread, **fields: Any) -> Timing:
    """A timing block of one phase that takes the whole step."""
    values: dict[str, Any] = {
        "clock": "host",
        "step": step,
        "phases": {"forward": step},
        "issue": None,
        "wall_ms": None,
        "first_step_ms": 1.0,
        "warmup_ms": [],
        "warmup_settled": True,
        "samples_ms": [],
        "phase_samples_ms": {},
        "stop_reason": "",
        "settled": True,
        "tokens_per_second": 1.0,
        "model_flops": 1.0,
        "tflops": 1.0,
        "mfu": None,
    }
    return Timing(**values | fields)


def record(spec: RunSpec | None = None, **fields: Any) -> Record:
    """A finished run without a block."""
    spec = spec or RunSpec(device="cpu")
    values: dict[str, Any] = {
        "id": "run",
        "identity": spec.identity,
        "status": "finished",
        "created_ns": 0,
        "spec": msgspec.to_builtins(spec),
        "parameters": 1,
        "environment": {},
    }
    return Record(**values | fields)


def compiled(**fields: Any) -> Compile:
    """One whole graph of Inductor's, without breaks; fields replace these."""
    whole = Compile(
        mode="default",
        backend="inductor",
        scope="whole",
        first_step_ms=900.0,
        compile_seconds=30.0,
        graphs=1,
        graph_breaks={},
        recompiles=0,
        fell_back=False,
    )
    return msgspec.structs.replace(whole, **fields)


def rounds(medians_ms: Sequence[float], **fields: Any) -> list[Round]:
    """Finished processes of a run, a median each; ``experiment`` makes ABBA blocks of them."""
    rows = []
    for n, median in enumerate(medians_ms):
        place = {"block": n // 2, "position": n % 2} if "experiment" in fields else {}
        values: dict[str, Any] = {
            "index": n + 1,
            "started_ns": n,
            "outcome": "finished",
            "median_ms": median,
            "steps": 30,
        }
        rows.append(Round(**values | place | fields))
    return rows


def record_of_rounds(
    medians_ms: Sequence[float], spec: RunSpec | None = None, **fields: Any
) -> Record:
    """A run that was timed by N processes; one process is a run without rounds."""
    median = statistics.median(medians_ms)
    several = {"rounds": rounds(medians_ms, **fields), "interval_of": "rounds"}
    block = timing(spread(median), **(several if len(medians_ms) > 1 or fields else {}))
    return record(spec, timing=block, environment={"cpu": {"model": "one"}})


def table_named(record: Record, name: str) -> Table:
    """One of the record's tables."""
    return next(table for table in tables_of(record) if table.name == name)


def host_state(**fields: Any) -> HostState:
    """A host of four cores; one of its folders cannot be read."""
    values: dict[str, Any] = {
        "cores": 4,
        "cpu": 0.5,
        "core_shares": [1.0, 0.5, 0.25, None],
        "load_average": [1.5, 1.0, 0.5],
        "memory_used_bytes": 2**33,
        "memory_total_bytes": 2**34,
        "swap_used_bytes": 0,
        "swap_total_bytes": 0,
        "disks": {
            "library": DiskUse(path="/data", free_bytes=2**37, total_bytes=2**38),
            "temporary": DiskUse(path="/tmp", missing="Permission denied"),
        },
        "uptime_seconds": 90_000.0,
    }
    return HostState(**values | fields)


def machine_state(gpus: int, *, busy: float = 0.4, lost: int | None = None) -> MachineState:
    """A machine with GPUs, a process on the last one, and three processes of the host."""
    states = [
        GpuState(
            sample=DeviceSample(
                index=index,
                name="NVIDIA H100 80GB HBM3",
                lost=index == lost,
                utilization=busy,
                sm_active=0.37,
                memory_used_bytes=(10 + index) * 2**30,
                memory_total_bytes=79 * 2**30,
                power_watts=612.0,
                power_limit_watts=700.0,
                sm_clock_mhz=1755,
                temperature_celsius=61,
                clock_reasons=["power cap", "software thermal"],
            ),
            performance_state="P0",
        )
        for index in range(gpus)
    ]
    on_gpu = GpuProcess(
        pid=4211,
        name="python",
        user="ada",
        command="python train.py --lr 3e-4",
        cores=1.5,
        memory_bytes=2**31,
        age_seconds=12_240,
        gpu=gpus - 1,
        kind="compute",
        gpu_memory_bytes=9 * 2**30,
        sm_share=0.35,
    )
    others = [
        ProcessState(
            pid=pid,
            name=name,
            user="root",
            command=name,
            cores=cores,
            memory_bytes=2**26,
            age_seconds=90.0,
        )
        for pid, name, cores in ((77, "stress", 3.0), (78, "sshd", 0.02), (79, "cron", 0.0))
    ]
    return MachineState(
        t_ns=1,
        gpus=states,
        no_gpus="" if gpus else "no NVIDIA driver: libnvidia-ml.so.1 was not found",
        driver="580.95.05" if gpus else None,
        cuda="13.0" if gpus else None,
        gpu_processes=[on_gpu] if gpus else [],
        processes=others,
        process_count=3,
        host=host_state(),
    )
