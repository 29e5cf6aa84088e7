"""The parts of a record that it does not have, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..estimate.closed_form import Prediction, predict, why_not_predicted
from ..record.blocks import PASSES
from ..record.record import PassRecord
from ..spec.spec import RunSpec
from .directory import Header


def reasons_of_missing(
    header: Header,
    blocks: Mapping[str, Any],
    passes: Sequence[PassRecord],
    no_telemetry: str,
) -> dict[str, str]:
    """By block of the record, the reason why it is null; ``no_telemetry`` is the sensors'."""
    spec = header.spec
    details = {row.name: row.detail for row in passes}
    missing: dict[str, str] = {}
    for row in PASSES.values():
        if row.block in blocks:
            continue
        if row.name not in header.passes:
            missing[row.block] = f"the {row.name} pass was not asked for"
        elif row.name in details:
            missing[row.block] = details[row.name]
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
