"""What a search for the largest value that fits has found, as the form and `estimate` say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysbench.core.formatting import signed_percent

if TYPE_CHECKING:
    from sysbench.core.predict.closed_form import Prediction
    from sysbench.core.predict.fit_grid import Fit


def is_sure(fit: Fit) -> bool:
    """Whether every larger value certainly does not fit."""
    return fit.beyond == fit.next


def nothing_fits(fit: Fit) -> str:
    """Verb for a largest value of 0."""
    return "fits" if is_sure(fit) else "is guaranteed to fit"


def may_fit(fit: Fit) -> str:
    """``batch 27 to 29 might fit, 30 and more will not``; empty if none might fit."""
    if fit.beyond is None or fit.next is None or fit.beyond <= fit.next:
        return ""
    last = fit.beyond - 1
    values = f"{fit.key} {fit.next:,}" + (f" to {last:,}" if last > fit.next else "")
    return f"{values} might fit, {fit.beyond:,} and more will not"


def closed_form_error(closed: Prediction, exact: Prediction) -> str:
    """By how much the closed form's peak differs from the exact one: ``+1.2 %``."""
    over = round(closed.peak_bytes / exact.peak_bytes - 1, 3) + 0.0  # + 0.0 turns -0.0 into 0.0
    return signed_percent(over)
