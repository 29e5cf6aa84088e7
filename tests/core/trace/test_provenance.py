"""Kernels of compiled graphs: their modules, operators, bytes and code."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.record.record import Coverage, KernelRow, Kernels
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.provenance import (
    GeneratedCall,
    GeneratedGraph,
    ScheduledNode,
    bytes_of_calls,
    enclosing,
    generated_kernels,
    kernel_source,
    relative_path,
    with_provenance,
)
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace

PATHS = st.lists(st.sampled_from(["blocks", "0", "1", "attention", "q", "ffn"]), max_size=4).map(
    ".".join
)


def lies_in(path: str, outer: str) -> bool:
    return not outer or f"{path}.".startswith(f"{outer}.")


@given(st.lists(PATHS.filter(bool), min_size=1, max_size=5))
def test_the_enclosing_module_is_the_innermost_that_encloses_all(paths: list[str]) -> None:
    found = enclosing(paths)
    assert all(lies_in(path, found) for path in paths)
    parts = paths[0].split(".")
    prefixes = {".".join(parts[:length]) for length in range(len(parts) + 1)}
    assert found in prefixes
    further = [one for one in prefixes if len(one) > len(found)]
    assert not any(all(lies_in(path, one) for path in paths) for one in further)


def test_operators_of_the_model_itself_have_no_module() -> None:
    assert enclosing(["", "blocks.0.ffn", ""]) == "blocks.0.ffn"
    assert enclosing(["", ""]) == enclosing([]) == ""


@pytest.mark.parametrize(
    ("traced", "path"),
    [
        ("L['self']", ""),
        ("L['self'].blocks.0.attention", "blocks.0.attention"),
        ("L['self']._modules['blocks']._modules['0'].ffn", "blocks.0.ffn"),
        ("L['self'].blocks[11].ffn.w1", "blocks.11.ffn.w1"),
        ("L['model'].head", "head"),
        ("head", "head"),
    ],
)
def test_paths_as_dynamo_writes_them(traced: str, path: str) -> None:
    assert relative_path(traced) == path


def call(number: int, name: str, *modules: str, size: int | None = 64) -> GeneratedCall:
    return GeneratedCall(
        number=number,
        name=name,
        ops=("add", "mul"),
        modules=modules,
        sources=(f"model.py:{number} x + y",),
        moved_bytes=size,
    )


def graph(*calls: GeneratedCall, phase: Any = "forward") -> GeneratedGraph:
    return GeneratedGraph(phase=phase, file=f"output_code/{phase}.py", calls=calls)


def row(name: str, module: str, phase: str = "forward", **more: Any) -> KernelRow:
    return KernelRow(
        name=name,
        category="elementwise",
        phase=phase,
        module=module,
        op=name,
        calls=4.0,
        total_ns=400.0,
        exclusive_ns=400.0,
        mean_ns=100.0,
        min_ns=90.0,
        max_ns=120.0,
        share=0.5,
        **more,
    )


def table(*rows: KernelRow) -> Kernels:
    return Kernels(
        source="kernels",
        steps=1,
        step_ms=0.001,
        busy_ns=400.0,
        span_ns=400.0,
        phases_ns={},
        rows=list(rows),
        categories=[],
        idle=[],
        unattributed_ns=0.0,
        coverage=Coverage(launches=4, kernels=4, unlinked=0, explained=1.0, with_module=0.0),
    )


def test_layers_fold_and_sites_count() -> None:
    made = generated_kernels(
        [graph(*(call(n, "triton_poi_fused_add_mul_0", f"blocks.{n}.ffn") for n in (1, 2, 3)))]
    )
    (kernel,) = made
    assert (kernel.module, kernel.sites, kernel.bytes_per_call) == ("blocks.*.ffn", 3, 64)
    assert kernel.sources == [f"model.py:{n} x + y" for n in (1, 2, 3)]


def test_one_site_of_unknown_size_makes_the_size_unknown() -> None:
    name = "triton_poi_fused_add_mul_0"
    (kernel,) = generated_kernels([graph(call(1, name, "ffn"), call(2, name, "ffn", size=None))])
    assert kernel.bytes_per_call is None
    found = with_provenance(table(row(name, "model")), [kernel])
    assert found.rows[0].moved_bytes is None


def test_a_row_takes_the_module_inside_the_one_that_the_trace_saw() -> None:
    name = "triton_poi_fused_add_mul_0"
    made = generated_kernels([graph(call(1, name, "ffn"))], root="blocks.*")
    rows = [row(name, module) for module in ("model", "blocks.*", "blocks.3", "head")]
    found = with_provenance(table(*rows), made)
    modules = [one.module for one in found.rows]
    assert modules == ["blocks.*.ffn", "blocks.*.ffn", "blocks.3.ffn", "head"]
    assert all(one.fused and one.ops == ["add", "mul"] for one in found.rows)
    assert all(one.moved_bytes == 4 * 64 for one in found.rows)
    assert found.generated == made


def test_two_possible_modules_leave_the_one_that_the_trace_saw() -> None:
    name = "triton_poi_fused_add_mul_0"
    made = generated_kernels([graph(call(1, name, "norm"), call(2, name, "head"))])
    assert with_provenance(table(row(name, "model")), made).rows[0].module == "model"
    assert with_provenance(table(row(name, "head")), made).rows[0].module == "head"


def test_a_backward_kernel_is_not_taken_for_the_forward_one_of_its_name() -> None:
    name = "triton_poi_fused_add_mul_0"
    made = generated_kernels([graph(call(1, name, "ffn"), phase="backward")])
    ahead, back = with_provenance(
        table(row(name, "model"), row(name, "model", "backward")), made
    ).rows
    assert (ahead.module, back.module) == ("model", "ffn")


def test_the_cpus_kernels_are_known_by_the_name_in_the_code() -> None:
    made = generated_kernels([graph(call(1, "cpp_fused_add_mul_7", "ffn"))])
    found = with_provenance(table(row("graph_12_cpp_fused_add_mul_7", "model")), made)
    assert found.rows[0].module == "ffn"


def test_what_is_measured_is_not_replaced() -> None:
    name = "triton_poi_fused_add_mul_0"
    made = generated_kernels([graph(call(1, name, "ffn"))])
    found = with_provenance(table(row(name, "model", moved_bytes=5.0)), made)
    assert found.rows[0].moved_bytes == 5.0


def test_fused_rows_without_provenance_say_why() -> None:
    known = row("triton_poi_fused_add_mul_0", "model", fused=True)
    assert "generated" in with_provenance(table(known), []).missing
    eager = msgspec.structs.replace(known, fused=False)
    assert with_provenance(table(eager), []).missing == {}


def test_parts_lie_in_the_layer_that_was_called_and_backward_follows(writer: Any) -> None:
    writer.add("user_annotation", "sysbench:steps:1", 0, 1000)
    for layer, start in ((0, 0), (1, 200)):
        writer.add("user_annotation", f"mod:blocks.{layer}", start, 100)
        writer.op("CompiledFunction", start + 1, 90, sequence=10 + layer)
        writer.add("user_annotation", "part:ffn.w1", start + 10, 20)
        writer.op("aten::mm", start + 12, 10)
        writer.op("aten::mm", start + 40, 10)  # between parts: only the layer is known
    node = "CompiledFunctionBackward"
    writer.op(f"autograd::engine::evaluate_function: {node}", 500, 100, sequence=11)
    writer.op(node, 501, 98, sequence=11)
    writer.add("user_annotation", "part:ffn.w1", 510, 20)
    writer.op("aten::bmm", 512, 10)
    kernels = kernel_rows(time_ledger(read_trace(writer.write())), by_layer=True)
    times = {(one.name, one.module): one.total_ns for one in kernels.rows}
    assert times["aten::mm", "blocks.0.ffn.w1"] == times["aten::mm", "blocks.1.ffn.w1"] == 10
    assert times["aten::mm", "blocks.0"] == 10
    assert times["aten::bmm", "blocks.1.ffn.w1"] == 10


CODE = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
def kernel(): pass
''', device_str='cuda')


cpp_fused_mul_1 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel() {}
''')


def call(args):
    pass
"""


