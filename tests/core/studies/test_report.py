"""The report of a study: only what the rows bear out, and what is missing stays visible."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from sysbench.core.spec.command_line import command_line
from sysbench.core.studies.study_directory import StudyDirectory
from sysbench.core.studies.study_report import STUDY_FORMATS, StudyReport, study_as, study_report
from tests.half_filled import filled_in_rounds, half_filled


@pytest.fixture
def directory(sysbench_home: Path) -> StudyDirectory:
    return half_filled(sysbench_home)


@pytest.fixture
def report(directory: StudyDirectory) -> StudyReport:
    return study_report(directory)


def test_it_counts_what_has_a_value_and_what_has_none(report: StudyReport) -> None:
    assert (report.progress.done, report.progress.total) == (5, 6)
    assert report.progress.counts == {"finished": 4, "oom": 1, "waiting": 1}
    assert [oom.requested_bytes for oom in report.ooms.values()] == [512 * 2**20]


def test_the_line_of_a_figure_breaks_where_a_cell_has_no_value(report: StudyReport) -> None:
    (figure,) = report.figures
    assert (figure.axis, figure.unit) == ("context", "ms")
    lines = {series.name: series.points for series in figure.series}
    assert lines["tiny"] == ((128.0, 10.0), (512.0, 40.0), (1024.0, 160.0))
    assert lines["cs336-2025/small"] == ((128.0, 70.0), (512.0, None), (1024.0, None))


def test_every_cell_has_the_command_that_measures_it_alone(report: StudyReport) -> None:
    commands = report.commands.column("command")
    assert commands == [
        command_line(cell.spec, cell.passes) for cell in report.cells if cell.spec is not None
    ]
    assert report.commands.column("status").count("waiting") == 1


def test_the_environment_names_each_fact_once(report: StudyReport) -> None:
    names = report.environment.column("quantity")
    assert len(names) == len(set(names))
    assert dict(zip(names, report.environment.column("value"), strict=True))["cpu.model"] == "EPYC"


@pytest.mark.parametrize("kind", STUDY_FORMATS)
def test_every_format_has_all_cells_of_the_table(report: StudyReport, kind: str) -> None:
    text = study_as(report, kind).decode()
    for median in ("10", "40", "160", "70"):
        assert median in text
    assert "OOM" in text


def test_json_keeps_its_contract(report: StudyReport) -> None:
    found = json.loads(study_as(report, "json"))
    assert found["study"] == "half"
    assert all(len(row) == len(found["columns"]) for row in found["rows"])
    assert len(found["cells"]) == 6
    assert {cell["status"] for cell in found["cells"]} == {"finished", "oom", "waiting"}
    assert all(cell["run"] for cell in found["cells"] if cell["status"] != "waiting")


def test_json_has_the_rounds_the_intervals_and_the_least_times(tmp_path: Path) -> None:
    report = study_report(filled_in_rounds(tmp_path, 8))
    found = json.loads(study_as(report, "json"))
    assert found["rounds"] == 8
    (best,) = found["best"]
    assert (best["place"], best["point"], best["next"]) == ("context=128", "flash", "math")
    assert 1.3 < best["low"] <= best["next_over_best"] <= best["high"] < 1.31
    first, second = (dict(zip(found["columns"], row, strict=True)) for row in found["rows"])
    assert first["naive/flash low"] <= first["naive/flash"] <= first["naive/flash high"]
    assert first["naive/flash tested"] == "differs: 8 rounds each"
    assert second["math/flash tested"] == "same within 1.0 %: 8 rounds each"


@pytest.mark.parametrize("kind", ["md", "html"])
def test_what_people_read_has_the_interval_or_the_reason_why_there_is_none(
    tmp_path: Path, kind: str
) -> None:
    text = study_as(study_report(filled_in_rounds(tmp_path, 8)), kind).decode()
    assert "1.50 (1.50–1.50)" in text and "naive/flash low" not in text
    untested = study_as(study_report(filled_in_rounds(tmp_path / "one", 1)), kind).decode()
    assert "1 run each: not tested" in untested and "times flash" not in untested


def test_csv_of_one_table_is_that_table(report: StudyReport) -> None:
    rows = list(csv.reader(io.StringIO(study_as(report, "csv").decode())))
    (table,) = report.tables
    assert tuple(rows[0]) == table.columns
    assert len(rows) == 1 + len(table.rows)


def test_a_study_without_any_run_has_a_report_with_empty_cells(
    directory: StudyDirectory,
) -> None:
    directory.cells_path.unlink()
    report = study_report(directory)
    assert report.progress.done == 0
    assert report.figures == ()
    for kind in STUDY_FORMATS:
        assert study_as(report, kind)
