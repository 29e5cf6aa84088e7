"""The prediction beside what was measured, row by row."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from ..estimate.closed_form import ROWS, Prediction, why_not_predicted
from ..record import LedgerRow, Memory
from ..record_memory import ReconciledRow
from ..spec import RunSpec
from .ledger import Residents
from .resident_set import resident_set
from .scopes import LOSS

LOGITS, TEMPORARIES, NOT_PREDICTED = "logits and loss", "temporaries", "not predicted"
NO_MATCH = "no closed form comes close: temporaries or logits weigh more here, see the ledger"


def rows_as_predicted(residents: Residents, instant: int, total: int) -> list[LedgerRow]:
    """What was alive at an instant, in the rows of a prediction.

    What is in none of them, such as a library's workspace or the rounding of blocks, is a
    last row, so that all sum to ``total``.
    """
    allocations, attribution = residents.allocations, residents.attribution
    amounts: Counter[str] = Counter()
    for index in np.flatnonzero(allocations.alive_at(instant - 1)).tolist():
        name = _predicted_row(attribution.category[index], attribution.module[index])
        amounts[name] += int(allocations.bytes[index])
    amounts[NOT_PREDICTED] += total - amounts.total()
    return [LedgerRow(name, amounts[name]) for name in (*ROWS, NOT_PREDICTED) if amounts[name]]


def _predicted_row(category: str, module: str) -> str:
    is_passing = category.startswith(TEMPORARIES) or category == "activations"
    if category == "outputs" or (is_passing and module == LOSS):
        return LOGITS
    if category.startswith(TEMPORARIES):
        return TEMPORARIES
    return category if category in ROWS else NOT_PREDICTED


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
