"""Differences of real runs and real traces: every row adds up, and the rows are those of the
change that was made."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from sysbench.core import RunSpec, run
from sysbench.core.compare.difference import DifferenceSide, difference
from sysbench.core.compare.nodes import AnyNode, Difference, TimeNode, changed, walk_nodes
from sysbench.core.inspection.reading import read_tables
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.storage import HOME_VARIABLE


class Measured(NamedTuple):
    naive: DifferenceSide
    sdpa: DifferenceSide
    bf16: DifferenceSide


@pytest.fixture(scope="module")
def measured(tiny_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """The real run of tiny, and two more that differ from it in one setting each."""
    naive = load_record(tiny_run)
    spec = msgspec.convert(naive.spec, RunSpec)
    assert (spec.attention, spec.precision) == ("naive", "fp32")

    def side(*passes: str, **changes: object) -> DifferenceSide:
        found = run(spec.changed(**changes), list(passes))
        assert found.record.status == "finished", found.record.passes
        return DifferenceSide(found.record, layer_rows(found.directory, found.record))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(tmp_path_factory.mktemp("differences")))
        return Measured(
            naive=DifferenceSide(naive, layer_rows(tiny_run, naive)),
            sdpa=side("trace", "memory", attention="sdpa"),
            bf16=side("trace", precision="bf16"),
        )


def assert_adds_up(root: AnyNode) -> None:
    for _, node in walk_nodes(root):
        for index in (0, 1):
            assert not node.children or node.amounts[index] == sum(
                child.amounts[index] for child in node.children
            )


def assert_as_long(root: TimeNode, *sides: DifferenceSide) -> None:
    """Each row is rounded to a nanosecond, and the step is their sum."""
    for amount, side in zip(root.amounts, sides, strict=True):
        assert side.kernels is not None
        assert abs(amount - side.kernels.step_ms * 1e6) <= len(side.kernels.rows)


def time_of(found: Difference) -> TimeNode:
    assert found.time is not None
    assert_adds_up(found.time)
    return found.time


def only_on_one_side(root: TimeNode, state: str) -> set[str]:
    return {
        node.name for _, node in walk_nodes(root) if node.state == state and node.kind == "operator"
    }


def test_naive_against_fused_attention(measured: Measured) -> None:
    found = difference(measured.naive, measured.sdpa)
    root = time_of(found)
    assert_as_long(root, measured.naive, measured.sdpa)
    assert "aten::exp" in only_on_one_side(root, "gone")
    assert "aten::scaled_dot_product_attention" in only_on_one_side(root, "new")
    modules = {node.name for _, node in walk_nodes(root) if node.kind == "module"}
    assert any(name.startswith("blocks.") and name.endswith(".attention") for name in modules)
    assert len(found.summary) == 4
    assert "One traced process each: not tested." in found.summary[2]


def test_memory_of_naive_against_fused_attention(measured: Measured) -> None:
    root = difference(measured.naive, measured.sdpa).memory
    assert root is not None
    assert_adds_up(root)
    peaks = [side.record.memory for side in (measured.naive, measured.sdpa)]
    assert root.amounts == tuple(memory.peak_allocated_bytes for memory in peaks if memory)
    gone = [node for _, node in walk_nodes(root) if node.kind == "stack" and node.state == "gone"]
    assert any("attention.py" in frame for node in gone for frame in node.stack)


def test_fp32_against_bf16(measured: Measured) -> None:
    found = difference(measured.naive, measured.bf16)
    root = time_of(found)
    assert_as_long(root, measured.naive, measured.bf16)
    (copies,) = [node for node in root.children if node.name == "copy"]
    before, after = copies.counts
    assert before is not None and after is not None and after > before
    assert found.memory is None
    assert found.missing == {"memory": "B has no memory pass"}


def test_a_run_against_itself(measured: Measured) -> None:
    found = difference(measured.naive, measured.naive)
    assert found.memory is not None
    assert not changed(time_of(found)).children
    assert not changed(found.memory).children


PAIRS = [
    ("more/sid_transformer_b.json.gz", "more/sid_transformer_h100.json.gz"),
    ("more/tl_mi300_qwen.json.gz", "traces/qwen15_0.5b_h100_fwd.json.gz"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=["one-model-twice", "mi300-against-h100"])
def test_two_public_traces(pair: tuple[str, str], shared_data: Path) -> None:
    tables = [read_tables(shared_data / name, lambda *_: None) for name in pair]
    sides = [DifferenceSide(found.inspection.as_record(), found.layers) for found in tables]
    root = time_of(difference(*sides))
    assert_as_long(root, *sides)
    matched = [
        node for _, node in walk_nodes(root) if node.kind == "operator" and node.state == "both"
    ]
    shared_ns = sum(min(node.amounts) for node in matched)
    assert shared_ns > 0.4 * sum(child.a_ns for child in root.children if child.kind == "category")
