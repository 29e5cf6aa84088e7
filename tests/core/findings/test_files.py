"""Findings of imported files, on files written by hand and real ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.findings.files_rules import findings_of_file
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.record.record import Finding
from sysbench.core.tables.trust import coverage_warning
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace

MIB = 2**20
GEMM, NCCL = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def verdicts(writer: Any) -> dict[str, str]:
    kernels = kernel_rows(time_ledger(read_trace(writer.write())))
    return {finding.rule: finding.verdict for finding in findings_of_file(kernels)}


def test_normal_file_has_no_finding(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 100)
    writer.launch(1, NCCL, 50, 60, stream=14)
    writer.launch(5, GEMM, 115, 100)
    assert verdicts(writer) == {}


def test_idle_time_names_its_main_cause(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 50)
    writer.launch(90, GEMM, 95, 15)
    assert verdicts(writer) == {
        "file-device-idle": "The GPU is idle for 35 % of the span, mostly waiting for the CPU to "
        "launch."
    }
    writer.launch(1, GEMM, 138, 20)  # 28 ns more, launched long before
    assert verdicts(writer)["file-device-idle"].endswith("of the span, for several reasons.")


def test_a_file_of_the_gpu_alone_has_one_reason(writer: Any, inspected: Inspected) -> None:
    for number in range(4):
        writer.work(GEMM, 18_000_000_000 * number, 40, correlation=number + 1)
    found = inspected(writer.write())
    (idle,) = (finding for finding in found.findings if finding.rule == "file-device-idle")
    assert idle.verdict.endswith("mostly before kernels whose launch is not recorded.")
    assert idle.why.startswith("Of 54,000 ms: cause unknown 54,000 ms.")
    assert found.kernels is not None
    assert coverage_warning(found.kernels).startswith("The file has no launches of the CPU")


def test_exposed_communication(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 60)
    writer.launch(1, NCCL, 50, 40, stream=14)
    assert verdicts(writer) == {
        "file-exposed-communication": "25 % of the span is exposed communication."
    }


def test_odd_step_names_the_largest_difference(writer: Any) -> None:
    writer.launch(0, "before", 5, 5)
    for number in range(1, 6):
        length = 800 if number == 4 else 500
        writer.add("user_annotation", f"ProfilerStep#{number}", 1000 * number, length)
        writer.launch(1000 * number, GEMM, 1000 * number + 3, 490)
        if number == 4:
            writer.launch(4001, NCCL, 4493, 307, stream=14)
    kernels = kernel_rows(time_ledger(read_trace(writer.write())))
    odd = {finding.rule: finding for finding in findings_of_file(kernels)}["file-odd-step"]
    assert odd.verdict == "Step 4 is 60 % slower than the other steps."
    assert "the largest difference is exposed communication" in odd.why
    assert "--step 4" in odd.next
    chosen = kernel_rows(time_ledger(read_trace(writer.path), steps=(4, 4)))
    assert "file-odd-step" not in {finding.rule for finding in findings_of_file(chosen)}


def test_file_without_a_device_has_no_idle_finding(writer: Any) -> None:
    writer.op("aten::mm", 0, 10)
    writer.op("aten::mm", 100, 10)
    assert verdicts(writer) == {}


Inspected = Callable[[Path], Inspection]


def whys(inspection: Inspection) -> dict[str, str]:
    return {finding.rule: finding.why for finding in inspection.findings}


def test_idle_device_names_the_longest_calls(shared_data: Path, inspected: Inspected) -> None:
    more = shared_data / "more"
    # The first launch loaded its code: 1,565,347 µs.
    why = whys(inspected(more / "kin_resnet50_autograd.json.gz"))["file-device-idle"]
    assert "The longest launch call, cudaLaunchKernel, took 1565 ms." in why
    why = whys(inspected(more / "tl_sglang_prefilldecode.json.gz"))["file-device-idle"]
    assert "493.5 ms of it lie outside the marked steps" in why


def test_idle_device_names_the_open_annotation(
    writer: Any, shared_data: Path, inspected: Inspected
) -> None:
    writer.add("user_annotation", "ProfilerStep#1", 0, 300)
    writer.add("user_annotation", "train", 0, 300)
    writer.add("user_annotation", "load the batch", 70, 110)
    writer.launch(0, GEMM, 10, 50)
    writer.launch(200, GEMM, 205, 95)
    inspection = inspected(writer.write())
    why = whys(inspection)["file-device-idle"]
    # The device waits from 60 to 200, of which the batch is loaded from 70 to 180.
    assert "0.00011 of 0.00014 ms of the wait for launches lie in the annotation load the" in why
    assert inspection.kernels is not None and inspection.kernels.host is not None
    assert {row.name: row.late_ns for row in inspection.kernels.host.annotations} == {
        "ProfilerStep#*": 140,
        "train": 140,
        "load the batch": 110,
    }
    why = whys(inspected(shared_data / "more" / "hta_rank0.json.gz"))["file-device-idle"]
    assert "153.8 of 281.1 ms of the wait for launches lie in the annotation ## backward ##." in why


def test_idle_device_names_the_longest_synchronization(writer: Any, inspected: Inspected) -> None:
    writer.launch(0, GEMM, 10, 50)
    writer.call("cudaStreamSynchronize", 30, 60)
    writer.launch(100, GEMM, 105, 15)
    why = whys(inspected(writer.write()))["file-device-idle"]
    assert "The CPU waited longest in cudaStreamSynchronize: 6e-05 ms in 1 call." in why


def test_findings_of_a_real_training(shared_data: Path, inspected: Inspected) -> None:
    path = shared_data / "traces" / "v100_ddp_train.json.gz"
    findings = inspected(path).findings
    assert [finding.verdict for finding in findings] == [
        "The GPU is idle for 42 % of the span, mostly waiting for the CPU to launch.",
        "21 % of the span is exposed communication.",
        "4,040 collective calls without name, type, sizes or group: old versions of torch do not "
        "record them, so bytes and rates are unknown.",
    ]


def findings(writer: Any, inspected: Inspected) -> dict[str, Finding]:
    return {finding.rule: finding for finding in inspected(writer.write()).findings}


def test_copies_do_not_count_as_computation(writer: Any, inspected: Inspected) -> None:
    writer.launch(0, GEMM, 10, 10)
    writer.launch(1, "Memcpy HtoD (Pinned -> Device)", 20, 90, cat="gpu_memcpy", bytes=2_000)
    found = findings(writer, inspected)["file-copies"]
    assert found.verdict == (
        "90 % of the GPU's busy time is copies, mostly from the CPU to the GPU "
        "(pinned memory, 22.2 GB/s)."
    )
    assert "kernels take 10.0 % of the busy time" in found.why
    assert found.cost == pytest.approx(0.9)


def test_pageable_copies_are_to_be_pinned(writer: Any, inspected: Inspected) -> None:
    writer.launch(0, GEMM, 10, 10)
    writer.launch(1, "Memcpy HtoD (Pageable -> Device)", 20, 90, cat="gpu_memcpy")
    found = findings(writer, inspected)["file-copies"]
    assert "GB/s" not in found.verdict  # the file has no bytes
    assert "pin_memory" in found.next


def test_waiting_for_the_loader_has_a_finding_of_its_own(writer: Any, inspected: Inspected) -> None:
    writer.launch(0, GEMM, 10, 100_000_000)
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    writer.add("user_annotation", loader, 100_000_010, 60_000_000)
    writer.launch(160_000_020, GEMM, 160_000_030, 100_000_000)
    found = findings(writer, inspected)
    assert found["file-data-loader"].verdict == (
        "The GPU waits 60 of 260 ms (23 %) for the data loader."
    )
    assert found["file-device-idle"].cost < 0.01  # the loader explains the rest


def test_many_small_kernels(writer: Any, inspected: Inspected) -> None:
    for number in range(200):
        writer.launch(number * 5, "small_kernel", 10 + number * 5, 4)
    found = findings(writer, inspected)["file-small-kernels"]
    assert found.verdict == (
        "200 of 200 kernels run for less than 5 µs; together they take 80 % of the span."
    )


def test_one_call_does_not_make_a_row(writer: Any, inspected: Inspected) -> None:
    for number in range(20):
        writer.launch(1000 + number, NCCL, 1010 + number * 1000, 14)
        writer.launch(1001 + number, GEMM, 1024 + number * 1000, 986)
    writer.launch(0, NCCL, 5, 900_000, stream=14)
    found = findings(writer, inspected)
    assert found["file-odd-call"].verdict == (
        f"One of 21 calls of {NCCL} takes 900 µs, 100 % of the span; the others take 14 ns each."
    )
    assert "file-exposed-communication" not in found


def test_a_real_export_says_what_the_gpu_waits_for(shared_data: Path, inspected: Inspected) -> None:
    """NVIDIA's ``cuda_gpu_mem_time_sum`` of the same export: 920,872,841 of 940,490,264 ns."""
    lost, first = inspected(shared_data / "nsys/h100_2gpu_1s.sqlite").findings[:2]
    assert (lost.rule, first.rule) == ("health-lost-kernels", "file-copies")
    assert first.verdict == (
        "98 % of the GPU's busy time is copies, mostly from the CPU to the GPU "
        "(pinned memory, 27.7 GB/s)."
    )


