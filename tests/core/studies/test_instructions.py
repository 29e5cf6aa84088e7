"""Tables of memory say which instructions the CPU used; no others do."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.studies.formula import MEASURES
from sysbench.core.studies.schema import Axis, Line, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.study_grid import Cell, expand
from sysbench.core.studies.study_table import fillings
from sysbench.core.studies.study_text import cautions_of
from sysbench.core.tables.table import Table

PEAK, STEP = "memory.peak_allocated_bytes", "timing.step.median_ms"
AMX = {"cpu_capability": "AVX512", "onednn_instructions": "AVX512_CORE_AMX"}
AVX2 = {"cpu_capability": "AVX2", "onednn_instructions": "AVX2"}


def study(layout: TableLayout) -> Study:
    points = tuple(Point(label=str(batch), settings={"batch": batch}) for batch in (1, 2))
    axes = (Axis(name="batch", points=points),)
    return Study(name="s", title="", axes=axes, tables=(layout,), fixed={"device": "cpu"})


def of_columns(*formulas: str, lines: tuple[Line, ...] = ()) -> Study:
    columns = tuple(StudyColumn(name=formula or "value", value=formula) for formula in formulas)
    return study(TableLayout(name="t", title="", rows=("batch",), columns=columns, lines=lines))


def of_every_cell(each: str) -> Study:
    return study(TableLayout(name="t", title="", rows=(), each=each))


@pytest.fixture
def record(gpu_run: RunDirectory) -> Record:
    return gpu_run.record()


def measured(record: Record, asked: Study, *torch: dict[str, str]) -> dict[str, Record]:
    """The record for each cell in turn, as of a CPU where torch says that."""
    return {
        cell.id: msgspec.structs.replace(record, environment={"cpu": {"model": "X"}, "torch": said})
        for cell, said in zip(expand(asked), torch, strict=True)
    }


def filled(asked: Study, records: dict[str, Record]) -> Table:
    cells: list[Cell] = list(expand(asked))
    table = next(fillings(asked, cells, records)).table
    return table


@pytest.mark.parametrize(
    "asked",
    [
        of_columns(PEAK),
        of_columns("timing.step.n", "measures.largest_bytes"),
        of_columns("", lines=(Line(name="a", value=STEP), Line(name="b", value=PEAK))),
        of_every_cell("ledger"),
        of_every_cell("largest"),
    ],
    ids=["column", "measure", "line", "ledger", "largest"],
)
def test_each_cell_of_memory_says_its_own(record: Record, asked: Study) -> None:
    table = filled(asked, measured(record, asked, AMX, AVX2))
    by_batch = dict(zip(table.column("batch"), table.column("instruction set"), strict=True))
    assert by_batch == {"1": "AVX512, oneDNN AVX512_CORE_AMX", "2": "AVX2, oneDNN AVX2"}


def test_a_cell_that_was_not_measured_says_none(record: Record) -> None:
    asked = of_columns(PEAK)
    first, *_ = measured(record, asked, AMX, AVX2).items()
    assert filled(asked, dict([first])).column("instruction set") == [
        "AVX512, oneDNN AVX512_CORE_AMX",
        None,
    ]


@pytest.mark.parametrize("asked", [of_columns(STEP), of_every_cell("kernels")])
def test_tables_of_time_do_not(record: Record, asked: Study) -> None:
    table = filled(asked, measured(record, asked, AMX, AMX))
    assert table.rows
    assert "instruction set" not in table.columns


@pytest.mark.parametrize("asked", [of_columns(PEAK), of_every_cell("ledger")])
def test_cells_of_a_gpu_do_not(record: Record, asked: Study) -> None:
    table = filled(asked, {cell.id: record for cell in expand(asked)})
    assert table.rows
    assert "instruction set" not in table.columns


def test_a_study_that_asks_for_it_has_it_once(record: Record) -> None:
    asked = of_columns(PEAK, "measures.instruction_set")
    table = filled(asked, measured(record, asked, AMX, AMX))
    assert "measures.instruction_set" in table.columns
    assert "instruction set" not in table.columns


def test_cells_with_different_instructions_are_told(record: Record) -> None:
    asked = of_columns(PEAK)
    cells = list(expand(asked))
    (caution,) = cautions_of(asked, cells, measured(record, asked, AMX, AVX2))
    assert "different instruction sets: AVX2, oneDNN AVX2, AVX512, oneDNN" in caution
    assert cautions_of(asked, cells, measured(record, asked, AMX, AMX)) == []


def test_a_record_from_before_tells_what_it_knows(record: Record) -> None:
    older = msgspec.structs.replace(record, environment={"torch": {"cpu_capability": "AVX2"}})
    assert MEASURES["instruction_set"].read(older) == "AVX2"
    assert MEASURES["instruction_set"].read(record) is None


def test_tables_tell_which_kernel_sdpa_was(record: Record) -> None:
    """In every table of columns with such a cell; a cell that names its kernel has none."""
    asked = of_columns(STEP)
    settings: tuple[dict[str, str], ...] = ({"sdpa_kernel": "cudnn"}, {})
    records = {
        cell.id: msgspec.structs.replace(record, environment={"settings": said})
        for cell, said in zip(expand(asked), settings, strict=True)
    }
    assert filled(asked, records).column("sdpa kernel") == ["cudnn", None]
    without = {cell: records[cell] for cell in list(records)[1:]}
    assert "sdpa kernel" not in filled(asked, without).columns
