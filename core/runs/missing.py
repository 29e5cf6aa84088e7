"""The parts of a record that it does not have, each with its reason, and what to believe of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sysbench.core.formatting import counted
from sysbench.core.predict.closed_form import Prediction, predict, why_not_predicted
from sysbench.core.record.blocks import PASSES, why_left_out
from sysbench.core.record.record import Finding, PassRecord
from sysbench.core.runs.run_directory import Header
from sysbench.core.spec.spec import RunSpec

RECORD_CHANGED = Finding(
    rule="record-changed",
    severity="warning",
    verdict="record.json was changed after it was written",
    why="its SHA-256 is not among those in record.sha256; these figures are of events.jsonl",
    next="delete record.json, and it is written anew from the events",
)


def lines_lost(count: int) -> Finding:
    """The finding on so many lines of the events that cannot be read."""
    return Finding(
        rule="events-damaged",
        severity="warning",
        verdict=f"{counted(count, 'line')} of events.jsonl cannot be read",
        why="a crash or a full disk tore them, or somebody changed the file; samples, notices or "
        "steps that they held are not in this record",
        next="run it again where the figures have to be complete",
        numbers={"lines": count},
    )


def reasons_of_missing(
    header: Header,
    blocks: Mapping[str, Any],
    passes: Sequence[PassRecord],
    no_telemetry: str,
) -> dict[str, str]:
    """By block of the record, the reason why it is null; ``no_telemetry`` is the sensors'."""
    spec = header.spec
    outcomes = [(row.name, row.outcome) for row in passes]
    details = {row.name: row.detail for row in passes}
    missing: dict[str, str] = {}
    for row in PASSES.values():
        if row.block in blocks:
            continue
        if row.name not in header.passes:
            missing[row.block] = f"the {row.name} pass was not asked for"
        elif row.name in details:
            missing[row.block] = details[row.name]
        elif why := why_left_out(row.name, outcomes):
            missing[row.block] = f"the {row.name} pass was left out: {why}"
        else:
            missing[row.block] = f"the {row.name} pass did not run"
    if "compile" not in blocks:
        off = spec.compile == "off"
        missing["compile"] = "compile is off" if off else "the timing pass has no result"
    if "distributed" not in blocks:
        alone = "there is one rank only"
        failed = missing.get("timing", "the timing pass has no result")
        missing["distributed"] = alone if spec.ranks == 1 else failed
    if kept_prediction(predict(spec), spec) is None:
        missing["prediction"] = why_not_predicted(spec) or ""
    if no_telemetry:
        missing["telemetry"] = no_telemetry
    return missing


def kept_prediction(prediction: Prediction, spec: RunSpec) -> dict[str, Any] | None:
    """The prediction to keep; a transformer's always, then of the eager step on one device."""
    if spec.workload != "transformer" and why_not_predicted(spec) is not None:
        return None
    kept: dict[str, Any] = msgspec.to_builtins(prediction)
    return kept