def test_a_real_trace_says_that_elementwise_kernels_dominate(
    shared_data: Path, inspected: Inspected
) -> None:
    first = inspected(shared_data / "traces/qwen15_0.5b_h100_fwd.json.gz").findings[0]
    assert first.verdict == "Elementwise and copy ops take 61 % of busy time."
    assert first.cost == pytest.approx((17.4 + 10.5) / 49.65, abs=0.02)


def snapshot_with_a_refusal(device: int) -> dict[str, Any]:
    frames = [{"filename": "/work/train.py", "line": 42, "name": "attention"}]
    trace = [
        {"action": "segment_alloc", "addr": 4096, "size": 900 * MIB, "time_us": 1, "frames": []},
        {"action": "alloc", "addr": 4096, "size": 800 * MIB, "time_us": 2, "frames": []},
        {"action": "oom", "size": 400 * MIB, "device_free": 50 * MIB, "time_us": 3}
        | {"frames": frames},
        {"action": "free_completed", "addr": 4096, "size": 800 * MIB, "time_us": 4, "frames": []},
        {"action": "alloc", "addr": 4096, "size": 10 * MIB, "time_us": 5, "frames": []},
    ]
    segment = {"device": device, "address": 4096, "total_size": 900 * MIB, "blocks": []}
    block = {"size": 10 * MIB, "requested_size": 10 * MIB, "state": "active_allocated"}
    busier = [{"action": "alloc", "addr": 1, "size": 1, "time_us": 1, "frames": []}] * 9
    traces = [busier, trace] if device else [trace]
    return {"segments": [segment | {"blocks": [block]}], "device_traces": traces}


