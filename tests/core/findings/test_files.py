"""Findings of files of others: each on sums that a file by hand, or a real one, has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sysbench.core.findings.files_rules import findings_of_file
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace

GEMM, NCCL = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def verdicts(writer: Any) -> dict[str, str]:
    kernels = kernel_rows(time_ledger(read_trace(writer.write())))
    return {finding.rule: finding.verdict for finding in findings_of_file(kernels)}


def test_a_file_without_a_fault_has_no_finding(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 100)
    writer.launch(1, NCCL, 50, 60, stream=14)
    writer.launch(5, GEMM, 115, 100)
    assert verdicts(writer) == {}


def test_idle_time_is_told_with_the_cause_that_has_most_of_it(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 50)
    writer.launch(90, GEMM, 95, 15)
    assert verdicts(writer) == {
        "file-device-idle": "The GPU is idle for 35 % of the span, most of it because the host had "
        "not launched yet."
    }
    writer.launch(1, GEMM, 138, 20)  # 28 ns more, launched long before
    assert verdicts(writer)["file-device-idle"].endswith("of the span, for several causes.")


def test_communication_that_nothing_hides_is_told(writer: Any) -> None:
    writer.launch(0, GEMM, 10, 60)
    writer.launch(1, NCCL, 50, 40, stream=14)
    assert verdicts(writer) == {
        "file-exposed-communication": "25 % of the span is communication that nothing hides."
    }


def test_an_odd_step_is_told_with_the_part_that_differs_most(writer: Any) -> None:
    writer.launch(0, "before", 5, 5)
    for number in range(1, 6):
        length = 800 if number == 4 else 500
        writer.add("user_annotation", f"ProfilerStep#{number}", 1000 * number, length)
        writer.launch(1000 * number, GEMM, 1000 * number + 3, 490)
        if number == 4:
            writer.launch(4001, NCCL, 4493, 307, stream=14)
    kernels = kernel_rows(time_ledger(read_trace(writer.write())))
    found = {finding.rule: finding for finding in findings_of_file(kernels)}["file-odd-step"]
    assert found.verdict == "Step 4 takes 1.6 × the median of its kind."
    assert "the largest difference is exposed communication" in found.why
    assert "--step 4" in found.next
    chosen = kernel_rows(time_ledger(read_trace(writer.path), steps=(4, 4)))
    assert "file-odd-step" not in {finding.rule for finding in findings_of_file(chosen)}


def test_a_host_without_a_device_is_not_called_idle(writer: Any) -> None:
    writer.op("aten::mm", 0, 10)
    writer.op("aten::mm", 100, 10)
    assert verdicts(writer) == {}


Inspected = Callable[[Path], Inspection]


def whys(found: Inspection) -> dict[str, str]:
    return {finding.rule: finding.why for finding in found.findings}


def test_the_calls_behind_an_idle_device_are_told(shared_data: Path, inspected: Inspected) -> None:
    more = shared_data / "more"
    # The first launch loaded its code: 1,565,347 µs.
    why = whys(inspected(more / "kin_resnet50_autograd.json.gz"))["file-device-idle"]
    assert "The longest launch call, cudaLaunchKernel, took 1565 ms." in why
    why = whys(inspected(more / "tl_sglang_decode.json.gz"))["file-device-idle"]
    assert "463.3 ms of it lie outside the marked steps" in why


def test_the_annotation_in_which_the_device_waited_is_told(
    writer: Any, shared_data: Path, inspected: Inspected
) -> None:
    writer.add("user_annotation", "ProfilerStep#1", 0, 300)
    writer.add("user_annotation", "train", 0, 300)
    writer.add("user_annotation", "load the batch", 70, 110)
    writer.launch(0, GEMM, 10, 50)
    writer.launch(200, GEMM, 205, 95)
    found = inspected(writer.write())
    why = whys(found)["file-device-idle"]
    # The device waits from 60 to 200, of which the batch is loaded from 70 to 180.
    assert "While load the batch was open on the host, 0.00011 ms of 0.00014 passed" in why
    assert found.kernels is not None and found.kernels.host is not None
    assert {row.name: row.late_ns for row in found.kernels.host.annotations} == {
        "ProfilerStep#*": 140,
        "train": 140,
        "load the batch": 110,
    }
    why = whys(inspected(shared_data / "more" / "hta_rank0.json.gz"))["file-device-idle"]
    assert "While ## backward ## was open on the host, 153.8 ms of 281.1 passed" in why


def test_the_call_in_which_the_host_waited_is_told(writer: Any, inspected: Inspected) -> None:
    writer.launch(0, GEMM, 10, 50)
    writer.call("cudaStreamSynchronize", 30, 60)
    writer.launch(100, GEMM, 105, 15)
    why = whys(inspected(writer.write()))["file-device-idle"]
    assert "The host waited longest in cudaStreamSynchronize, called once, 6e-05 ms." in why


def test_what_a_real_training_says(shared_data: Path, inspected: Inspected) -> None:
    path = shared_data / "traces" / "v100_ddp_train.json.gz"
    findings = inspected(path).findings
    assert [finding.verdict for finding in findings] == [
        "The GPU is idle for 42 % of the span, most of it because the host had not launched yet.",
        "21 % of the span is communication that nothing hides.",
    ]
