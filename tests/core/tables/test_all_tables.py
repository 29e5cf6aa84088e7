"""Tables of a record: complete, typed, and adding up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.kernel_tables import category_table, kernel_table, top_kernels
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import Table, folded, is_number, to_frame, with_total
from sysbench.core.tables.trust import trust_lines
from tests.factories import table_named


def total(table: Table, column: str) -> float:
    return sum(cell for cell in table.column(column) if is_number(cell))


def test_every_block_of_the_record_has_its_table(gpu_run: RunDirectory) -> None:
    tables = tables_of(gpu_run.record())
    assert [table.name for table in tables] == [
        *("spec", "findings", "passes", "timing", "speed", "questions", "categories", "tree"),
        "kernels",
        *("memory", "ledger", "card", "modules", "largest", "telemetry", "environment"),
    ]
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_kernel_rows_with_idle_and_unattributed_add_up_to_the_step(gpu_run: RunDirectory) -> None:
    kernels = gpu_run.record().kernels
    assert kernels is not None
    for table in (kernel_table(kernels), category_table(kernels)):
        assert total(table, "share") == pytest.approx(1)
        assert total(table, "exclusive_ns") == pytest.approx(kernels.step_ms * 1e6)


def test_top_kernels_name_the_place_that_takes_longest_and_how_many_more(
    gpu_run: RunDirectory,
) -> None:
    kernels = gpu_run.record().kernels
    assert kernels is not None
    first = msgspec.structs.replace(kernels.rows[1], name="gemm", exclusive_ns=5e6)
    rows = [
        first,
        msgspec.structs.replace(first, module="blocks.1", op="aten::bmm", exclusive_ns=3e6),
        msgspec.structs.replace(first, module="blocks.1", op="aten::bmm", exclusive_ns=3e6),
        msgspec.structs.replace(first, name="alone", module="", op="aten::add", exclusive_ns=1e6),
    ]
    table = top_kernels(msgspec.structs.replace(kernels, rows=rows), 15, placed=True)
    assert [table.mapping(row)["module"] for row in range(2)] == ["blocks.1 +1", ""]
    assert [table.mapping(row)["op"] for row in range(2)] == ["aten::bmm +1", "aten::add"]


def test_top_kernels_folds_the_rest_and_ends_with_the_whole_step(gpu_run: RunDirectory) -> None:
    kernels = gpu_run.record().kernels
    assert kernels is not None
    table = top_kernels(kernels, 15)
    names = table.column("name")
    assert names[15:] == ["(26 more)", "idle: host late", "unattributed", "step"]
    assert table.column("share")[-1] == pytest.approx(1)


def test_the_worth_of_a_prediction_is_told_without_library_workspace(gpu_run: RunDirectory) -> None:
    record = gpu_run.record()
    assert record.memory is not None
    lines = dict(trust_lines(record))
    assert lines["prediction"] == "closed form 1.00 GiB, +0.0 % against the measured peak"
    memory = msgspec.structs.replace(
        record.memory, predicted_peak_bytes=2**29, library_workspace_bytes=2**29
    )
    lines = dict(trust_lines(msgspec.structs.replace(record, memory=memory)))
    assert lines["prediction"] == (
        "closed form 512 MiB, -50.0 % against the measured peak, +0.0 % without library workspace"
    )


def test_ledger_holds_the_other_instants_beside_the_peak(gpu_run: RunDirectory) -> None:
    table = table_named(gpu_run.record(), "ledger")
    assert table.columns == ("name", "peak_bytes", "share", "steady_end_bytes")
    assert table.rows == (("parameters", 2**29, 0.5, 2**29), ("activations", 2**29, 0.5, None))


def test_unknown_value_is_null_with_its_reason_beside_it(gpu_run: RunDirectory) -> None:
    speed = {row[0]: row for row in table_named(gpu_run.record(), "speed").rows}
    assert speed["mfu"] == ("mfu", None, "the peak of this device is not known")
    environment = {row[0]: row for row in table_named(gpu_run.record(), "environment").rows}
    assert environment["cpu.quota"] == ("cpu.quota", None, "no limit is set")


def test_passes_show_what_watching_costs(gpu_run: RunDirectory) -> None:
    over = table_named(gpu_run.record(), "passes").column("over_bare")
    assert over == [pytest.approx(0), pytest.approx(0.05), pytest.approx(0.2)]


def test_frame_keeps_columns_types_and_title(gpu_run: RunDirectory) -> None:
    frame = to_frame(table_named(gpu_run.record(), "timing"))
    assert frame.loc[frame["phase"] == "step", "median_ms"].item() == 10.0
    assert frame["n"].sum() == 200
    assert frame.attrs["title"].startswith("Timing")


@given(st.lists(st.integers(0, 10**9), max_size=40), st.integers(0, 20))
def test_folding_keeps_every_sum(values: list[int], keep: int) -> None:
    rows = tuple((f"row {index}", value) for index, value in enumerate(values))
    table = Table(name="t", title="", columns=("name", "bytes"), rows=rows)
    short = folded(table, keep, "name", ["bytes"])
    assert total(short, "bytes") == sum(values)
    assert len(short.rows) <= max(keep + 1, len(rows) if len(rows) == keep + 1 else 0)
    assert with_total(short, "name", "all", ["bytes"]).rows[-1] == ("all", sum(values))