def test_the_definition_of_a_kernel_is_cut_from_the_code() -> None:
    first = kernel_source(CODE, "triton_poi_fused_add_0")
    assert first.startswith("triton_poi_fused_add_0 =")
    assert first.endswith("device_str='cuda')")
    assert "extern" in kernel_source(CODE, "cpp_fused_mul_1")
    assert kernel_source(CODE, "extern_kernels.mm") == ""


RED, PER, GEMM = "triton_red_fused_norm_0:1", "triton_per_fused_norm_1:2", "extern_kernels.mm:3"


def node(size: int, *origins: str, is_call: bool = False) -> ScheduledNode:
    return ScheduledNode(frozenset(origins), size, is_call)


def test_a_kernel_has_the_bytes_of_all_its_nodes_and_a_call_its_own() -> None:
    name = "cpp_fused_add_mul_0:1"
    found = bytes_of_calls(
        {name: ["add", "mul"], GEMM: ["mm"]},
        [node(10, "add"), node(20, "mul"), node(0, "getitem"), node(7, "mm", is_call=True)],
    )
    assert found == {name: 30, GEMM: 7}


def test_the_halves_of_a_split_reduction_have_their_bytes_in_order() -> None:
    found = bytes_of_calls(
        {RED: ["norm"], PER: ["norm"], GEMM: ["mm"]},
        [node(100, "norm"), node(3, "norm"), node(7, "mm", is_call=True)],
    )
    assert found == {RED: 100, PER: 3, GEMM: 7}


