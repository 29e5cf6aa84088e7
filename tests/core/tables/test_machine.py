"""Tables of this machine, and the sentence about what ran beside a run."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sysbench.core.machine.sample import DeviceSample, GpuProcess, GpuState, ProcessState
from sysbench.core.record.events import Neighbour
from sysbench.core.record.record import Finding, PassRecord, Telemetry
from sysbench.core.tables.cells import cells_as_text
from sysbench.core.tables.machine_tables import (
    age_text,
    clock_limits,
    disturbed_words,
    gpu_notes,
    gpu_processes_table,
    gpus_table,
    host_table,
    others_of,
)
from tests.factories import host_state, record


def gpu(index: int = 0, missing: dict[str, str] | None = None, **fields: Any) -> GpuState:
    sample = DeviceSample(index=index, name="NVIDIA H100 80GB HBM3", **fields)
    return GpuState(sample=sample, missing=missing or {})


def test_what_is_not_reported_is_not_zero() -> None:
    row = gpus_table([gpu()]).mapping(0)
    assert row["name"] == "H100 80GB HBM3"
    assert (row["utilization"], row["power_watts"], row["memory_used_bytes"]) == (None,) * 3
    assert row["clock_limits"] == "n/a"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ([], "none"),
        (["idle"], "none"),
        (["idle", "power cap", "hardware thermal"], "power cap, hardware thermal"),
        (None, "n/a"),
    ],
)
def test_limits_of_the_clock_are_words(reasons: list[str] | None, words: str) -> None:
    assert clock_limits(gpu(clock_reasons=reasons)) == words


def test_gpus_with_the_same_reasons_share_a_note() -> None:
    same = {"utilization": "not supported", "memory_busy": "not supported"}
    gpus = [gpu(0, same), gpu(1, {"fan_share": "no fan"}), gpu(2, same), gpu(3)]
    assert gpu_notes(gpus) == [
        "GPU 0, 2 n/a: busy, mem busy: not supported",
        "GPU 1 n/a: fan: no fan",
    ]


def test_a_process_of_the_host_has_no_cells_of_a_gpu() -> None:
    table = gpu_processes_table(
        [
            GpuProcess(pid=7, gpu=1, kind="compute", gpu_instance=3, missing="no permission"),
            ProcessState(pid=8, command="a", age_seconds=90, cores=0.5),
        ]
    )
    on_gpu, on_host = (dict(zip(table.columns, row, strict=True)) for row in cells_as_text(table))
    assert (on_gpu["gpu"], on_gpu["pid"], on_gpu["gpu_memory_bytes"]) == ("1/3", "7", "–")
    assert (on_gpu["user"], on_gpu["command"]) == ("n/a", "(n/a: no permission)")
    assert (on_host["gpu"], on_host["kind"], on_host["age"]) == ("–", "", "1.5 min")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "n/a"), (0, "0 s"), (59, "59 s"), (60, "1.0 min"), (3600 * 12, "12 h"), (2e6, "23 d")],
)
def test_an_age_has_one_unit(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text


def test_the_host_says_why_a_value_is_absent() -> None:
    rows = {row["quantity"]: row for row in host_table(host_state(cpu=None)).mappings()}
    assert (rows["cpu_share"]["value"], rows["cpu_share"]["note"]) == (None, "needs two readings")
    assert rows["library_free_bytes"]["value"] == 2**37
    assert rows["temporary_free_bytes"]["note"] == "Permission denied"


def beside(*rules: str, gpu_processes: bool = False) -> Any:
    telemetry = Telemetry(
        interval_seconds=0.5,
        samples=9,
        series={},
        clock_reasons=[],
        other_processes=[{"pid": 4211, "name": "python", "memory_bytes": 2**31}]
        if gpu_processes
        else [],
    )
    timed = PassRecord(
        name="timing",
        outcome="finished",
        detail="",
        seconds=1.0,
        neighbours=[Neighbour(name="stress", cores=3.36), Neighbour(name="sshd", cores=0.02)],
    )
    findings = [
        Finding(rule=rule, severity="warning", verdict=f"{rule}.", why="", next="")
        for rule in rules
    ]
    return replace(
        record(),
        telemetry=telemetry,
        passes=[timed],
        environment={"cpu": {"threads": 4}},
        findings=findings,
    )


def test_what_disturbed_a_run_is_named() -> None:
    disturbed = beside("other-tenants", "busy-machine", gpu_processes=True)
    assert disturbed_words(disturbed) == (
        "disturbed by python (pid 4211) on the GPU, 2.00 GiB; stress on 3.4 cores, 84 % of all."
    )
    assert [other.name for other in others_of(disturbed)] == ["python", "stress"]


def test_a_process_that_no_finding_blames_is_only_named() -> None:
    words = disturbed_words(beside())
    assert words.startswith("also running: stress on 3.4 cores") and "disturbed" not in words


def test_rounds_that_were_lost_are_added() -> None:
    assert disturbed_words(beside("lost-rounds")).endswith(" lost-rounds.")


def test_a_record_without_telemetry_says_so() -> None:
    assert disturbed_words(record()) == "its record has no telemetry."
