"""What number formats do, as tables: sums, and types under autocast."""

from __future__ import annotations

from ..record.numerics import Accumulated, Numerics, TensorDtype
from .table import Cell, Table

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""As the write-ups have them."""


def numerics_tables(block: Numerics) -> list[Table]:
    """The tables that the block has rows for."""
    tables = []
    if block.accumulations:
        tables.append(accumulation_table(block.accumulations))
    if block.dtypes:
        tables.append(dtypes_table(block.dtypes))
    return tables


def accumulation_table(rows: list[Accumulated]) -> Table:
    """One row a loop."""
    return Table(
        name="accumulation",
        title="A thousand times 0.01, added in a loop",
        columns=("name", "device", "accumulator", "addend", "sum", "exact", "off_by"),
        rows=tuple(
            (row.name, row.device, row.accumulator, row.addend, row.value, row.exact, row.error)
            for row in rows
        ),
    )


def dtypes_table(rows: list[TensorDtype]) -> Table:
    """One row for each device type's autocast and the type that it was asked for; ``source``
    is that of the tensors, see `sysbench.core.record.numerics.TensorDtype`."""
    tensors = tuple(dict.fromkeys(row.tensor for row in rows))
    found = {(row.autocast, row.lower, row.tensor): row for row in rows}
    made = []
    for autocast, lower in dict.fromkeys((row.autocast, row.lower) for row in rows):
        own = [found[autocast, lower, tensor] for tensor in tensors]
        types: list[Cell] = [SHORT.get(row.dtype, row.dtype) for row in own]
        made.append((autocast, SHORT.get(lower, lower), *types, own[0].source))
    return Table(
        name="dtypes",
        title="Types of a toy model's tensors under autocast",
        columns=(
            "autocast",
            "lower",
            *(name.removesuffix(" output") for name in tensors),
            "source",
        ),
        rows=tuple(made),
    )