def test_half_of_a_split_kernel_with_further_operators() -> None:
    found = bytes_of_calls(
        {RED: ["norm"], PER: ["norm", "mul"]}, [node(100, "norm"), node(3, "norm", "mul")]
    )
    assert found == {RED: 100, PER: 3}


def test_a_node_in_doubt_costs_its_own_calls_and_not_the_graph() -> None:
    operators = {RED: ["norm"], PER: ["norm"], GEMM: ["mm"]}
    one_node = [node(100, "norm"), node(7, "mm", is_call=True)]
    assert bytes_of_calls(operators, one_node) == {GEMM: 7}
    strange = [node(100, "norm", "view"), node(7, "mm", is_call=True)]
    assert bytes_of_calls(operators, strange) == {GEMM: 7}


def test_a_node_of_no_call_leaves_no_bytes_to_believe() -> None:
    operators = {RED: ["norm"], GEMM: ["mm"]}
    scheduled = [node(5, "unheard"), node(9, "norm"), node(7, "mm", is_call=True)]
    assert bytes_of_calls(operators, scheduled) == {}


def test_a_library_call_without_a_number_costs_no_other_call_its_bytes() -> None:
    rotated = ["add", "mul", "view"]
    operators = {"cpp_fused_add_mul_view_0:1": rotated, GEMM: ["mm"]}
    attention = node(64, "attention", *rotated, is_call=True)
    scheduled = [node(9, *rotated), attention, node(0, "attention", is_call=True)]
    scheduled.append(node(7, "mm", "view", is_call=True))
    assert bytes_of_calls(operators, scheduled) == {"cpp_fused_add_mul_view_0:1": 9, GEMM: 7}


def test_a_library_call_that_shares_an_operator_with_another_leaves_that_in_doubt() -> None:
    operators = {RED: ["norm"], GEMM: ["mm", "view"]}
    scheduled = [node(9, "norm"), node(7, "mm", "norm", is_call=True)]
    assert bytes_of_calls(operators, scheduled) == {RED: 9}
    unknown = [node(9, "norm"), node(7, is_call=True), node(5, "mm", "view", is_call=True)]
    assert bytes_of_calls(operators, unknown) == {}


def test_a_call_without_a_node_has_no_bytes() -> None:
    assert bytes_of_calls({RED: ["norm"], GEMM: ["mm"]}, [node(9, "norm")]) == {RED: 9}
