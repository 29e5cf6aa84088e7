"""The numerics pass: the write-ups' sums and types."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core import run
from sysbench.core.record.record import Record
from sysbench.core.spec.spec import parse_spec
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import expand, with_variant
from sysbench.core.studies.study_table import fillings
from sysbench.core.tables.cells import cells_as_text
from sysbench.core.tables.table import Table
from sysbench.core.worker.passes.numerics_pass import autocast_dtypes
from tests.factories import table_named

SIX = ("parameters", "fc1 output", "LayerNorm output", "logits", "loss", "gradients")


def record_of(workload: str, home: Path) -> Record:
    """A real run of the workload with its default passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        return run(parse_spec({"workload": workload, "device": "cpu", "threads": 1})).record


def study_table(name: str, record: Record) -> Table:
    """The table of the shipped study of that name, its one small cell being the record."""
    study = with_variant(load_study(name), "small")
    (cell,) = expand(study)
    return next(fillings(study, [cell], {cell.id: record})).table


def test_four_loops_print_what_the_write_ups_print(tmp_path: Path) -> None:
    record = record_of("accumulation", tmp_path)
    assert record.status == "finished"
    assert record.prediction is None
    assert "prediction" in record.missing
    table = table_named(record, "accumulation")
    texts = [row[table.columns.index("sum")] for row in cells_as_text(table)]
    assert texts[:4] == ["10.0001", "9.9531", "10.0021", "10.0021"]
    assert texts[4:] == ["4.0000", "10.0098", "10.0098"]
    study = study_table("accumulation", record)
    sums = [row[study.columns.index("Sum")] for row in cells_as_text(study)]
    assert sums == texts
    assert record.numerics is not None
    for row in record.numerics.accumulations:
        assert row.device == "cpu"
        assert row.error == row.value - 10.0


def test_six_types_are_the_write_ups_under_cuda_and_the_cpu_s_own(tmp_path: Path) -> None:
    record = record_of("autocast-dtypes", tmp_path)
    table = table_named(record, "dtypes")
    rows = {row[:2]: (row[2:8], row[-1]) for row in table.rows}
    assert rows["cuda", "f16"] == (("f32", "f16", "f32", "f16", "f32", "f32"), "dispatcher")
    assert rows["cuda", "bf16"] == (("f32", "bf16", "f32", "bf16", "f32", "f32"), "dispatcher")
    assert rows["cpu", "f16"] == (("f32", "f16", "f16", "f16", "f32", "f32"), "measured")
    assert rows["cpu", "bf16"] == (("f32", "bf16", "bf16", "bf16", "f32", "f32"), "measured")
    assert study_table("autocast-dtypes", record).rows == table.rows


def test_a_mean_of_logits_stays_narrow_and_a_sum_does_not() -> None:
    found = autocast_dtypes(parse_spec({"workload": "autocast-dtypes", "device": "cpu"})).dtypes
    types = {row.tensor: row for row in found if (row.autocast, row.lower) == ("cuda", "float16")}
    assert types["logits.sum()"].dtype == "float32"
    assert types["logits.mean()"].dtype == "float16"
    assert tuple(types)[:6] == SIX
    assert types["gradients"].source == "autograd"
