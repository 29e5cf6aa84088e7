"""One tree of the step: it adds up, folds what is alike, and shows what is not."""

from __future__ import annotations

import json
import re
import shutil
from math import fsum
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.record import (
    CategoryRow,
    Coverage,
    IdleRow,
    KernelRow,
    Kernels,
    Memory,
    ModuleMemory,
)
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.module_tree import (
    WORK,
    TreeNode,
    find_outliers,
    from_share,
    kernel_tree,
    matching,
    ranges,
    to_depth,
    walk,
)
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace


def row(
    module: str,
    ns: float,
    *,
    op: str = "aten::mm",
    name: str = "gemm",
    phase: str = "forward",
    linked: bool = True,
    flops: float | None = None,
    of_roof: float | None = None,
) -> KernelRow:
    return KernelRow(
        name=name,
        category="gemm",
        phase=phase,
        module=module,
        op=op,
        calls=1,
        total_ns=ns,
        exclusive_ns=ns,
        mean_ns=ns,
        min_ns=ns,
        max_ns=ns,
        share=0.0,
        linked=linked,
        flops=flops,
        of_roof=of_roof,
    )


def kernels(rows: list[KernelRow], idle: float = 0.0, unattributed: float = 0.0) -> Kernels:
    step_ns = fsum([*(one.exclusive_ns for one in rows), idle, unattributed])
    return Kernels(
        source="kernels",
        steps=3,
        step_ms=step_ns / 1e6,
        busy_ns=step_ns - idle - unattributed,
        span_ns=step_ns,
        phases_ns={"forward": step_ns},
        rows=rows,
        categories=[CategoryRow("gemm", "forward", 1, step_ns, 1.0)],
        idle=[IdleRow("host had not launched yet", idle, idle / step_ns if step_ns else 0.0)],
        unattributed_ns=unattributed,
        coverage=Coverage(launches=1, kernels=1, unlinked=0, explained=1.0, with_module=1.0),
    )


def by_path(root: TreeNode) -> dict[str, TreeNode]:
    return {node.path: node for _, node in walk(root)}


def leaves(root: TreeNode) -> list[TreeNode]:
    return [node for _, node in walk(root) if not node.children]


MODULES = st.one_of(
    st.sampled_from(["", "model", "loss", "grad accumulate", "head", "optimizer"]),
    st.builds(
        "blocks.{}{}".format,
        st.integers(0, 5),
        st.sampled_from(["", ".ffn", ".ffn.w1", ".attention", ".experts.0", ".experts.1"]),
    ),
    st.builds("Model_0.Block_{}.Linear_{}".format, st.integers(0, 3), st.integers(0, 2)),
)
ROWS = st.lists(
    st.builds(
        row,
        MODULES,
        st.integers(0, 10**9).map(lambda ns: ns / 3),
        op=st.sampled_from(["", "aten::mm", "aten::add", "gemm"]),
        name=st.sampled_from(["gemm", "aten::mm", "aten::add", "k|/[b]"]),
        phase=st.sampled_from(["forward", "backward", "optimizer", "unknown"]),
        linked=st.booleans(),
    ),
    max_size=60,
)
NS = st.integers(0, 10**9).map(lambda ns: ns / 3)


@settings(deadline=None)
@given(rows=ROWS, idle=NS, unattributed=NS, least=st.sampled_from([0.0, 0.01, 0.2, 1.0]))
def test_every_tree_adds_up_to_its_step(
    rows: list[KernelRow], idle: float, unattributed: float, least: float
) -> None:
    table = kernels(rows, idle, unattributed)
    step_ns = table.step_ms * 1e6
    whole = kernel_tree(table)
    for tree in (whole, from_share(whole, least)):
        assert fsum(leaf.inclusive_ns for leaf in leaves(tree)) == pytest.approx(step_ns)
        assert fsum(leaf.calls or 0 for leaf in leaves(tree)) == len(rows)
        for _, node in walk(tree):
            below = [child.inclusive_ns for child in node.children]
            assert all(0 <= ns <= node.inclusive_ns for ns in below)
            assert fsum(below) <= node.inclusive_ns * (1 + 1e-12)
            assert 0 <= node.exclusive_ns <= node.inclusive_ns
    nodes = [node for _, node in walk(whole)]
    assert len({node.path for node in nodes}) == len(nodes)
    places = (node.exclusive_ns for node in nodes if node.kind not in WORK)
    assert fsum(places) == pytest.approx(step_ns)


@settings(deadline=None)
@given(rows=ROWS)
def test_phases_split_every_node(rows: list[KernelRow]) -> None:
    whole = by_path(kernel_tree(kernels(rows)))
    for node in whole.values():
        if node.phases_ns:
            assert fsum(node.phases_ns.values()) == pytest.approx(node.inclusive_ns)
    backward = kernel_tree(kernels(rows), phase="backward")
    assert backward.inclusive_ns == pytest.approx(
        fsum(one.exclusive_ns for one in rows if one.phase == "backward")
    )


