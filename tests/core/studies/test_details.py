"""Tables that a cell has of its own, and what lines make of a ratio."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sysbench.core.record.memory import Origin
from sysbench.core.record.record import ModuleMemory, Record, Spread
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.details import EACH
from sysbench.core.studies.schema import Axis, Line, Point, Study, StudyColumn, TableLayout
from sysbench.core.studies.study_directory import records_of
from sysbench.core.studies.study_grid import expand
from sysbench.core.studies.study_report import study_report
from sysbench.core.studies.study_table import fillings
from sysbench.core.studies.study_text import cautions_of, sentences_of
from tests import factories
from tests.half_filled import half_filled

STEP = "timing.step.mean_ms"
COMPILED = factories.compiled(extent="whole", cold_seconds=30.0)


@pytest.fixture
def record(gpu_run: RunDirectory) -> Record:
    return gpu_run.record()


def timed(record: Record, spec: RunSpec, median_ms: float) -> Record:
    """The record as one of another spec, whose median is surely that."""
    assert record.timing is not None
    low, high = median_ms * 0.999, median_ms * 1.001
    step: Spread = msgspec.structs.replace(
        record.timing.step, median_ms=median_ms, ci_low_ms=low, ci_high_ms=high
    )
    return msgspec.structs.replace(
        record,
        id=f"run-{spec.identity}",
        identity=spec.identity,
        spec=msgspec.to_builtins(spec),
        timing=msgspec.structs.replace(record.timing, step=step),
    )


def test_kernels_are_summed_by_name_in_the_columns_of_nsys(record: Record) -> None:
    assert record.kernels is not None
    twice = msgspec.structs.replace(record.kernels, rows=record.kernels.rows * 2)
    table = EACH["kernels"](msgspec.structs.replace(record, kernels=twice), [])
    assert table is not None
    assert table.columns[:3] == ("Time %", "Total Time (ms)", "Instances")
    assert len(table.rows) == len({row.name for row in twice.rows})
    assert sum(table.column("Time %")) == pytest.approx(100)  # type: ignore[arg-type]
    assert table.column("Instances")[0] == 2 * record.kernels.rows[0].calls
    assert set(table.column("Med (us)")) == {None}


def test_compiling_pays_after_the_seconds_over_what_a_step_saves(record: Record) -> None:
    # The eager cell has the study's compile_cache, which an eager run does not use.
    spec = RunSpec(model="tiny", device="cpu", compile_cache="cold")
    eager = timed(record, spec, 12.0)
    fast = timed(record, spec.changed(compile="default"), 10.0)
    compiled = msgspec.structs.replace(fast, compile=COMPILED)
    table = EACH["compilation"](compiled, [eager, compiled])
    assert table is not None
    assert table.column("Break-even steps, cold") == [15_000]
    assert EACH["compilation"](eager, [eager, compiled]) is None
    other = timed(record, spec.changed(batch=8), 12.0)
    alone = EACH["compilation"](compiled, [other, compiled])
    assert alone is not None
    assert alone.column("Break-even steps, cold") == [None]
    assert "eager" in str(alone.column("Why")[0])


def test_rounds_of_a_study_test_the_compiled_cell_against_the_eager_one(record: Record) -> None:
    points = [Point(label=name, settings={"compile": name}) for name in ("off", "default")]
    layout = TableLayout(name="c", title="", rows=(), each="compilation")
    study = Study(
        name="s",
        title="",
        axes=(Axis(name="compile", points=tuple(points)),),
        tables=(layout,),
        fixed={"model": "tiny", "device": "cpu"},
    )
    levels = [10.0, 12.0, 9.0, 11.0, 15.0, 13.0]
    for rounds in (1, 6):
        cells = expand(study, repeat=rounds)
        records = {}
        for cell in cells:
            assert cell.spec is not None
            compiled = cell.point["compile"] != "off"
            level = levels[cell.repeat] / (1.25 + cell.repeat / 100 if compiled else 1)
            own = timed(record, cell.spec, level)
            records[cell.id] = msgspec.structs.replace(own, compile=COMPILED if compiled else None)
        table = next(fillings(study, cells, records)).table
        (tested,) = table.column("Compiled against eager")
        if rounds == 1:
            assert tested == "1 run each: not tested"
        else:
            assert tested == "faster: -21.6 % (95 % CI -23.1 to -20.0 %); 6 and 6 rounds"
        assert table.column("Break-even steps, cold")[0]


def test_the_account_is_of_the_cell_without_memory_and_of_no_other(sysbench_home: Path) -> None:
    directory = half_filled(sysbench_home)
    report = study_report(directory)
    records = records_of(directory, report.cells)
    layout = TableLayout(name="a", title="", rows=(), each="accounting")
    study = msgspec.structs.replace(report.study, tables=(layout,))
    table = next(fillings(study, report.cells, records)).table
    kept = {row[:2] for row in table.rows}
    ended_well = {
        tuple(cell.point.values())
        for cell in report.cells
        if cell.id in records and records[cell.id].status == "finished"
    }
    assert kept
    assert not kept & ended_well
    assert 512 * 2**20 in table.column("bytes")


def test_cells_whose_tables_differ_in_a_column_stay_under_the_same_names(record: Record) -> None:
    assert record.memory is not None
    layout = TableLayout(name="a", title="", rows=(), each="largest")
    points = tuple(Point(f"B{batch}", {"batch": batch}) for batch in (1, 2))
    study = Study(name="s", title="", axes=(Axis(name="batch", points=points),), tables=(layout,))
    blocks = [
        msgspec.structs.replace(row, block_bytes=row.bytes + 512) for row in record.memory.largest
    ]
    in_blocks = msgspec.structs.replace(
        record, memory=msgspec.structs.replace(record.memory, largest=blocks)
    )
    first, second = cells = expand(study)
    without = record.memory.largest
    (table,) = (
        one.table for one in fillings(study, cells, {first.id: record, second.id: in_blocks})
    )
    assert table.columns[:3] == ("batch", "bytes", "category")
    assert table.column("category") == 2 * [row.category for row in without]
    (table,) = (
        one.table for one in fillings(study, cells, {first.id: in_blocks, second.id: record})
    )
    assert table.columns[:3] == ("batch", "bytes", "block_bytes")
    nothing_known: list[int | None] = [None] * len(without)
    assert table.column("block_bytes") == [row.block_bytes for row in blocks] + nothing_known


def lined() -> Study:
    """Lines for the kinds of step, columns for the precisions, one quotient."""
    axes = tuple(
        Axis(name=key, points=tuple(Point(label=one, settings={key: one}) for one in values))
        for key, values in {"step": ("forward", "train"), "precision": ("fp32", "bf16")}.items()
    )
    columns = (
        StudyColumn(name="Mode", is_label=True),
        StudyColumn(name="FP32", where={"precision": "fp32"}),
        StudyColumn(name="BF16", where={"precision": "bf16"}),
        StudyColumn(name="Speedup", ratio=("FP32", "BF16")),
    )
    lines = tuple(
        Line(name=step.title(), value=STEP, where={"step": step}) for step in ("forward", "train")
    )
    table = TableLayout(name="t", title="", rows=(), columns=columns, lines=lines)
    return Study(name="s", title="", axes=axes, tables=(table,), fixed={"device": "cpu"})


def test_a_quotient_in_a_line_compares_the_cells_of_that_line_only() -> None:
    study = lined()
    assert cautions_of(study, expand(study), {}) == []


def test_a_sentence_about_a_line_has_its_name(record: Record) -> None:
    study = lined()
    cells = expand(study)
    records = {cell.id: timed(record, cell.spec, 10.0) for cell in cells if cell.spec}
    sentences = list(sentences_of(fillings(study, cells, records), cells, records))
    untested = "FP32 10.00 ms, BF16 10.00 ms; 1 run each: not tested."
    assert sentences[:2] == [f"Forward: {untested}", f"Train: {untested}"]


def kept(record: Record, **changes: object) -> Record:
    """The record with these parts of its memory, of a model of two blocks."""
    assert record.memory is not None
    memory = msgspec.structs.replace(record.memory, **changes)
    return msgspec.structs.replace(record, memory=memory, spec=record.spec | {"layers": 2})


def test_what_a_block_saves_adds_up_to_the_block(record: Record) -> None:
    model, block = "m.py:90 forward", "m.py:60 forward"
    origins = [
        Origin("activations", "forward", 600, 4, ["aten::linear", "m.py:40 forward", block, model]),
        Origin("activations", "forward", 200, 2, ["aten::add", block, model]),
        Origin("activations", "forward", 50, 1, ["aten::rms_norm", "m.py:30 forward", model]),
        Origin("parameters", "build", 9000, 3, ["aten::empty", model]),
    ]
    modules = [ModuleMemory("model", 0, 0, 0, 850), ModuleMemory("blocks", 0, 0, 0, 800)]
    table = EACH["saved"](kept(record, origins=origins, modules=modules), [])
    assert table is not None
    assert table.rows == (
        ("aten::linear", "m.py:40 forward", 2, 300, 0.75),
        ("aten::add", block, 1, 100, 0.25),
    )
    freed = [ModuleMemory("model", 0, 0, 0, 850), ModuleMemory("blocks", 0, 0, 0, 801)]
    other = EACH["saved"](kept(record, origins=origins, modules=freed), [])
    assert other is not None
    assert other.rows == ()
