"""Published figures beside measured ones."""

from __future__ import annotations

from collections import ChainMap
from itertools import product

import pytest

from sysbench.core import Record, RunSpec
from sysbench.core.record.record import Memory, Timing
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import parse_spec
from sysbench.core.studies.formula import check_formula
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_grid import Cell
from tests.gpu.stages.studies import STUDIES, Published, beside, load_published


@pytest.mark.parametrize("name", STUDIES)
def test_every_published_figure_is_of_a_cell_that_is_run(name: str) -> None:
    study = load_study(name)
    specs = [
        parse_spec({"device": "cuda:0"} | study.fixed | dict(ChainMap(*settings)))
        for settings in product(*([one.settings for one in axis.points] for axis in study.axes))
    ]
    mine = [one for one in load_published() if one.study == name]
    assert mine
    for one in mine:
        check_formula(one.value, one.unit)
        found = [figure for spec in specs if (figure := one.figure(spec)) is not None]
        assert sorted(found) == sorted(one.values.values()), one


def test_no_published_figure_is_of_another_study() -> None:
    assert {one.study for one in load_published()} == {*STUDIES}


def published(record: Record, value: str, figure: float, unit: str) -> Published:
    spec = {"step": record.spec["step"], "batch": record.spec["batch"]}
    context = str(record.spec["context"])
    return Published(
        study="e2e",
        source="somebody",
        spec=spec,
        key="context",
        value=value,
        unit=unit,
        values={context: figure},
    )


def test_a_figure_stands_beside_the_measured_one_with_their_ratio(tiny_run: RunDirectory) -> None:
    record = tiny_run.record()
    timing, memory = record.timing, record.memory
    assert isinstance(timing, Timing)
    assert isinstance(memory, Memory)
    spec = RunSpec(**record.spec)
    ran = Cell(point={"model": "tiny"}, spec=spec, identity="a", passes=("timing",))
    waits = Cell(point={"model": "other"}, spec=spec, identity="b", passes=("timing",))
    figures = [
        published(record, "timing.step.mean_ms", timing.step.mean_ms / 2, "ms"),
        published(record, "memory.peak_allocated_bytes", 1.0, "MiB"),
    ]
    table = beside([ran, waits], {ran.id: record}, figures)
    peak = memory.peak_allocated_bytes / 2**20
    assert table.column("ratio") == ["2.00", None, f"{peak:.2f}", None]
    assert table.column("measured") == [
        *(f"{timing.step.mean_ms:.4g}", "waits", f"{peak:.4g}", "waits"),
    ]
    assert set(table.column("source")) == {"somebody"}
