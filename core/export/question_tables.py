"""The answers to a profile's questions as a table."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.kernels.attention import Answer
from ..tables.table import Table


def question_table(answers: Sequence[Answer]) -> Table:
    """One row a question; ``missing`` are the commands that would measure what is not known."""
    return Table(
        name="questions",
        title="Questions of the write-ups, answered from the rows",
        columns=("question", "answer", "missing"),
        rows=tuple((one.question, one.sentence, "; ".join(one.commands)) for one in answers),
    )
