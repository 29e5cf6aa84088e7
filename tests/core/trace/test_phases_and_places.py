"""Phases and modules of work, by what encloses its launch."""

from __future__ import annotations

from typing import Any

from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import TimeLedger
from tests.core.trace.ledgers import AssertClosed, ledger_of


def test_all_kernels_of_a_graph_belong_to_its_launch(writer: Any) -> None:
    writer.op("phase:forward", 0, 10)
    writer.call("cudaGraphLaunch", 2, 3)
    for start in (20, 30, 40):
        writer.work("kernel", start, 10, correlation=1)
    writer.launch(6, "outside", 60, 10)
    ledger = ledger_of(writer)
    assert ledger.work.linked.all()
    assert {ledger.phases[phase] for phase in ledger.work.phase} == {"forward"}
    assert (ledger.launches, ledger.unattributed) == (2, 0)
    coverage = kernel_rows(ledger).coverage
    assert (coverage.kernels, coverage.graph_kernels, coverage.dropped) == (4, 3, 0)


def test_in_a_graph_only_a_module_below_the_root_is_a_place(writer: Any) -> None:
    writer.op("phase:forward", 0, 100)
    writer.op("mod:model", 0, 100)
    writer.call("cudaGraphLaunch", 2, 3)
    for start in (200, 210, 220):
        writer.work("kernel", start, 10, correlation=1)
    assert kernel_rows(ledger_of(writer)).coverage.with_module == 0
    writer.launch(10, "of the root, launched by itself", 230, 30)
    assert kernel_rows(ledger_of(writer)).coverage.with_module == 0.5
    writer.op("mod:head", 50, 20)
    writer.call("cudaGraphLaunch", 52, 3)
    writer.work("kernel", 260, 60, correlation=writer.correlations)
    assert kernel_rows(ledger_of(writer)).coverage.with_module == 0.75


def test_steps_and_phases_of_our_own_passes(writer: Any, assert_closed: AssertClosed) -> None:
    writer.add("user_annotation", "sysbench:steps:2", 100, 400)
    writer.launch(20, "before", 30, 10)
    for begin in (100, 300):
        writer.op("phase:forward", begin, 50)
        writer.launch(begin + 10, "f", begin + 30, 40)
        writer.op("phase:backward", begin + 50, 50)
        writer.launch(begin + 60, "b", begin + 80, 60)
        writer.op("phase:zero-grad", begin + 100, 10)
    table = assert_closed(ledger_of(writer))
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
    ledger = ledger_of(writer)
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


def test_backward_of_a_write_to_a_part_takes_the_module_of_the_node_within(writer: Any) -> None:
    engine = "autograd::engine::evaluate_function: "
    writer.op("mod:attention", 0, 10)
    writer.op("aten::copy_", 0, 10, sequence=6)
    writer.op(f"{engine}torch::autograd::CopySlices", 60, 20, tid=101, sequence=7)
    writer.op("torch::autograd::CopySlices", 61, 18, tid=101, sequence=7)
    writer.launch(62, "whole", 70, 4, tid=101)
    writer.op("torch::autograd::CopyBackwards", 66, 10, tid=101, sequence=6)
    writer.launch(68, "part", 80, 4, tid=101)
    table = kernel_rows(ledger_of(writer))
    assert {row.name: row.module for row in table.rows} == dict.fromkeys(
        ("whole", "part"), "attention"
    )


def test_imported_trace_has_phases_by_enclosing_ranges_and_modules_by_nesting(
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
    ledger = ledger_of(writer)
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


def test_a_step_that_begins_at_the_end_of_an_optimizer_is_not_in_it(writer: Any) -> None:
    """As `watch` records them: its hook runs inside of the optimizer's range."""
    writer.add("user_annotation", "Optimizer.step#AdamW.step", 0, 10)
    writer.op("aten::add_", 2, 3)
    writer.launch(3, "optimizer kernel", 100, 5)
    writer.add("user_annotation", "ProfilerStep#1", 9, 80)
    writer.add("python_function", "nn.Module: Linear_12", 20, 30)
    writer.op("aten::mm", 22, 10)
    writer.launch(24, "forward kernel", 120, 5)
    ledger = ledger_of(writer)
    work = ledger.work
    found = {
        ledger.names[work.name[index]]: ledger.phases[work.phase[index]]
        for index in range(len(work))
    }
    assert found == {"optimizer kernel": "optimizer", "forward kernel": "forward"}


def test_before_torch_1_10_a_backward_operator_opens_backward(writer: Any) -> None:
    """No range of the engine is around it, as torch 1.8 recorded; a modern one is inside one."""
    writer.op("aten::addmm", 0, 20, sequence=3)
    writer.launch(5, "forward kernel", 100, 5)
    writer.op("AddmmBackward", 30, 20, tid=101, sequence=3)
    writer.op("aten::mm", 32, 10, tid=101)
    writer.launch(35, "backward kernel", 110, 5, tid=101)
    writer.op("aten::_softmax_backward_data", 60, 10)
    writer.launch(65, "called by hand", 120, 5)
    ledger = ledger_of(writer)
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
    assert _phases_of(ledger_of(writer)) == {
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
    assert _phases_of(ledger_of(writer)) == {
        "replayed": "forward",
        "## forward ##": "forward",
        "loss": "loss",
        "## optimizer ##": "optimizer",
        "data_load": "data loading",
        "outside of all": "other",
    }


def test_loss_alone_is_no_module(writer: Any, assert_closed: AssertClosed) -> None:
    writer.op("phase:loss", 0, 100)
    writer.op("aten::nll_loss", 10, 20)
    writer.launch(12, "nll_loss_kernel", 50, 10)
    assert assert_closed(ledger_of(writer)).coverage.with_module == 0


def test_endless_nesting_of_modules_keeps_memory_bounded(writer: Any) -> None:
    for depth in range(3000):
        writer.add("python_function", "nn.Module: " + "x" * 50, depth, 10_000 - 2 * depth)
    modules = ledger_of(writer).modules
    assert max(map(len, modules)) == 500
