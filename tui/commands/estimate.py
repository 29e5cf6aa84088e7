"""`estimate`: what a spec will cost, what fits, and a table of predictions."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

from ...core.estimate.exact import Estimator


def main(arguments: argparse.Namespace) -> int:
    """Always 0: that a spec does not fit is an answer, not a failure."""
    with _exact_mode(arguments) as exact:
        # Late: in exact mode another process imports torch meanwhile.
        from .report.estimate_answers import answer

        answer(arguments, exact)
    return 0


def _exact_mode(arguments: argparse.Namespace) -> AbstractContextManager[Estimator | None]:
    """One process for all predictions; nothing without ``--exact``."""
    return Estimator() if arguments.exact else nullcontext()
