"""Any two tables: every level adds up, exchange negates, and a table differs from itself in
nothing."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.core.compare.difference import memory_difference_tree
from sysbench.core.compare.nodes import (
    AnyNode,
    ByteNode,
    TimeNode,
    changed,
    from_change,
    limit_depth,
    walk_nodes,
)
from sysbench.core.compare.times import time_difference
from sysbench.core.record.memory import Origin
from sysbench.core.record.record import Coverage, IdleRow, KernelRow, Kernels, LedgerRow, Memory
from tests.conftest import MEMORY

CATEGORIES = ("gemm", "norm", "elementwise", "communication", "copy")
OPERATORS = ("", "aten::linear", "aten::mm", "aten::add", "aten::gelu", "aten::layer_norm")
KERNELS = ("sgemm", "hgemm", "vectorized<float>", "vectorized<bf16>", "aten::mm", "ncclAllReduce")
FUSED = {
    "triton_poi_fused_add_gelu_0": ["add", "gelu"],
    "triton_poi_fused_add_gelu_7": ["add", "gelu"],
    "triton_per_fused_add_native_layer_norm_1": ["add", "native_layer_norm"],
    "cpp_fused_gelu_mul_view_3": ["gelu", "mul", "view"],
}
MODULES = (
    *("", "model", "loss", "grad accumulate", "head"),
    *(f"blocks.{number}.mlp" for number in range(4)),
    *(f"blocks.{number}" for number in range(4)),
    *("Net_0.Linear_0", "Net_0.Linear_3", "Net_0.Linear_5", "OptimizedModule_0.Net_0.Linear_3"),
)
PHASES = ("forward", "backward", "optimizer", "other", "unknown")
TOTALS = st.integers(0, 5) | st.integers(0, 10**12)


def _row(values: tuple[str, str, str, str, str, int, int, bool], steps: int) -> KernelRow:
    category, phase, module, op, name, total, calls, is_linked = values
    return KernelRow(
        name=name,
        category=category,
        phase=phase,
        module=module,
        op=op,
        calls=calls / steps,
        total_ns=total / steps,
        exclusive_ns=total / steps,
        mean_ns=0.0,
        min_ns=0.0,
        max_ns=0.0,
        share=0.0,
        fused=name in FUSED,
        ops=FUSED.get(name, []),
        linked=is_linked,
    )


@st.composite
def tables(draw: st.DrawFn) -> Kernels:
    """A table that adds up to its step, or one that lacks a little."""
    steps = draw(st.integers(1, 7))
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(CATEGORIES),
                st.sampled_from(PHASES),
                st.sampled_from(MODULES),
                st.sampled_from(OPERATORS),
                st.sampled_from((*KERNELS, *FUSED)),
                TOTALS,
                st.integers(1, 9),
                st.booleans(),
            ),
            max_size=14,
        )
    )
    idle = draw(st.dictionaries(st.sampled_from(("host late", "on a sync")), TOTALS))
    unattributed = draw(TOTALS)
    lacking = draw(st.sampled_from((0, 0, 1, 4)))
    length = sum(row[5] for row in rows) + sum(idle.values()) + unattributed + lacking
    return Kernels(
        source=draw(st.sampled_from(("kernels", "operators"))),
        steps=steps,
        step_ms=length / steps / 1e6,
        busy_ns=0.0,
        span_ns=0.0,
        phases_ns={"forward": 1.0},
        rows=[_row(row, steps) for row in rows],
        categories=[],
        idle=[IdleRow(cause, ns / steps, 0.0) for cause, ns in idle.items()],
        unattributed_ns=unattributed / steps,
        coverage=Coverage(launches=0, kernels=0, unlinked=0, explained=1.0, with_module=1.0),
    )


def assert_adds_up(root: AnyNode) -> None:
    for _, node in walk_nodes(root):
        if node.children:
            for side in (0, 1):
                assert sum(child.amounts[side] for child in node.children) == node.amounts[side]
        assert node.state != "new" or not node.amounts[0]
        assert node.state != "gone" or not node.amounts[1]
        assert bool(node.a_name) == (node.state == "renamed")


def shape(root: AnyNode, *, exchanged: bool = False) -> list[tuple[object, ...]]:
    """The nodes without their order."""
    states = {"new": "gone", "gone": "new"} if exchanged else {}
    rows: list[tuple[object, ...]] = []
    for depth, node in walk_nodes(root):
        a, b = node.amounts[::-1] if exchanged else node.amounts
        state = states.get(node.state, node.state)
        rows.append((depth, node.kind, node.phase, state, a, b))
    return sorted(rows, key=repr)


def assert_as_long(root: TimeNode, side: int, kernels: Kernels) -> None:
    """Each row is rounded once; without a row for what is missing, that is all that may lack."""
    rounded = len(kernels.rows) + len(kernels.idle) + 2
    assert 2 * abs(root.amounts[side] - kernels.step_ms * 1e6) <= rounded + 1


@given(a=tables(), b=tables())
@settings(max_examples=100, deadline=None)
def test_every_level_adds_up_to_the_change_of_the_step(a: Kernels, b: Kernels) -> None:
    root = time_difference(a, b)
    assert_as_long(root, 0, a)
    assert_as_long(root, 1, b)
    assert_adds_up(root)
    for cut in (changed(root), from_change(root, 1000), from_change(changed(root), 10**9)):
        assert _leaf_change(cut) == root.change
        assert _leaf_change(limit_depth(cut, 2)) == root.change


def _leaf_change(root: TimeNode) -> int:
    return sum(node.change for _, node in walk_nodes(root) if not node.children)


@given(a=tables(), b=tables())
@settings(max_examples=100, deadline=None)
def test_exchanging_the_sides_negates_every_row(a: Kernels, b: Kernels) -> None:
    assert shape(time_difference(a, b)) == shape(time_difference(b, a), exchanged=True)


@given(tables())
@settings(max_examples=60, deadline=None)
def test_a_table_differs_from_itself_in_nothing(table: Kernels) -> None:
    root = time_difference(table, table)
    assert {node.state for _, node in walk_nodes(root)} == {"both"}
    assert not changed(root).children


@given(a=tables(), b=tables())
@settings(max_examples=100, deadline=None)
def test_no_nanosecond_and_no_call_is_lost_or_counted_twice(a: Kernels, b: Kernels) -> None:
    root = time_difference(a, b)
    for side, table in enumerate((a, b)):
        calls = [node.counts[side] for _, node in walk_nodes(root) if not node.children]
        expected = sum(row.calls for row in table.rows)
        assert abs(sum(count or 0.0 for count in calls) - expected) < 1e-6
        leaves = [node for _, node in walk_nodes(root) if not node.children]
        ran = [node for node in leaves if node.kind in ("operator", "kernel")]
        exact = sum(row.exclusive_ns for row in table.rows)
        assert abs(sum(node.amounts[side] for node in ran) - exact) <= len(leaves) + 1e-3


STACKS = st.lists(st.sampled_from(("f.py:1 f", "f.py:2 f", "g.py:9 g")), max_size=2)
NAMES = ("parameters", "activations", "rounding")


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[LedgerRow], list[Origin]]:
    ledger = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**50)))
    origins = draw(
        st.lists(
            st.tuples(
                st.sampled_from((*NAMES, "smaller")),
                st.sampled_from(("", "forward")),
                st.integers(0, 2**40),
                st.integers(1, 9),
                STACKS,
            ),
            max_size=8,
        )
    )
    return [LedgerRow(*row) for row in ledger.items()], [Origin(*origin) for origin in origins]


def _memory_tree(
    a: tuple[list[LedgerRow], list[Origin]], b: tuple[list[LedgerRow], list[Origin]], beyond: int
) -> ByteNode:
    return memory_difference_tree(_memory(*a, beyond), _memory(*b, beyond))


def _memory(ledger: list[LedgerRow], origins: list[Origin], beyond: int) -> Memory:
    peak = sum(row.bytes for row in ledger) + beyond
    return msgspec.structs.replace(
        MEMORY, ledger=ledger, origins=origins, peak_allocated_bytes=peak
    )


@given(a=sides(), b=sides(), beyond=st.sampled_from((0, 0, 7)))
@settings(max_examples=100, deadline=None)
def test_memory_adds_up_to_the_byte(
    a: tuple[list[LedgerRow], list[Origin]], b: tuple[list[LedgerRow], list[Origin]], beyond: int
) -> None:
    root = _memory_tree(a, b, beyond)
    assert root.amounts == tuple(sum(row.bytes for row in side[0]) + beyond for side in (a, b))
    assert_adds_up(root)
    assert shape(root) == shape(_memory_tree(b, a, beyond), exchanged=True)
    assert not changed(_memory_tree(a, a, beyond)).children
