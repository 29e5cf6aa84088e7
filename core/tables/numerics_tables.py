"""Tables of number formats: sums, and types under autocast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from sysbench.core.record.numerics import Accumulated, Numerics, TensorDtype
from sysbench.core.tables.table import Column, Table, tabulate

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def numerics_tables(block: Numerics) -> list[Table]:
    tables = []
    if block.accumulations:
        tables.append(accumulation_table(block.accumulations))
    if block.dtypes:
        tables.append(dtypes_table(block.dtypes))
    return tables


def accumulation_table(rows: list[Accumulated]) -> Table:
    return tabulate(
        rows,
        "name",
        "device",
        Column("accumulator", about="type of the sum"),
        Column("addend", about="type of the addend"),
        Column("sum", "value", format="{:.4f}", about="sum after the loop"),
        Column("exact", about="sum without rounding"),
        Column("off_by", "error", format="{:.4f}", about="sum minus the exact sum"),
        name="accumulation",
        title="A thousand times 0.01, added in a loop",
    )


def tensor_columns(rows: list[TensorDtype]) -> dict[str, str]:
    tensors = dict.fromkeys(row.tensor for row in rows)
    return {tensor.removesuffix(" output"): tensor for tensor in tensors}


def dtypes_table(rows: list[TensorDtype]) -> Table:
    """One row per autocast device type and requested type; ``source`` as in
    `sysbench.core.record.compile.TensorDtype`."""
    tensors = tensor_columns(rows)
    first = rows[0].tensor if rows else ""
    by_cast: dict[tuple[str, str], dict[str, TensorDtype]] = defaultdict(dict)
    for row in rows:
        by_cast[row.autocast, row.lower][row.tensor] = row

    def tensor_column(name: str) -> Column[Mapping[str, TensorDtype]]:
        return Column(
            name, lambda cast: _short_dtype(cast[tensors[name]].dtype), about="type of this tensor"
        )

    def of_first(value: Callable[[TensorDtype], str]) -> Callable[[Mapping[str, TensorDtype]], str]:
        return lambda cast: value(cast[first])

    return tabulate(
        by_cast.values(),
        Column("autocast", of_first(lambda row: row.autocast), about="device type of autocast"),
        Column(
            "lower",
            of_first(lambda row: _short_dtype(row.lower)),
            about="low-precision type of autocast",
        ),
        *map(tensor_column, tensors),
        Column("source", of_first(lambda row: row.source), about="where the types were read"),
        name="dtypes",
        title="Types of a toy model's tensors under autocast",
    )


def _short_dtype(dtype: str) -> str:
    return SHORT.get(dtype, dtype)
