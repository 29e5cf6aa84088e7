"""What is left out of a record is what its study does not show."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import study_files
from sysbench.core.studies.cell_values import figures_of, pruner_for
from sysbench.core.studies.schema import Study, StudyColumn, TableLayout, load_study
from sysbench.core.studies.study_grid import expand, with_variant
from sysbench.core.studies.study_table import fillings


@pytest.fixture(scope="module")
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


@pytest.mark.parametrize("name", sorted(study_files()))
def test_a_shipped_study_shows_the_same_of_what_is_kept(name: str, record: Record) -> None:
    study = with_variant(load_study(name), "small")
    cells = expand(study)
    whole = {cell.id: record for cell in cells}
    prune = pruner_for(study)
    kept = {cell.id: prune(record) for cell in cells}
    assert [*fillings(study, cells, kept)] == [*fillings(study, cells, whole)]
    assert figures_of(study, cells, kept) == figures_of(study, cells, whole)


def size(record: Record) -> int:
    return len(msgspec.json.encode(record))


def test_a_study_of_times_keeps_a_small_part(record: Record) -> None:
    kept = pruner_for(load_study("e2e"))(record)
    assert kept.timing is not None
    assert (kept.memory, kept.kernels, kept.telemetry) == (None, None, None)
    assert size(kept) < size(record) / 5


def test_timelines_are_kept_where_a_page_shows_them(record: Record) -> None:
    assert record.memory is not None
    assert record.memory.timeline.t_ms
    drawn, plain = (pruner_for(load_study(name))(record) for name in ("memory", "memory-precision"))
    assert drawn.memory is not None
    assert plain.memory is not None
    assert drawn.memory.timeline == record.memory.timeline
    assert plain.memory.timeline.t_ms == []


def test_a_formula_of_a_long_part_keeps_it(record: Record) -> None:
    column = StudyColumn(name="sum", value="timing.samples_ms")
    layout = TableLayout(name="t", title="", rows=(), columns=(column,))
    kept = pruner_for(Study(name="s", title="", axes=(), tables=(layout,)))(record)
    assert kept.timing is not None
    assert record.timing is not None
    assert kept.timing.samples_ms == record.timing.samples_ms
    assert kept.timing.phase_samples_ms == {}
