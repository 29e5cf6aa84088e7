from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sysbench.core.analysis.kernels.idle_causes import (
    BETWEEN,
    HOST_LATE,
    LAUNCHING,
    ON_SYNC,
    OUTSIDE_OPERATORS,
    UNKNOWN,
)
from sysbench.core.analysis.kernels.table import kernel_table
from sysbench.core.analysis.kernels.time_ledger import TimeLedger, Window, time_ledger
from sysbench.core.analysis.trace.reader import read_trace
from sysbench.core.record.record import Kernels
from sysbench.core.tables.trust import coverage_warning

AssertClosed = Callable[[TimeLedger], Kernels]
GEMM, NCCL = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _ledger(writer: Any, window: Window | None = None) -> TimeLedger:
    return time_ledger(read_trace(writer.write()), window)


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
    writer.launch(80, "d", 84, 6)  # launched late, because of the sync
    ledger = _ledger(writer)
    assert_closed(ledger)
    assert ledger.window == Window(10, 90)
    assert ledger.idle == {
        HOST_LATE: 50 - 30,
        ON_SYNC: 80 - 60,
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
    ledger = _ledger(writer)
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
    ledger = _ledger(writer)
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
    ledger = _ledger(writer)
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
    table = assert_closed(_ledger(writer))
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
    ledger = _ledger(writer)
    on_cpu = assert_closed(ledger)
    assert (on_cpu.coverage.explained, on_cpu.lacks_kernels) == (1, False)
    blind = kernel_table(ledger, on_device=True)
    assert (blind.source, blind.coverage.explained, blind.lacks_kernels) == ("operators", 0, True)
    assert "CUPTI" in blind.missing["kernels"]
    assert blind.rows == on_cpu.rows


def test_launches_without_any_work_are_of_a_device_that_was_not_recorded(
    writer: Any, assert_closed: AssertClosed
) -> None:
    _host_of_a_step(writer)
    writer.call("cudaLaunchKernel", 45, 2)
    writer.call("cudaDeviceSynchronize", 150, 20)
    table = assert_closed(_ledger(writer))
    assert table.lacks_kernels
    assert (table.coverage.launches, table.coverage.dropped, table.coverage.explained) == (1, 1, 0)
    assert table.missing["kernels"] == (
        "the GPU's kernels are not in this file: 1 launch, 0 kernels; times below are the host's"
    )


def test_a_device_of_another_kind_is_named_and_makes_no_cpu_run(
    writer: Any, assert_closed: AssertClosed
) -> None:
    _host_of_a_step(writer)
    for at in (60, 80, 100):
        writer.add("mtia_ccp_events", "a job", at, 10)
    table = assert_closed(_ledger(writer))
    assert (table.source, table.lacks_kernels, table.coverage.explained) == ("operators", True, 0)
    assert "not read: 3 mtia_ccp_events" in table.missing["kernels"]


def test_fills_that_were_not_recorded_leave_no_kernel_in_doubt(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, "a", 10, 10)
    writer.call("cudaMemsetAsync", 22, 2)
    writer.launch(40, "b", 50, 10)
    table = assert_closed(_ledger(writer))
    assert (table.coverage.dropped, table.coverage.dropped_fills) == (1, 1)
    assert coverage_warning(table).startswith("1 fill of memory was launched and not recorded")
    writer.call("cudaLaunchKernel", 30, 2)
    assert coverage_warning(assert_closed(_ledger(writer))).startswith("These tables explain only")


def test_a_launch_lost_before_or_after_the_window_is_not_its_own(writer: Any) -> None:
    writer.call("cudaLaunchKernel", 0, 2)
    writer.launch(20, "a", 30, 10)
    writer.call("cudaMemcpyAsync", 60, 2)
    assert _ledger(writer, Window(10, 50)).dropped == 0
    assert _ledger(writer, Window(0, 61)).dropped == 2


def test_all_kernels_of_a_graph_belong_to_its_launch(writer: Any) -> None:
    writer.op("phase:forward", 0, 10)
    writer.call("cudaGraphLaunch", 2, 3)
    for start in (20, 30, 40):
        writer.work("kernel", start, 10, correlation=1)
    writer.launch(6, "outside", 60, 10)
    ledger = _ledger(writer)
    assert ledger.work.linked.all()
    assert {ledger.phases[phase] for phase in ledger.work.phase} == {"forward"}
    assert (ledger.launches, ledger.unattributed) == (2, 0)
    coverage = kernel_table(ledger).coverage
    assert (coverage.kernels, coverage.graph_kernels, coverage.dropped) == (4, 3, 0)


def test_in_a_graph_only_a_module_below_the_root_is_a_place(writer: Any) -> None:
    writer.op("phase:forward", 0, 100)
    writer.op("mod:model", 0, 100)
    writer.call("cudaGraphLaunch", 2, 3)
    for start in (200, 210, 220):
        writer.work("kernel", start, 10, correlation=1)
    assert kernel_table(_ledger(writer)).coverage.with_module == 0
    writer.launch(10, "of the root, launched by itself", 230, 30)
    assert kernel_table(_ledger(writer)).coverage.with_module == 0.5
    writer.op("mod:head", 50, 20)
    writer.call("cudaGraphLaunch", 52, 3)
    writer.work("kernel", 260, 60, correlation=writer.correlations)
    assert kernel_table(_ledger(writer)).coverage.with_module == 0.75


def test_a_device_without_a_host_is_accounted_for(writer: Any, assert_closed: AssertClosed) -> None:
    writer.work(GEMM, 10, 5, correlation=1)
    writer.work(NCCL, 12, 8, correlation=2, stream=14)
    table = assert_closed(_ledger(writer))
    assert (table.coverage.unlinked, table.coverage.explained) == (2, 0)


def test_computation_hides_communication_and_both_hide_copies(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.launch(0, NCCL, 10, 40, stream=14)
    writer.launch(1, GEMM, 20, 10)
    writer.launch(2, "Memcpy DtoD (Device -> Device)", 45, 10, stream=9, cat="gpu_memcpy")
    ledger = _ledger(writer)
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
    table = assert_closed(_ledger(writer))
    assert [row.name for row in table.rows] == ["b"]
    assert "device 3, the busiest; left out: 0" in table.missing["devices"]
    assert (table.device, table.other_devices) == (3, [0])
    chosen = assert_closed(time_ledger(read_trace(writer.write()), device=0))
    assert [row.name for row in chosen.rows] == ["a"]
    assert "device 0, as chosen; left out: 3" in chosen.missing["devices"]


def test_steps_and_phases_of_our_own_passes(writer: Any, assert_closed: AssertClosed) -> None:
    writer.add("user_annotation", "sysbench:steps:2", 100, 400)
    writer.launch(20, "before", 30, 10)
    for begin in (100, 300):
        writer.op("phase:forward", begin, 50)
        writer.launch(begin + 10, "f", begin + 30, 40)
        writer.op("phase:backward", begin + 50, 50)
        writer.launch(begin + 60, "b", begin + 80, 60)
        writer.op("phase:zero-grad", begin + 100, 10)
    table = assert_closed(_ledger(writer))
    assert (table.steps, table.step_ms) == (2, 200e-6)
    assert {row.name: (row.calls, row.phase, row.total_ns) for row in table.rows} == {
        "f": (1, "forward", 40),
        "b": (1, "backward", 60),
    }
    # forward until backward's first kernel; the next forward begins with its own.
    assert table.phases_ns == {
        "forward": (80 + 50) / 2,
        "backward": (150 + 120) / 2,
        "zero-grad": 0,
    }


def test_backward_kernels_take_the_module_of_the_operator_that_made_the_node(
    writer: Any,
) -> None:
    engine = "autograd::engine::evaluate_function: "
    writer.op("phase:forward", 0, 100)
    writer.op("mod:model", 5, 90)
    writer.op("mod:blocks.0.ffn", 10, 30)
    writer.op("aten::linear", 12, 20, sequence=7)
    writer.op("aten::mm", 14, 10, sequence=8)
    writer.launch(16, "mm forward", 200, 10)
    writer.op("phase:loss", 100, 20)
    writer.op("aten::nll_loss", 102, 10, sequence=9)
    writer.op("phase:backward", 120, 200)
    # The engine works on a thread of its own; what it runs has the main thread's phase.
    for begin, node, sequence in ((130, "NllLossBackward0", 9), (160, "MmBackward0", 8)):
        writer.op(engine + node, begin, 25, tid=101, sequence=sequence)
        writer.op(node, begin + 2, 20, tid=101, sequence=sequence)
        writer.op("aten::mm", begin + 4, 10, tid=101)
        writer.launch(begin + 6, node, begin + 100, 5, tid=101)
    writer.op(engine + "torch::autograd::AccumulateGrad", 190, 20, tid=101)
    writer.op("torch::autograd::AccumulateGrad", 192, 15, tid=101)
    writer.launch(195, "accumulate", 300, 5, tid=101)
    ledger = _ledger(writer)
    work = ledger.work
    found = {
        ledger.names[work.name[index]]: (
            ledger.phases[work.phase[index]],
            ledger.modules[work.module[index]],
            ledger.names[work.operator[index]],
        )
        for index in range(len(work))
    }
    assert found == {
        "mm forward": ("forward", "blocks.0.ffn", "aten::linear"),
        "NllLossBackward0": ("backward", "loss", "aten::mm"),
        "MmBackward0": ("backward", "blocks.0.ffn", "aten::mm"),
        "accumulate": ("backward", "grad accumulate", "torch::autograd::AccumulateGrad"),
    }


def test_a_foreign_trace_has_phases_by_what_encloses_and_modules_by_nesting(
    writer: Any,
) -> None:
    writer.add("python_function", "nn.Module: Block_3", 0, 50)
    writer.add("python_function", "nn.Module: Linear_12", 10, 30)
    writer.add("python_function", "forward(x)", 11, 20)
    writer.op("aten::mm", 12, 10)
    writer.launch(14, "forward kernel", 100, 5)
    writer.op("autograd::engine::evaluate_function: MmBackward0", 60, 20, tid=101)
    writer.launch(65, "backward kernel", 110, 5, tid=101)
    writer.add("user_annotation", "Optimizer.step#AdamW.step", 90, 10)
    writer.launch(92, "optimizer kernel", 120, 5)
    ledger = _ledger(writer)
    work = ledger.work
    found = {
        ledger.names[work.name[index]]: ledger.phases[work.phase[index]]
        for index in range(len(work))
    }
    assert found == {
        "forward kernel": "forward",
        "backward kernel": "backward",
        "optimizer kernel": "optimizer",
    }
    assert ledger.modules[work.module[0]] == "Block_3.Linear_12"


def test_before_torch_1_10_a_backward_operator_opens_backward(writer: Any) -> None:
    """No range of the engine is around it, as torch 1.8 recorded; a modern one is inside one."""
    writer.op("aten::addmm", 0, 20, sequence=3)
    writer.launch(5, "forward kernel", 100, 5)
    writer.op("AddmmBackward", 30, 20, tid=101, sequence=3)
    writer.op("aten::mm", 32, 10, tid=101)
    writer.launch(35, "backward kernel", 110, 5, tid=101)
    writer.op("aten::_softmax_backward_data", 60, 10)
    writer.launch(65, "called by hand", 120, 5)
    ledger = _ledger(writer)
    work = ledger.work
    found = {
        ledger.names[work.name[index]]: (
            ledger.phases[work.phase[index]],
            ledger.names[work.operator[index]],
        )
        for index in range(len(work))
    }
    assert found == {
        "forward kernel": ("forward", "aten::addmm"),
        "backward kernel": ("backward", "aten::mm"),
        "called by hand": ("forward", "aten::_softmax_backward_data"),
    }


def _phases_of(ledger: TimeLedger) -> dict[str, str]:
    work = ledger.work
    return {
        ledger.names[name]: ledger.phases[phase]
        for name, phase in zip(work.name.tolist(), work.phase.tolist(), strict=True)
    }


def test_forward_is_what_a_module_encloses_where_the_file_has_modules(writer: Any) -> None:
    writer.add("python_function", "nn.Module: Net_0", 0, 50)
    writer.op("aten::mm", 5, 10)
    writer.launch(6, "in a module", 100, 5)
    writer.call("cudaGraphLaunch", 20, 3)
    writer.work("replayed in a module", 110, 5, correlation=writer.correlations)
    writer.op("aten::argmax", 60, 10)
    writer.launch(62, "outside of all", 120, 5)
    writer.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 80, 10)
    writer.launch(82, "a batch", 130, 5)
    assert _phases_of(_ledger(writer)) == {
        "in a module": "forward",
        "replayed in a module": "forward",
        "outside of all": "other",
        "a batch": "data loading",
    }


def test_a_step_of_a_serving_engine_is_forward_and_a_range_may_name_its_phase(writer: Any) -> None:
    writer.add("user_annotation", "execute_context_0(0)_generation_7(7)", 0, 20)
    writer.call("cudaGraphLaunch", 5, 3)
    writer.work("replayed", 100, 5, correlation=writer.correlations)
    for number, name in enumerate(("## forward ##", "loss", "## optimizer ##", "data_load"), 1):
        writer.add("user_annotation", name, 40 * number, 20)
        writer.op("aten::add", 40 * number + 2, 10)
        writer.launch(40 * number + 4, name, 400 + 10 * number, 5)
    writer.op("aten::add", 300, 10)
    writer.launch(302, "outside of all", 500, 5)
    assert _phases_of(_ledger(writer)) == {
        "replayed": "forward",
        "## forward ##": "forward",
        "loss": "loss",
        "## optimizer ##": "optimizer",
        "data_load": "data loading",
        "outside of all": "other",
    }


def test_a_captured_launch_is_not_lost(writer: Any, assert_closed: AssertClosed) -> None:
    writer.launch(0, "a", 10, 10)
    writer.call("cudaStreamBeginCapture_v10000", 12, 1)
    for at in (14, 18, 22):
        writer.call("cudaLaunchKernel", at, 2)
    writer.call("cudaLaunchKernel", 20, 1, tid=101)  # another thread captures nothing: it is lost
    writer.call("cudaStreamEndCapture", 30, 1)
    writer.launch(40, "b", 50, 10)
    coverage = assert_closed(_ledger(writer)).coverage
    assert (coverage.launches, coverage.captured, coverage.dropped) == (3, 3, 1)


def test_what_a_kernels_name_leaves_open_its_operator_settles(
    writer: Any, assert_closed: AssertClosed
) -> None:
    for number, (operator, kernel) in enumerate(
        [("aten::linear", "kernel_47"), ("aten::linear", "vectorized_copy"), ("mine", "kernel_48")]
    ):
        writer.op(operator, 20 * number, 10)
        writer.launch(20 * number + 2, kernel, 100 + 10 * number, 10)
    table = assert_closed(_ledger(writer))
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
    table = assert_closed(_ledger(writer))
    assert {row.name: (row.calls, row.total_ns) for row in table.rows} == {
        "aten::linear": (2, 10),
        "aten::addmm": (2, 30),
        "aten::view": (1, 0),
    }


def test_loss_alone_is_no_module(writer: Any, assert_closed: AssertClosed) -> None:
    writer.op("phase:loss", 0, 100)
    writer.op("aten::nll_loss", 10, 20)
    writer.launch(12, "nll_loss_kernel", 50, 10)
    assert assert_closed(_ledger(writer)).coverage.with_module == 0


def test_without_a_device_the_rows_are_operators_by_their_own_time(
    writer: Any, assert_closed: AssertClosed
) -> None:
    writer.add("user_annotation", "sysbench:steps:1", 0, 200)
    writer.op("phase:forward", 10, 150)
    writer.op("mod:head", 20, 100)
    writer.op("aten::linear", 30, 60)
    writer.op("aten::mm", 40, 45)
    table = assert_closed(_ledger(writer))
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
    table = assert_closed(_ledger(writer))
    assert (table.source, table.rows[0].name) == ("kernels", GEMM)


def test_endless_nesting_of_modules_keeps_memory_bounded(writer: Any) -> None:
    for depth in range(3000):
        writer.add("python_function", "nn.Module: " + "x" * 50, depth, 10_000 - 2 * depth)
    modules = _ledger(writer).modules
    assert max(map(len, modules)) == 500


def test_an_empty_trace_is_an_empty_table(writer: Any, assert_closed: AssertClosed) -> None:
    table = assert_closed(_ledger(writer))
    assert (table.rows, table.step_ms, table.idle) == ([], 0, [])
