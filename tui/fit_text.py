"""What a search for the largest value that fits has found, as the form and `estimate` say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sysbench.core.predict.fit_grid import Fit


def is_sure(fit: Fit) -> bool:
    """Whether every value above the largest is sure not to fit."""
    return fit.beyond == fit.next


def nothing_fits(fit: Fit) -> str:
    """The words for a largest value of 0: that none fits, or that none is sure to."""
    return "fits" if is_sure(fit) else "is sure to fit"


def may_fit(fit: Fit) -> str:
    """``batch 27 to 29 may fit, from 30 on it is sure not to``; empty where none may."""
    if fit.beyond is None or fit.next is None or fit.beyond <= fit.next:
        return ""
    last = fit.beyond - 1
    values = f"{fit.key} {fit.next:,}" + (f" to {last:,}" if last > fit.next else "")
    return f"{values} may fit, from {fit.beyond:,} on it is sure not to"
