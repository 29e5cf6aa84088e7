"""What is matched with what, on tables by hand: renamed, fused and odd kernels, modules, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from sysbench.core.compare.difference import time_summary
from sysbench.core.compare.nodes import TimeNode, changed, walk_nodes
from sysbench.core.compare.times import levels_of, time_difference
from sysbench.core.record.record import Coverage, IdleRow, KernelRow, Kernels


def row(name: str, ns: float, **fields: Any) -> KernelRow:
    """One kernel's row; by default of forward in ``blocks.0.mlp``."""
    values: dict[str, Any] = {
        "name": name,
        "category": "elementwise",
        "phase": "forward",
        "module": "blocks.0.mlp",
        "op": "aten::add",
        "calls": 1.0,
        "total_ns": ns,
        "exclusive_ns": ns,
        "mean_ns": ns,
        "min_ns": ns,
        "max_ns": ns,
        "share": 0.0,
        "fused": "fused" in name,
    }
    return KernelRow(**values | fields)


def table(rows: Sequence[KernelRow], *, steps: int = 1, idle_ns: float = 0.0) -> Kernels:
    total = sum(one.exclusive_ns for one in rows) + idle_ns
    return Kernels(
        source="kernels",
        steps=steps,
        step_ms=total / 1e6,
        busy_ns=0.0,
        span_ns=0.0,
        phases_ns={"forward": total},
        rows=list(rows),
        categories=[],
        idle=[IdleRow("host had not launched yet", idle_ns, 0.0)],
        unattributed_ns=0.0,
        coverage=Coverage(launches=0, kernels=0, unlinked=0, explained=1.0, with_module=1.0),
    )


def found(root: TimeNode, name: str) -> TimeNode:
    (node,) = [node for _, node in walk_nodes(root) if node.name == name]
    return node


def test_a_kernel_of_another_precision_is_renamed_under_its_operator() -> None:
    kind = {"category": "gemm", "op": "aten::linear"}
    root = time_difference(
        table([row("ampere_sgemm_128x64_tn", 900.0, **kind)]),
        table([row("ampere_bf16_s16816gemm_128x64_tn", 300.0, **kind)]),
    )
    kernel = found(root, "ampere_bf16_s16816gemm_128x64_tn")
    assert (kernel.state, kernel.a_name) == ("renamed", "ampere_sgemm_128x64_tn")
    assert (kernel.a_ns, kernel.b_ns, kernel.change) == (900, 300, -600)
    assert found(root, "aten::linear").state == "both"


def test_a_kernel_under_another_operator_shows_that_the_operators_are_one() -> None:
    root = time_difference(
        table([row("sgemm", 10.0, category="gemm", op="aten::linear")]),
        table([row("sgemm", 12.0, category="gemm", op="aten::addmm")]),
    )
    operator = found(root, "aten::addmm")
    assert (operator.state, operator.a_name, operator.change) == ("renamed", "aten::linear", 2)


def test_forward_and_backward_of_an_operator_are_two_rows() -> None:
    both = [
        row("sgemm", 10.0, category="gemm", op="aten::mm"),
        row("sgemm", 20.0, category="gemm", op="aten::mm", phase="backward"),
    ]
    root = time_difference(table(both), table(both[1:]))
    states = {node.phase: node.state for _, node in walk_nodes(root) if node.name == "aten::mm"}
    assert states == {"forward": "gone", "backward": "both"}


def test_a_fused_kernel_is_listed_with_the_kernels_of_its_operators() -> None:
    eager = [
        row("vectorized<add>", 100.0),
        row("vectorized<gelu>", 200.0, op="aten::gelu"),
        row("vectorized<gelu>", 50.0, op="aten::gelu", module="blocks.1.mlp"),
        row("sgemm", 500.0, category="gemm", op="aten::linear"),
    ]
    name = "triton_poi_fused_add_gelu_view_3"
    compiled = [
        row(name, 120.0, op=name, ops=["add", "gelu", "view"]),
        row("vectorized<gelu>", 50.0, op="aten::gelu", module="blocks.1.mlp"),
        row("sgemm", 500.0, category="gemm", op="aten::linear"),
    ]
    root = time_difference(table(eager), table(compiled))
    assert [node.name for node in changed(root).children] == ["fused kernels"]
    fusion = found(root, "fused: add + gelu")
    assert (fusion.kind, fusion.a_ns, fusion.b_ns) == ("fused", 300, 120)
    assert {node.name: node.state for node in fusion.children} == {
        "aten::add": "gone",
        "aten::gelu": "gone",
        name: "new",
    }


def test_two_compiled_runs_match_generated_kernels_without_their_numbers() -> None:
    names = ["triton_poi_fused_add_gelu_3", "triton_poi_fused_add_gelu_14"]
    a, b = (table([row(name, 10.0, op=name, ops=["add", "gelu"])]) for name in names)
    root = time_difference(a, b)
    assert "fused kernels" not in {node.name for _, node in walk_nodes(root)}
    assert found(root, names[1]).a_name == names[0]


@pytest.mark.parametrize("order", [1, -1])
def test_generated_kernels_that_share_operators_are_one_fusion(order: int) -> None:
    one, other = "triton_poi_fused_add_gelu_1", "triton_per_fused_add_native_layer_norm_2"
    sides = [
        table([row(one, 10.0, op=one, ops=["add", "gelu"])]),
        table([row(other, 30.0, op=other, ops=["add", "native_layer_norm"])]),
    ]
    root = time_difference(*sides[::order])
    fusion = found(root, "fused: add + gelu + native_layer_norm")
    assert fusion.change == 20 * order
    assert {child.state for child in fusion.children} == {"new", "gone"}


