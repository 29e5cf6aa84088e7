"""A formula is one path into a record; its suffix is its unit."""

from __future__ import annotations

import msgspec
import pytest

from sysbench.core.errors import SpecError
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.studies.formula import (
    check_formula,
    read_cell,
    shown_unit,
)
from sysbench.core.studies.schema import StudyColumn
from tests import factories


@pytest.fixture(scope="module")
def record(tiny_run: RunDirectory) -> Record:
    return tiny_run.record()


def cell(record: Record, text: str, unit: str = "", template: str = "") -> object:
    check_formula(text, unit)
    return read_cell(record, text, unit, template)


def test_a_path_ends_at_one_value(record: Record) -> None:
    assert record.timing is not None
    assert record.memory is not None
    assert cell(record, "timing.step.median_ms") == record.timing.step.median_ms
    seconds = record.timing.step.median_ms / 1e3
    assert cell(record, "timing.step.median_ms", "s") == pytest.approx(seconds)
    rows = {row.name: row.bytes for row in record.memory.ledger}
    assert cell(record, "memory.ledger[name=parameters].bytes") == rows["parameters"]
    assert cell(record, "memory.ledger.bytes") == sum(rows.values())
    assert cell(record, "memory.ledger[name=nothing].bytes") is None
    assert cell(record, "spec.model") == record.spec["model"]


def test_a_spread_is_its_mean_and_deviation() -> None:
    step = factories.spread(10.0, mean_ms=12.0, std_ms=0.5)
    record = factories.record(timing=factories.timing(step))
    assert cell(record, "timing.step") == "12.00 ± 0.50"
    assert cell(record, "timing.step", "s", "{:.4f}") == "0.0120 ± 0.0005"
    assert shown_unit("timing.step", "") == "ms"


def test_sums_and_parts_are_measures() -> None:
    phases = {
        "backward": factories.spread(1.0, mean_ms=2.0),
        "optimizer": factories.spread(1.0, mean_ms=3.0),
    }
    timing = factories.timing(factories.spread(9.0), phases=phases)
    formula = "measures.backward_and_optimizer_ms"
    assert cell(factories.record(timing=timing), formula) == 5.0
    assert cell(factories.record(), formula) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timing.step.mean_ms / timing.step.median_ms", "no arithmetic"),
        ("timing.step.mean_ms + 1", "no arithmetic"),
        ("measures", "a single value"),
        ("measures.gemm_shar", "did you mean 'gemm_share'"),
        ("measures.gemm_share.x", "single value"),
        ("spec", "a single value"),
        ("spec.batches", "did you mean 'batch'"),
        ("memory.ledger[parameters].bytes", "key=value"),
        ("memory[name=x].peak_ms", "is no list"),
        ("memory..peak_ms", "names with dots"),
        ("", "names with dots"),
    ],
)
def test_a_path_to_nowhere_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_formula(text, "")


@pytest.mark.parametrize("template", ["{0.__class__}", "{!r}", "{:999f}", "{:.2f} {:.2f}", "x"])
def test_a_format_writes_one_number(template: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="format"):
        msgspec.convert({"name": "ms", "format": template}, StudyColumn)
