"""How far a study is, and which numbers its cells have."""

from __future__ import annotations

from pathlib import Path

from sysbench.core.studies.cell_values import values_of
from sysbench.core.studies.forecast import Forecast, total_seconds, waiting_forecasts
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_directory import StudyProgress
from sysbench.core.studies.study_grid import with_variant
from sysbench.core.studies.study_report import study_report
from tests.half_filled import half_filled


def test_what_is_left_is_what_the_cells_without_a_value_take() -> None:
    progress = StudyProgress(statuses={"a": "finished", "b": "running", "c": "waiting", "d": "oom"})
    forecasts = {id: Forecast(seconds=10.0) for id in "abcd"}
    assert total_seconds(waiting_forecasts(progress, forecasts)) == (20.0, False)
    forecasts["c"] = Forecast()
    assert total_seconds(waiting_forecasts(progress, forecasts)) == (10.0, True)
    assert total_seconds([Forecast()]) == (None, True)
    assert total_seconds([]) == (0.0, False)
    assert (progress.done, progress.total, progress.running) == (2, 4, "b")


def test_the_values_of_a_cell_are_those_that_a_table_shows(sysbench_home: Path) -> None:
    report = study_report(half_filled(sysbench_home))
    (value,) = report.values
    assert (value.title, value.shown_unit) == ("step median, ms", "ms")
    assert all(value.applies(cell) for cell in report.cells)
    assert value.words(1234.5) == "1,234 ms"
    assert sorted(number for (number,) in report.numbers.values() if number) == [10, 40, 70, 160]


def test_a_spread_counts_as_the_first_number_of_its_format(sysbench_home: Path) -> None:
    values = values_of(with_variant(load_study("precision"), "small"))
    assert values[0].title == "step mean, ms"
    assert not any("spec" in value.formula for value in values)
