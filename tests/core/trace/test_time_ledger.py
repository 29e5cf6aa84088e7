from __future__ import annotations

from typing import Any

import pytest

from sysbench.core.tables.trust import coverage_warning
from sysbench.core.trace.classify import (
    BETWEEN,
    HOST_LATE,
    LAUNCHING,
    ON_SYNC,
    OUTSIDE_OPERATORS,
    UNKNOWN,
)
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import TimeLedger, Window, time_ledger
from sysbench.core.trace.trace_reader import read_trace
from tests.core.trace.ledgers import GEMM, NCCL, AssertClosed, ledger_of


def _exclusive(ledger: TimeLedger) -> dict[str, int]:
    times: dict[str, int] = {}
    for name, part in zip(ledger.work.name.tolist(), ledger.exclusive.tolist(), strict=True):
        times[ledger.names[name]] = times.get(ledger.names[name], 0) + part
    return times


def test_idle_is_split_by_what_the_host_did(writer: Any, assert_closed: AssertClosed) -> None:
    writer.launch(0, "a", 10, 10)
    writer.launch(4, "b", 25, 5)  # launched long before: the device took its time
    writer.launch(50, "c", 57, 3)  # launched late
    writer.call("cudaDeviceSynchronize", 55, 10)
    writer.launch(80, "d", 84, 6)  # launched late, after the sync
    ledger = ledger_of(writer)
    assert_closed(ledger)
    assert ledger.window == Window(10, 90)
    assert ledger.idle == {
        HOST_LATE: (50 - 30) + (80 - 65),
        ON_SYNC: 65 - 60,
        LAUNCHING: (52 - 50) + (82 - 80),
        BETWEEN: (25 - 20) + (57 - 52) + (84 - 82),
        UNKNOWN: 0,
    }


def test_the_host_stuck_inside_a_launch_call_is_not_the_device_waiting(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, "a", 10, 10)
    writer.call("cudaLaunchKernel", 30, 600)  # returns at 630
    writer.work("b", 700, 10, correlation=writer.correlations)
    writer.call("cudaLaunchKernel", 705, 100)  # the kernel starts before its call returns
    writer.work("c", 750, 10, correlation=writer.correlations)
    ledger = ledger_of(writer)
    assert_closed(ledger)
    assert ledger.idle == {
        HOST_LATE: 30 - 20,
        ON_SYNC: 0,
        LAUNCHING: (630 - 30) + (750 - 710),
        BETWEEN: 700 - 630,
        UNKNOWN: 0,
    }


def test_a_kernel_without_a_launch_stays_and_its_gap_has_no_known_cause(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, "a", 10, 10)
    writer.work(GEMM, 30, 10, correlation=999)
    ledger = ledger_of(writer)
    table = assert_closed(ledger)
    assert ledger.idle[UNKNOWN] == 10
    row = next(row for row in table.rows if row.name == GEMM)
    assert (row.linked, row.phase, row.category) == (False, "unknown", "gemm")
    assert table.coverage.unlinked == 1
    assert table.coverage.explained == pytest.approx(1 - 10 / 30)


def test_a_launch_that_never_shows_makes_the_gap_unattributed(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, "a", 10, 10)
    writer.call("cudaGraphLaunch", 23, 2)
    writer.launch(40, "b", 50, 10)
    ledger = ledger_of(writer)
    table = assert_closed(ledger)
    assert ledger.unattributed == 50 - 23
    assert ledger.idle[HOST_LATE] == 23 - 20
    assert (table.coverage.launches, table.coverage.kernels) == (3, 2)
    assert table.coverage.dropped == 1


def test_launches_without_a_name_are_counted_and_missed_like_others(
    writer: Any, assert_closed: AssertClosed
) -> None:
    """As torch 2.11 for CUDA 13 records them: each launch after a call that prepares it."""
    for number, at in enumerate((0, 30, 60), 1):
        writer.add("cuda_runtime", "INVALID", at, 1, cbid=502, correlation=10 * number)
        writer.add("cuda_runtime", "INVALID", at + 2, 2, cbid=505, correlation=number)
        if number != 2:
            writer.work("kernel", at + 10, 10, correlation=number)
    table = assert_closed(ledger_of(writer))
    coverage = table.coverage
    assert (coverage.launches, coverage.kernels, coverage.dropped) == (3, 2, 1)
    assert table.unattributed_ns == 70 - 32