def layers(times: Sequence[float]) -> Kernels:
    rows = [row("sgemm", ns, module=f"blocks.{number}.mlp") for number, ns in enumerate(times)]
    return table(rows)


def modules(root: TimeNode) -> dict[str, tuple[str, int]]:
    return {
        node.name: (node.state, node.change)
        for _, node in walk_nodes(root)
        if node.kind == "module"
    }


def test_layers_that_changed_alike_are_one_row_and_the_odd_one_is_another() -> None:
    root = time_difference(layers([100] * 6), layers([101, 102, 101, 190, 102, 101]))
    assert modules(root) == {"blocks.3.mlp": ("both", 90), "blocks.0–2,4–5.mlp": ("both", 7)}


def test_further_layers_are_new() -> None:
    root = time_difference(layers([100] * 2), layers([100] * 4))
    assert modules(root) == {"blocks.0–1.mlp": ("both", 0), "blocks.2–3.mlp": ("new", 200)}


def test_a_side_whose_layers_were_summed_is_compared_with_summed_layers() -> None:
    folded = table([row("sgemm", 400.0, module="blocks.*.mlp", calls=4.0)])
    assert not levels_of(folded, layers([100] * 4)).by_layer
    assert modules(time_difference(folded, layers([100] * 4))) == {"blocks.*.mlp": ("both", 0)}


def test_modules_of_the_profiler_match_in_the_order_of_their_calls() -> None:
    first, second = ("Net_0.Linear_0", "Net_0.Linear_2"), ("Net_0.Linear_5", "Net_0.Linear_9")
    a, b = (
        table([row("sgemm", 10.0 + index, module=path) for index, path in enumerate(paths)])
        for paths in (first, second)
    )
    root = time_difference(a, b)
    assert {node.state for _, node in walk_nodes(root) if node.kind == "kernel"} == {"both"}
    (module,) = [node for _, node in walk_nodes(root) if node.kind == "module"]
    assert (module.state, module.a_name) == ("renamed", "Net_0.Linear_0,2")
    assert root.change == 0


def test_a_wrapper_of_the_model_is_no_other_module() -> None:
    a = table([row("sgemm", 10.0, module="Net_0.Linear_0")])
    b = table([row("sgemm", 10.0, module="OptimizedModule_0.Net_0.Linear_0")])
    assert not changed(time_difference(a, b)).children


@pytest.mark.parametrize("module", ["", "Other_0.Linear_0"])
def test_without_a_module_in_common_operators_match_across_the_model(module: str) -> None:
    a, b = table([row("sgemm", 10.0)]), table([row("sgemm", 15.0, module=module)])
    root = time_difference(a, b)
    assert [node.name for node in root.children[0].children] == ["aten::add"]
    assert found(root, "aten::add").change == 5
    assert "across the whole model" in levels_of(a, b).notes[0]


def test_a_row_is_rounded_once_and_the_levels_above_are_sums() -> None:
    names = ("aten::a", "aten::b", "aten::c")
    a = table([row("k", 100 + 1 / 3, op=name) for name in names], steps=3)
    b = table([row("k", 200 + 2 / 3, op=name) for name in names], steps=3)
    root = time_difference(a, b)
    assert [node.amounts for _, node in walk_nodes(root) if node.kind == "kernel"] == 3 * [
        (100, 201)
    ]
    assert root.amounts == (300, 603)
    assert "not in the rows" not in {node.name for node in root.children}


def test_what_the_rows_lack_is_a_row() -> None:
    whole = table([row("k", 100.0)])
    a, b = (msgspec.structs.replace(whole, step_ms=ns / 1e6) for ns in (100, 190))
    root = time_difference(a, b)
    assert root.amounts == (100, 190)
    assert found(root, "not in the rows").amounts == (0, 90)


def test_the_summary_names_what_makes_half_of_the_change_and_tests_nothing() -> None:
    attention = {"module": "blocks.0.attention"}
    naive = [
        row("bmm", 30e6, category="gemm", op="aten::matmul", **attention),
        row("softmax_kernel", 20e6, category="softmax", op="aten::softmax", **attention),
        row("sgemm", 50e6, category="gemm", op="aten::linear"),
    ]
    sdpa = [
        row("flash_fwd", 8e6, category="attention", op="aten::sdpa", **attention),
        row("sgemm", 51e6, category="gemm", op="aten::linear"),
    ]
    root = time_difference(table(naive, idle_ns=4e6), table(sdpa, idle_ns=6e6))
    assert time_summary(root) == [
        "Traced step -39.000 ms (104.000 ms to 65.000 ms): blocks.0.attention -42.000 ms "
        "(2 rows gone: aten::matmul, aten::softmax; 1 row new: aten::sdpa).",
        "Idle +2.000 ms.",
        "All other rows +1.000 ms. One traced process each: not tested.",
    ]


def test_nothing_is_said_of_changes_where_there_are_none() -> None:
    one = table([row("sgemm", 1e6)])
    assert time_summary(time_difference(one, one)) == [
        "The traced step is the same in every row: 1.000 ms."
    ]
