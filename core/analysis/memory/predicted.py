"""The prediction beside what was measured, row by row."""

from __future__ import annotations

import msgspec

from ...estimate.closed_form import ROWS, Prediction, why_not_predicted
from ...record.memory import ReconciledRow
from ...record.record import Memory
from ...spec.spec import RunSpec
from ..resident_set import resident_set

NOT_PREDICTED = "not predicted"
NO_MATCH = "no closed form comes close: temporaries or logits weigh more here, see the ledger"


def reconciled(memory: Memory, spec: RunSpec, prediction: Prediction) -> Memory:
    """The block with its prediction, the error of every row, and the closed form it matches.

    What the prediction is not of, such as compiled code, gets none, and ``missing`` says why.
    """
    forms, matched = resident_set(memory, spec)
    missing = dict(memory.missing)
    if matched is None:
        missing["resident_set"] = NO_MATCH
    reason = why_not_predicted(spec)
    if reason is not None:
        missing |= dict.fromkeys(("predicted_peak_bytes", "reconciliation"), reason)
    return msgspec.structs.replace(
        memory,
        closed_forms=forms,
        resident_set=matched,
        predicted_peak_bytes=None if reason else prediction.peak_bytes,
        reconciliation=[] if reason else _beside(memory, prediction),
        missing=missing,
    )


def _beside(memory: Memory, prediction: Prediction) -> list[ReconciledRow]:
    """Every row that either side has, then the peak."""
    predicted = {row.name: row.bytes for row in prediction.ledger}
    measured = {row.name: row.bytes for row in memory.peak_as_predicted}
    rows = [
        _row(name, predicted.get(name, 0), measured.get(name, 0))
        for name in (*ROWS, NOT_PREDICTED)
        if name in predicted or name in measured
    ]
    if not measured:  # of a record that is older than this table
        rows = []
    return [*rows, _row("peak", prediction.peak_bytes, memory.peak_allocated_bytes)]


def _row(name: str, predicted: int, measured: int) -> ReconciledRow:
    error = predicted / measured - 1 if predicted and measured else None
    return ReconciledRow(name, predicted, measured, error)