def blocks(count: int, slow: int, times: float) -> list[KernelRow]:
    """Layers with a little noise; one takes so many times longer."""
    return [
        row(f"blocks.{layer}.{part}", (1000 + layer % 3) * (times if layer == slow else 1))
        for layer in range(count)
        for part in ("attention", "ffn")
    ]


def test_alike_layers_fold_with_their_spread_and_the_odd_one_stands_alone() -> None:
    tree = by_path(kernel_tree(kernels([*blocks(36, 17, 1.2), row("head", 5)])))
    folded, odd = tree["blocks.0–16,18–35"], tree["blocks.17"]
    assert folded.layers is not None
    assert (folded.layers.count, folded.layers.min_ns, folded.layers.max_ns) == (35, 2000, 2004)
    assert folded.layers.median_ns == 2002
    assert folded.layers.slowest % 3 == 2
    assert folded.kind == "layers" and odd.kind == "module"
    assert odd.inclusive_ns == pytest.approx(2 * 1002 * 1.2)
    assert tree["blocks.0–16,18–35.ffn"].inclusive_ns == pytest.approx(
        fsum(1000 + layer % 3 for layer in range(36) if layer != 17)
    )
    assert "blocks" not in tree, "a module that only holds layers gives way to them"


def test_a_layer_within_the_limit_is_not_odd() -> None:
    tree = by_path(kernel_tree(kernels(blocks(36, 17, 1.05))))
    assert "blocks.0–35" in tree


def test_a_layer_of_another_shape_is_not_folded() -> None:
    rows = [*blocks(4, -1, 1), row("blocks.2.attention", 1, op="aten::dropout")]
    tree = by_path(kernel_tree(kernels(rows)))
    assert {"blocks.0–1,3", "blocks.2"} <= tree.keys()


def test_odd_needs_both_limits() -> None:
    assert find_outliers({0: 1.0, 1: 2.0}) == [], "of two nobody is the odd one"
    noisy = {number: float(number) for number in range(10, 30)}
    assert find_outliers(noisy) == [], "far from the median, but so are its siblings"
    assert find_outliers(dict.fromkeys(range(9), 100.0) | {9: 109.0}) == []
    assert find_outliers(dict.fromkeys(range(9), 100.0) | {9: 111.0}) == [9]


def test_ranges_are_short() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0–2,5,7–8"
    assert ranges(list(range(0, 40, 2))) == "0,2,4,…,38"


def test_layers_of_foreign_traces_fold_by_class_and_number() -> None:
    """The profiler numbers a class through the whole model, whichever layer it is in."""
    rows = [
        row(f"Model_0.Block_{layer}.{name}", ns)
        for layer in range(4)
        for name, ns in (
            (f"Linear_{2 * layer}", 10),
            (f"Linear_{2 * layer + 1}", 20),
            (f"Norm_{layer}", 5),
        )
    ]
    tree = by_path(kernel_tree(kernels(rows)))
    folded = tree["Model_0.Block_0–3"]
    assert folded.layers is not None
    assert {node.name: node.inclusive_ns for node in folded.children} == {
        "Linear_*2": 80,
        "Linear_*1": 40,
        "Norm_*": 20,
    }


def test_rows_that_were_folded_before_keep_their_place() -> None:
    tree = by_path(kernel_tree(kernels([row("blocks.*.ffn", 7), row("head", 1)])))
    assert tree["blocks.*.ffn"].inclusive_ns == 7


def test_what_belongs_to_no_module_stands_beside_the_model() -> None:
    rows = [
        row("head", 1),
        row("loss", 2),
        row("", 3, phase="optimizer"),
        row("", 4),
        row("", 5, phase="unknown", linked=False),
    ]
    tree = kernel_tree(kernels(rows, idle=7, unattributed=6))
    assert [(node.name, node.inclusive_ns) for node in tree.children] == [
        ("launch not recorded", 5),
        ("forward, outside modules", 4),
        ("optimizer", 3),
        ("loss", 2),
        ("model", 1),
        ("idle", 7),
        ("unattributed", 6),
    ]


def test_modules_carry_what_they_hold_in_memory(tiny_run: RunDirectory) -> None:
    memory = tiny_run.record().memory
    assert isinstance(memory, Memory)
    held = [ModuleMemory(f"blocks.{layer}", 10, 0, 0, 100 + layer) for layer in range(3)]
    tree = by_path(
        kernel_tree(kernels(blocks(3, -1, 1)), msgspec.structs.replace(memory, modules=held))
    )
    folded = tree["blocks.0–2"]
    assert (folded.parameter_bytes, folded.activation_bytes) == (30, 303)
    assert tree["blocks.0–2.ffn"].parameter_bytes is None


