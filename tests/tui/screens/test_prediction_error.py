"""One error of one prediction: every place gives the same sign."""

from __future__ import annotations

import msgspec

from sysbench.core.findings.memory_rules import prediction_missed
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.trust import trust_lines
from sysbench.tui.screens.memory_tab import peak_line


def test_a_prediction_that_is_too_high_is_above_zero_everywhere(gpu_run: RunDirectory) -> None:
    record = predicted_at(gpu_run.record(), 1.25)
    assert record.memory is not None
    finding = prediction_missed(record)
    assert finding is not None and "+25.0 %" in finding.verdict
    assert "+25.0 %" in peak_line(record.memory).plain
    assert "+25.0 %" in dict(trust_lines(record))["prediction"]


def predicted_at(record: Record, factor: float) -> Record:
    assert record.memory is not None
    predicted = int(factor * record.memory.peak_allocated_bytes)
    memory = msgspec.structs.replace(record.memory, predicted_peak_bytes=predicted)
    return msgspec.structs.replace(record, memory=memory)
