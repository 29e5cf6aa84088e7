from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sysbench.core.tables.kernel_tables import group_by_name, kernel_table, outlier_note
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.module_tree import fold_layer_numbers
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace


@pytest.mark.parametrize(
    ("module", "folded"),
    [
        ("blocks.11.attention.q", "blocks.*.attention.q"),
        ("encoder.layers.0.1", "encoder.layers.*.*"),
        ("model", "model"),
        ("blocks.0.ffn.w1", "blocks.*.ffn.w1"),
        ("Model_0.Block_3.Linear_12", "Model_*.Block_*.Linear_*"),
        ("", ""),
    ],
)
def test_layers_fold_by_their_numbers(module: str, folded: str) -> None:
    assert fold_layer_numbers(module) == folded


def test_rows_by_module_and_kernel_with_folded_layers(writer: Any) -> None:
    """Names that differ in their last characters only stay apart."""
    name = "void elementwise_kernel<" + "x" * 500
    writer.op("phase:forward", 0, 100)
    for layer in range(2):
        writer.op(f"mod:blocks.{layer}", 40 * layer, 40)
        writer.op("aten::mul", 40 * layer + 1, 30)
        writer.launch(40 * layer + 2, name + "mul", 100 + 20 * layer, 10 + layer)
        writer.launch(40 * layer + 6, name + "add", 200 + 20 * layer, 5)
    ledger = time_ledger(read_trace(writer.write()))
    folded = kernel_rows(ledger)
    assert [(row.name[-3:], row.module, row.calls, row.total_ns) for row in folded.rows] == [
        ("mul", "blocks.*", 2, 21),
        ("add", "blocks.*", 2, 10),
    ]
    first = folded.rows[0]
    assert (first.mean_ns, first.min_ns, first.max_ns) == (10.5, 10, 11)
    assert first.median_ns == 10.5
    assert (first.phase, first.op, first.category) == ("forward", "aten::mul", "elementwise")
    by_layer = kernel_rows(ledger, by_layer=True)
    assert [(row.module, row.total_ns) for row in by_layer.rows] == [
        ("blocks.1", 11),
        ("blocks.0", 10),
        ("blocks.0", 5),
        ("blocks.1", 5),
    ]


def test_a_row_that_one_slow_call_distorts_is_named(writer: Any) -> None:
    writer.op("phase:forward", 0, 1000)
    for place, calls in (("a", (5, 90, 4, 6, 5)), ("b", (20, 22))):
        for number, length in enumerate(calls):
            begin = 100 * number + (500 if place == "b" else 0)
            writer.op(f"mod:{place}", begin, 99)
            writer.op("aten::mul", begin + 1, 20)
            writer.launch(begin + 2, "mul_kernel", begin + 5, length)
    kernels = kernel_rows(time_ledger(read_trace(writer.write())))
    assert {row.module: row.median_ns for row in kernels.rows} == {"a": 5, "b": 21}
    assert "mul_kernel (a · forward): the longest call took 9e-05 ms, 18 × the" in outlier_note(
        kernels
    )
    (grouped,) = group_by_name(kernels).rows
    assert (grouped.calls, grouped.median_ns, grouped.max_ns) == (7, 5, 90)
    usual = msgspec.structs.replace(
        kernels, rows=[row for row in kernels.rows if row.module == "b"]
    )
    assert outlier_note(usual) == ""
    older = [msgspec.structs.replace(row, median_ns=None) for row in kernels.rows]
    assert outlier_note(msgspec.structs.replace(kernels, rows=older)) == ""
    assert "median_ns" not in kernel_table(msgspec.structs.replace(kernels, rows=older)).columns


def test_generated_kernels_are_flagged_with_their_operators(writer: Any) -> None:
    writer.launch(0, "triton_poi_fused_mul_silu_2", 10, 5)
    (row,) = kernel_rows(time_ledger(read_trace(writer.write()))).rows
    assert (row.fused, row.ops, row.category) == (True, ["mul", "silu"], "elementwise")


def test_names_are_kept_as_they_are(writer: Any) -> None:
    hostile = '[bold]k</bold> \x1b[31m "}, {" \\'
    writer.launch(0, hostile, 10, 5)
    (row,) = kernel_rows(time_ledger(read_trace(writer.write()))).rows
    assert row.name == hostile