def test_work_sums_where_known_and_the_roof_needs_nearly_all_of_the_time() -> None:
    rows = [
        row("head", 95, flops=10.0, of_roof=0.5),
        row("head", 5, name="other"),
        row("norm", 50, flops=1.0, of_roof=0.1),
        row("norm", 50, name="other"),
    ]
    tree = by_path(kernel_tree(kernels(rows)))
    assert (tree["head"].flops, tree["head"].of_roof) == (10.0, 0.5)
    assert (tree["norm"].flops, tree["norm"].of_roof) == (1.0, None)
    assert tree["head/aten::mm/other"].flops is None


def test_modules_nested_without_end_end() -> None:
    deep = ".".join("a" * 250)
    tree = kernel_tree(kernels([row(deep, 1)]))
    assert fsum(leaf.inclusive_ns for leaf in leaves(tree)) == 1
    assert json.loads(msgspec.json.encode(tree))["inclusive_ns"] == 1


def test_a_match_keeps_its_parents_and_all_below_it() -> None:
    tree = kernel_tree(kernels([*blocks(2, -1, 1), row("head", 1, op="aten::exp", name="exp_k")]))
    found = matching(tree, re.compile(r"attention").search)
    assert found is not None
    assert [node.path for _, node in walk(found)] == [
        *("step", "model", "blocks.0–1", "blocks.0–1.attention"),
        *("blocks.0–1.attention/aten::mm", "blocks.0–1.attention/aten::mm/gemm"),
    ]
    assert found.inclusive_ns == tree.inclusive_ns
    assert matching(tree, re.compile("nowhere").search) is None


def test_depth_counts_from_the_step() -> None:
    tree = kernel_tree(kernels(blocks(2, -1, 1)))
    assert max(depth for depth, _ in walk(to_depth(tree, 2))) == 2
    assert to_depth(tree, 0).children == []


def test_what_is_small_is_summed_not_lost() -> None:
    rows = [row("head", 1000), *(row(f"part{letter}", 1) for letter in "abc")]
    tree = from_share(kernel_tree(kernels(rows)), 0.01)
    (model,) = (node for _, node in walk(tree) if node.path == "model")
    assert [(node.name, node.inclusive_ns) for node in model.children] == [
        ("head", 1000),
        ("(3 more)", 3),
    ]


def test_a_real_run_adds_up_layer_by_layer(tiny_run: RunDirectory) -> None:
    record = tiny_run.record()
    detailed = layer_rows(tiny_run, record)
    assert detailed is not None and record.kernels is not None and record.memory is not None
    assert detailed.perturbation == record.kernels.perturbation
    tree = kernel_tree(detailed, record.memory)
    assert tree.inclusive_ns == pytest.approx(record.kernels.step_ms * 1e6)
    folded = next(node for _, node in walk(tree) if node.kind == "layers")
    assert folded.name == "blocks.0–1"
    assert folded.parameter_bytes == sum(
        one.parameter_bytes
        for one in record.memory.modules
        if re.fullmatch(r"blocks\.\d+", one.module)
    )


def test_a_damaged_file_of_rows_is_told(tiny_run: RunDirectory, gpu_run: RunDirectory) -> None:
    record = gpu_run.record()
    assert layer_rows(gpu_run, record) is record.kernels, "without the file the record's rows do"
    (gpu_run.pass_folder("trace") / "kernels.json").write_bytes(b'{"source": 3')
    with pytest.raises(DamagedFileError, match=r"kernels\.json"):
        layer_rows(gpu_run, record)


def test_rows_that_were_changed_are_not_shown_as_the_records(
    tiny_run: RunDirectory, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(tiny_run.path, tmp_path / "run"))
    path = run.pass_folder("trace") / "kernels.json"
    kernels = json.loads(path.read_bytes())
    assert layer_rows(run, run.record())
    kernels["rows"][0]["exclusive_ns"] *= 0.9
    path.write_text(json.dumps(kernels))
    with pytest.raises(DamagedFileError, match="add up"):
        layer_rows(run, run.record())


def test_a_real_trace_of_another_program_folds_its_layers(shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces" / "qwen15_0.5b_h100_fwd.json.gz")
    table = kernel_rows(time_ledger(trace), by_layer=True)
    tree = kernel_tree(table)
    assert fsum(leaf.inclusive_ns for leaf in leaves(tree)) == table.step_ms * 1e6
    folded = [node for _, node in walk(tree) if node.kind == "layers"]
    assert [(node.name, node.layers and node.layers.count) for node in folded] == [
        ("Qwen2DecoderLayer_0–23", 24)
    ]
    unlinked = next(node for node in tree.children if node.name == "launch not recorded")
    assert unlinked.calls == table.coverage.unlinked