def _host_of_a_step(writer: Any) -> None:
    writer.add("user_annotation", "sysbench:steps:1", 0, 200)
    writer.op("phase:forward", 10, 150)
    writer.op("aten::mm", 40, 45)


def test_a_host_alone_is_no_account_of_a_step_on_a_device(
    writer: Any, assert_closed: AssertClosed
) -> None:
    _host_of_a_step(writer)
    ledger = ledger_of(writer)
    on_cpu = assert_closed(ledger)
    assert (on_cpu.coverage.explained, on_cpu.lacks_kernels) == (1, False)
    blind = kernel_rows(ledger, on_device=True)
    assert (blind.source, blind.coverage.explained, blind.lacks_kernels) == ("operators", 0, True)
    assert "CUPTI" in blind.missing["kernels"]
    assert blind.rows == on_cpu.rows


def test_launches_without_any_work_are_of_a_device_that_was_not_recorded(
    writer: Any, assert_closed: AssertClosed
) -> None:
    _host_of_a_step(writer)
    writer.call("cudaLaunchKernel", 45, 2)
    writer.call("cudaDeviceSynchronize", 150, 20)
    table = assert_closed(ledger_of(writer))
    assert table.lacks_kernels
    assert (table.coverage.launches, table.coverage.dropped, table.coverage.explained) == (1, 1, 0)
    assert table.missing["kernels"] == (
        "this file has no GPU kernels (1 launch, 0 kernels); times below are CPU times"
    )


def test_a_device_of_another_kind_is_named_and_makes_no_cpu_run(
    writer: Any, assert_closed: AssertClosed
) -> None:
    _host_of_a_step(writer)
    for at in (60, 80, 100):
        writer.add("mtia_ccp_events", "a job", at, 10)
    table = assert_closed(ledger_of(writer))
    assert (table.source, table.lacks_kernels, table.coverage.explained) == ("operators", True, 0)
    assert "not read: 3 mtia_ccp_events" in table.missing["kernels"]


def test_fills_that_were_not_recorded_leave_no_kernel_in_doubt(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, "a", 10, 10)
    writer.call("cudaMemsetAsync", 22, 2)
    writer.launch(40, "b", 50, 10)
    table = assert_closed(ledger_of(writer))
    assert (table.coverage.dropped, table.coverage.dropped_fills) == (1, 1)
    assert coverage_warning(table).startswith("1 fill of memory was launched but not recorded")
    writer.call("cudaLaunchKernel", 30, 2)
    assert coverage_warning(assert_closed(ledger_of(writer))).endswith(
        "follows launches without a recorded kernel (2): it counts as unattributed."
    )


def test_a_launch_lost_before_or_after_the_window_is_not_its_own(writer: Any) -> None:
    writer.call("cudaLaunchKernel", 0, 2)
    writer.launch(20, "a", 30, 10)
    writer.call("cudaMemcpyAsync", 60, 2)
    assert ledger_of(writer, Window(10, 50)).dropped == 0
    assert ledger_of(writer, Window(0, 61)).dropped == 2


def test_a_device_without_a_host_is_accounted_for(writer: Any, assert_closed: AssertClosed) -> None:
    writer.work(GEMM, 10, 5, correlation=1)
    writer.work(NCCL, 12, 8, correlation=2, stream=14)
    table = assert_closed(ledger_of(writer))
    assert (table.coverage.unlinked, table.coverage.explained) == (2, 0)


def test_computation_hides_communication_and_both_hide_copies(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, NCCL, 10, 40, stream=14)
    writer.launch(1, GEMM, 20, 10)
    writer.launch(2, "Memcpy DtoD (Device -> Device)", 45, 10, stream=9, cat="gpu_memcpy")
    ledger = ledger_of(writer)
    table = assert_closed(ledger)
    assert _exclusive(ledger) == {
        NCCL: 30,
        GEMM: 10,
        "Memcpy DtoD (Device -> Device)": 5,
    }
    assert {row.name: row.total_ns for row in table.rows}[NCCL] == 40


