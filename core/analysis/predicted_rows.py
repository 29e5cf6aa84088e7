"""What was measured at an instant, in the rows of a prediction."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..estimate.closed_form import ROWS
from ..record.record import LedgerRow
from .memory.predicted import NOT_PREDICTED
from .memory.residents import Residents
from .trace.scopes import LOSS

LOGITS, TEMPORARIES = "logits and loss", "temporaries"


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
