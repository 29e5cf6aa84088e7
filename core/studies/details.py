"""Tables that every cell has of its own, for a study that puts them under each other."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.questions import questions_of
from ..export.kernel_tables import merged_by_name
from ..export.memory_tables import largest_table, ledger_table
from ..export.numerics_tables import accumulation_table, dtypes_table
from ..export.question_tables import question_table
from ..export.table import Table
from ..record import Record
from .accounting import accounting_table

Detail = Callable[[Record], Table | None]


def _kernels(record: Record) -> Table | None:
    """As nsys sums kernels: by name alone, in all phases."""
    if record.kernels is None:
        return None
    rows = merged_by_name(record.kernels.rows)
    return Table(
        name="kernels",
        title="Kernels by name",
        columns=("share", "total_ns", "calls", "mean_ns", "min_ns", "max_ns", "name"),
        rows=tuple(
            (row.share, row.total_ns, row.calls, row.mean_ns, row.min_ns, row.max_ns, row.name)
            for row in rows
        ),
    )


def _questions(record: Record) -> Table | None:
    return question_table(questions_of(record))


EACH: dict[str, Detail] = {
    "kernels": _kernels,
    "questions": _questions,
    "ledger": lambda record: ledger_table(record.memory) if record.memory else None,
    "largest": lambda record: largest_table(record.memory) if record.memory else None,
    "accounting": accounting_table,
    "accumulation": lambda record: (
        accumulation_table(record.numerics.accumulations) if record.numerics else None
    ),
    "dtypes": lambda record: dtypes_table(record.numerics.dtypes) if record.numerics else None,
}