def test_the_busiest_device_is_the_table_s_and_the_others_are_named(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, "a", 10, 10, device=0)
    writer.launch(1, "b", 10, 30, device=3)
    table = assert_closed(ledger_of(writer))
    assert [row.name for row in table.rows] == ["b"]
    assert "device 3 is shown (the busiest); others: 0" in table.missing["devices"]
    assert (table.device, table.other_devices) == (3, [0])
    chosen = assert_closed(time_ledger(read_trace(writer.write()), device=0))
    assert [row.name for row in chosen.rows] == ["a"]
    assert "device 0 is shown (as selected); others: 3" in chosen.missing["devices"]


def test_a_captured_launch_is_not_lost(writer: Any, assert_closed: AssertClosed) -> None:
    writer.launch(0, "a", 10, 10)
    writer.call("cudaStreamBeginCapture_v10000", 12, 1)
    for at in (14, 18, 22):
        writer.call("cudaLaunchKernel", at, 2)
    writer.call("cudaLaunchKernel", 20, 1, tid=101)  # another thread captures nothing: it is lost
    writer.call("cudaStreamEndCapture", 30, 1)
    writer.launch(40, "b", 50, 10)
    coverage = assert_closed(ledger_of(writer)).coverage
    assert (coverage.launches, coverage.captured, coverage.dropped) == (3, 3, 1)


def test_what_a_kernels_name_leaves_open_its_operator_settles(
    writer: Any, assert_closed: AssertClosed
) -> None:
    for number, (operator, kernel) in enumerate(
        [("aten::linear", "kernel_47"), ("aten::linear", "vectorized_copy"), ("mine", "kernel_48")]
    ):
        writer.op(operator, 20 * number, 10)
        writer.launch(20 * number + 2, kernel, 100 + 10 * number, 10)
    table = assert_closed(ledger_of(writer))
    assert {row.name: row.category for row in table.rows} == {
        "kernel_47": "gemm",
        "vectorized_copy": "elementwise",
        "kernel_48": "other",
    }


def test_a_call_whose_time_is_all_in_others_is_counted(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.op("aten::linear", 0, 20)
    writer.op("aten::addmm", 0, 20)
    writer.op("aten::linear", 40, 20)
    writer.op("aten::addmm", 42, 10)
    writer.op("aten::view", 70, 0)
    table = assert_closed(ledger_of(writer))
    assert {row.name: (row.calls, row.total_ns) for row in table.rows} == {
        "aten::linear": (2, 10),
        "aten::addmm": (2, 30),
        "aten::view": (1, 0),
    }


def test_without_a_device_the_rows_are_operators_by_their_own_time(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.add("user_annotation", "sysbench:steps:1", 0, 200)
    writer.op("phase:forward", 10, 150)
    writer.op("mod:head", 20, 100)
    writer.op("aten::linear", 30, 60)
    writer.op("aten::mm", 40, 45)
    table = assert_closed(ledger_of(writer))
    assert table.source == "operators"
    assert {row.name: (row.total_ns, row.category, row.op) for row in table.rows} == {
        "aten::mm": (45, "gemm", "aten::linear"),
        "aten::linear": (15, "gemm", "aten::linear"),
    }
    assert [(row.cause, row.ns) for row in table.idle] == [(OUTSIDE_OPERATORS, 140)]
    assert table.phases_ns == {"forward": 150, "other": 50}
    assert table.coverage.with_module == 1


def test_kernels_that_name_no_device_are_kernels(writer: Any, assert_closed: AssertClosed) -> None:
    writer.add("kernel", GEMM, 10, 5, correlation=1)
    table = assert_closed(ledger_of(writer))
    assert (table.source, table.rows[0].name) == ("kernels", GEMM)


def test_an_empty_trace_is_an_empty_table(writer: Any, assert_closed: AssertClosed) -> None:
    table = assert_closed(ledger_of(writer))
    assert (table.rows, table.step_ms, table.idle) == ([], 0, [])