@pytest.mark.parametrize(("device", "words"), [(0, ""), (1, " on device 1")])
def test_a_snapshot_says_which_request_ran_out_of_memory(
    device: int, words: str, tmp_path: Path, inspected: Inspected
) -> None:
    path = tmp_path / f"oom-{device}.pickle"
    path.write_bytes(pickle.dumps(snapshot_with_a_refusal(device)))
    (found,) = inspected(path).findings
    assert found.verdict == (
        f"Out of memory{words}: 400 MiB requested at work/train.py:42 attention, "
        "50.0 MiB free, 800 MiB allocated."
    )
    assert "900 MiB, of which 100 MiB were unused" in found.why


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("files/f08_oom_event", "900 MiB requested at w/model.py:77 forward, 12.0 MiB free, 70.0"),
        ("memory/snapshot-oom-one-device", "400 MiB requested at work/train.py:42 attention, 50"),
        ("memory/snapshot-oom-on-second-device", "on device 1: 400 MiB requested at work/train.py"),
    ],
)
def test_snapshots_of_others_that_ran_out(
    shared_data: Path, inspected: Inspected, case: str, words: str
) -> None:
    (found,) = inspected(shared_data / f"cases/{case}.pickle").findings
    assert words in found.verdict


def idle_of(inspection: Inspection) -> dict[str, float]:
    assert inspection.kernels is not None
    return {row.cause: row.ns for row in inspection.kernels.idle if row.ns}


@pytest.mark.parametrize(("returns", "words"), [(70, "waiting for the CPU to launch"), (900, "in")])
def test_gap_cut_at_sync_end(writer: Any, inspected: Inspected, returns: int, words: str) -> None:
    writer.launch(0, GEMM, 10, 50)
    writer.call("cudaStreamSynchronize", 20, returns - 20)
    writer.call("cudaEventSynchronize", 30, 950, tid=999)  # of a thread that launches nothing
    writer.launch(990, GEMM, 994, 6)
    inspection = inspected(writer.write())
    assert idle_of(inspection) == {
        "waiting on a sync": returns - 60,
        "host had not launched yet": 990 - returns,
        "host inside the launch call": 2,
        "between launched kernels": 2,
    }
    (found,) = inspection.findings
    assert words in found.verdict
    assert (".item()" in found.next) == (returns == 900)


