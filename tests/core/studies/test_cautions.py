"""Before cells are compared: how many factors, how many machines."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.schema import Axis, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.study_directory import records_of
from sysbench.core.studies.study_grid import expand
from sysbench.core.studies.study_report import study_report
from sysbench.core.studies.study_text import cautions_of, factors
from tests.half_filled import half_filled


def test_the_dimensions_of_a_model_are_one_factor() -> None:
    tiny, small = RunSpec(model="tiny"), RunSpec(model="cs336-2025/small", batch=8)
    assert factors(tiny, tiny) == []
    assert factors(tiny, small) == ["model", "batch"]


def study(points: dict[str, dict[str, object]], *columns: StudyColumn) -> Study:
    axis = Axis(
        name="way", points=tuple(Point(label=name, settings=one) for name, one in points.items())
    )
    tables = (TableLayout(name="t", title="", rows=(), columns=columns),)
    return Study(name="s", title="", axes=(axis,), tables=tables, fixed={"device": "cpu"})


STEP = "timing.step.median_ms"
RATIO = (
    StudyColumn(name="a", value=STEP, where={"way": "a"}),
    StudyColumn(name="b", value=STEP, where={"way": "b"}),
    StudyColumn(name="gain", ratio=("a", "b")),
)


def test_points_that_change_one_key_need_no_word() -> None:
    one = study({"a": {"batch": 1}, "b": {"batch": 2}}, *RATIO)
    assert cautions_of(one, expand(one), {}) == []


def test_a_key_that_every_point_sets_alike_is_no_factor() -> None:
    one = study({"a": {"batch": 1, "context": 64}, "b": {"batch": 2, "context": 64}}, *RATIO)
    assert cautions_of(one, expand(one), {}) == []


def test_points_that_change_two_keys_are_named_with_the_ratio_of_them() -> None:
    one = study({"a": {"batch": 1, "context": 64}, "b": {"batch": 2, "context": 32}}, *RATIO)
    axis, ratio = cautions_of(one, expand(one), {})
    assert "way differ in 2 factors (batch, context)" in axis
    assert "gain compares cells that differ in 2 factors (batch, context)" in ratio


def test_a_key_that_only_one_point_sets_counts_against_the_default() -> None:
    one = study({"a": {"batch": 4}, "b": {"batch": 2, "context": 32}})
    assert "2 factors" in cautions_of(one, expand(one), {})[0]
    same = study({"a": {"batch": 4}, "b": {"batch": 2, "context": RunSpec().context}})
    assert cautions_of(same, expand(same), {}) == []


def test_cells_of_two_machines_are_told(sysbench_home: Path) -> None:
    directory = half_filled(sysbench_home)
    report = study_report(directory)
    assert report.cautions == ()
    records = records_of(directory, report.cells)
    first = next(iter(records))
    records[first] = msgspec.structs.replace(
        records[first], environment={"cpu": {"model": "Xeon"}, "torch": {"version": "2.13.0"}}
    )
    (caution,) = cautions_of(report.study, report.cells, records)
    assert "different devices: EPYC, Xeon" in caution