def test_a_gap_of_others_that_begins_in_a_synchronization(
    shared_data: Path, inspected: Inspected
) -> None:
    inspection = inspected(shared_data / "cases/files/f05_gap_begins_in_a_sync.json")
    assert idle_of(inspection) == {
        "waiting on a sync": 2_000,
        "host had not launched yet": 99_988_000,
        "host inside the launch call": 5_000,
        "between launched kernels": 5_000,
    }
    assert ".item()" not in inspection.findings[0].next


@pytest.mark.parametrize(("length", "words"), [(5_000, "CUDA graphs"), (400_000, "loads the")])
def test_usual_launches(writer: Any, inspected: Inspected, length: int, words: str) -> None:
    for number in range(20):
        at = number * (length + 2_000)
        writer.call("cudaLaunchKernel", at, length)
        writer.work(GEMM, at + length, 1_500, correlation=writer.correlations)
    found = next(one for one in inspected(writer.write()).findings if "idle" in one.rule)
    assert words in found.next
    assert ("longest launch call" in found.why) == (length > 100_000)


@pytest.mark.parametrize("loader", ["enumerate(DataLoader)#_Iter.__next__", "data_loading"])
def test_late_for_loader(writer: Any, inspected: Inspected, loader: str) -> None:
    writer.add("user_annotation", "main", 0, 4_000)
    for number in range(4):
        begin = number * 1_000
        writer.add("user_annotation", "epoch", begin + 1, 990)
        writer.add("user_annotation", loader, begin + 2, 700)
        writer.launch(begin + 710, GEMM, begin + 720, 280)
    found = {finding.rule: finding for finding in inspected(writer.write()).findings}
    assert found["file-device-idle"].verdict.endswith("mostly waiting for the data loader.")
    assert "num_workers" in found["file-device-idle"].next
    assert f"lie in the annotation {loader}" in found["file-device-idle"].why


def test_steps_without_gpu_events(writer: Any, inspected: Inspected) -> None:
    for number in range(10):
        writer.add("user_annotation", f"ProfilerStep#{number}", 1_000 * number, 990)
        if number in (0, 3):
            writer.launch(1_000 * number + 10, GEMM, 1_000 * number + 20, 900)
    inspection = inspected(writer.write())
    found = {finding.rule: finding for finding in inspection.findings}
    assert inspection.findings[0].verdict == "8 of 10 marked steps have no GPU event."
    assert "file-odd-step" not in found


@pytest.mark.parametrize("loading", [600, 150])
def test_equal_steps(writer: Any, inspected: Inspected, loading: int) -> None:
    """The first and the last step are as long as the others, which the device does not show."""
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for number in range(5):
        begin = 1_000 * number
        writer.add("user_annotation", f"ProfilerStep#{number}", begin, 1_000)
        writer.add("user_annotation", loader, begin, loading)
        writer.launch(begin + loading + 10, GEMM, begin + loading + 20, 100)
    inspection = inspected(writer.write())
    assert inspection.kernels is not None and inspection.kernels.marked_steps is not None
    steps = inspection.kernels.marked_steps
    assert [(row.ns, row.loading_ns) for row in steps.rows] == [(1_000, loading)] * 5
    assert (steps.span_ns, steps.outside.ns) == (5_000, 0)
    found = {finding.rule: finding for finding in inspection.findings}
    assert "file-odd-step" not in found
    assert "for the data loader." in found["file-data-loader"].verdict


def test_equal_steps_of_others(shared_data: Path, inspected: Inspected) -> None:
    inspection = inspected(shared_data / "cases/files/f04_equal_steps.json")
    assert inspection.kernels is not None and inspection.kernels.marked_steps is not None
    rows = inspection.kernels.marked_steps.rows
    assert [(row.ns, row.loading_ns, row.is_odd) for row in rows] == [(10**7, 6 * 10**6, False)] * 5
    assert "In the median step it is 6 of 10 ms." in inspection.findings[0].why


def test_the_innermost_annotation_that_explains_is_named(writer: Any, inspected: Inspected) -> None:
    writer.add("user_annotation", "training", 0, 2_000)
    writer.add("user_annotation", "block", 10, 1_980)
    writer.add("user_annotation", "attention", 20, 500)
    writer.add("user_annotation", "mlp", 600, 100)
    writer.launch(5, GEMM, 12, 8)
    writer.launch(900, GEMM, 910, 1_090)
    (found,) = inspected(writer.write()).findings
    assert "0.0005 of 0.00088 ms of the wait for launches lie in the annotation att" in found.why
