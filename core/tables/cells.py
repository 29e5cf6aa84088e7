"""Format table cells as text: units, digits, literal names."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from math import isnan
from operator import itemgetter
from typing import cast

import msgspec

from sysbench.core.formatting import UNKNOWN, format_bytes, format_count, percent, signed_percent
from sysbench.core.spec.fields import FIELDS
from sysbench.core.tables.table import QUANTITY, Cell, Row, Table, is_number
from sysbench.core.trace.kernel_names import short_kernel_names

DASH = "–"
KEYED = ("spec", "environment")
"""Tables whose quantities keep the keys of the record and of ``--set``."""
SERIES = "telemetry"
CATEGORY = "category"
SIGNED_SHARE = "signed share"
"""Unit of a share that is always written with its sign."""
SIGNED = "signed "
"""Prefix of a unit that is always written with its sign."""
_PER_CALL = ("mean_ns", "median_ns", "min_ns", "max_ns", "std_ns")
_CHANGES = ("over_bare", "over_a", "drift", "error")
_HEADINGS = {
    "bytes": "size",
    "cache_bytes": "cache size",
    "ci_low_ms": "95 % low",
    "ci_high_ms": "95 % high",
    "over_a": "change",
    "exclusive_ns": "time ms",
    "half_width_share": "±",
    "mean_ns": "mean µs",
    "median_ns": "median µs",
    "min_ns": "min µs",
    "max_ns": "max µs",
    "std_ns": "std µs",
    "tflops": "TFLOP/s",
    "tokens_per_second": "tokens/s",
    "joules_per_step": "J a step",
    "joules_per_token": "J a token",
    "mfu": "MFU",
    "causal_mfu": "MFU, causal",
    "gigabytes_per_second": "GB/s",
    "algorithm_gigabytes_per_second": "algorithm GB/s",
    "bus_gigabytes_per_second": "bus GB/s",
}

_CATEGORIES = {"optimizer": "fused optimizer"}
"""Categories of kernels whose stored name is also that of a phase."""

UNKNOWN_KIND = type(None)
NUMBERS = frozenset((int, float))
_SPEC_KEYS = frozenset(field.name for field in FIELDS)


def heading(column: str) -> str:
    """Return a column's name for people: ``median ms`` for ``median_ms``; a spec key stays."""
    if column in _HEADINGS:
        return _HEADINGS[column]
    if column in _SPEC_KEYS:
        return column
    stem, _, unit = column.rpartition("_")
    if stem and unit == "bytes":
        return stem.replace("_", " ")
    if stem and unit == "ns":
        return f"{stem.replace('_', ' ')} ms"
    return column.replace("_", " ")


def quantity_words(key: str) -> str:
    return key if "." in key else heading(key)


_SERIES = re.compile(r"(host|device(\d+))\.(\w+)")
_SERIES_WORDS = {
    "cpu_percent": "CPU busy, %",
    "memory_used_bytes": "memory used",
    "utilization": "busy, share of time",
    "sm_active": "SM active, share",
    "tensor_active": "tensor active, share",
    "dram_active": "DRAM active, share",
    "power_watts": "power, W",
    "energy_watts": "power by energy, W",
    "sm_clock_mhz": "SM clock, MHz",
    "memory_clock_mhz": "memory clock, MHz",
    "temperature_celsius": "temperature, °C",
}


def series_words(key: str) -> str:
    """Return a telemetry series for people: ``GPU 0 power, W``; unknown ones stay."""
    match = _SERIES.fullmatch(key)
    if match is None or match[3] not in _SERIES_WORDS:
        return key
    owner = "host" if match[2] is None else f"GPU {match[2]}"
    return f"{owner} {_SERIES_WORDS[match[3]]}"


def heading_of(table: Table, column: str) -> str:
    return table.headings.get(column) or heading(column)


def unit_of(table: Table, column: str) -> str:
    return table.units.get(column) or _unit(column)


def known_columns(table: Table) -> list[str]:
    """Return the shown columns that have a value in some row."""
    contents = columns_of(table)
    return [name for name in table.shown if not contents[name].is_blank(unknown=True)]


def cells_as_text(table: Table) -> list[list[str]]:
    """Format all rows. Numbers of one unit share their decimals; in a table of quantities each row
    has its own unit."""
    return [*map(row_writer(table), table.rows)]


def short_texts(table: Table, column: str) -> dict[str, str]:
    """Return the short form of each kernel name of a column; empty for other columns."""
    if not table.look(column).is_kernel:
        return {}
    names = [literal(cell) for cell in table.column(column) if isinstance(cell, str)]
    return short_kernel_names(names)


@dataclass(frozen=True, eq=False)
class Contents:
    """The cells of a column, with cached statistics."""

    cells: Sequence[Cell]

    @cached_property
    def kinds(self) -> frozenset[type]:
        return frozenset(map(type, self.cells))

    @property
    def holds_numbers(self) -> bool:
        """True if all cells are numbers or unknown and at least one is a number."""
        kinds = self.kinds - {UNKNOWN_KIND}
        return bool(kinds) and bool not in kinds and all(issubclass(k, int | float) for k in kinds)

    def is_blank(self, *, unknown: bool) -> bool:
        """Return whether all cells are empty; with ``unknown``, unknown cells count as empty."""
        blanks = ("", None) if unknown else ("",)
        return bool(self.cells) and all(cell in blanks for cell in self.cells)

    @cached_property
    def numbers(self) -> Sequence[float]:
        if self.kinds <= NUMBERS:
            return cast(Sequence[float], self.cells)
        if self.kinds - {UNKNOWN_KIND} <= NUMBERS:
            return [cell for cell in self.cells if cell is not None]  # type: ignore[misc]
        has_numbers = any(issubclass(kind, int | float) for kind in self.kinds - {bool})
        return [cell for cell in self.cells if is_number(cell)] if has_numbers else ()

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """Minimum and maximum; empty without numbers."""
        ends = (min(self.numbers), max(self.numbers)) if self.numbers else ()
        if any(map(isnan, ends)):  # min and max are unreliable if the first number is NaN
            numbers = [number for number in self.numbers if not isnan(number)]
            return (min(numbers), max(numbers)) if numbers else ()
        return ends


def columns_of(table: Table) -> dict[str, Contents]:
    places = enumerate(table.columns)
    return {name: Contents(tuple(map(itemgetter(place), table.rows))) for place, name in places}


def row_writer(
    table: Table, columns: Mapping[str, Contents] | None = None
) -> Callable[[Row], list[str]]:
    """Return a function that formats single rows as `cells_as_text` does.

    The decimals are computed once, so that long tables format only the rows in view.
    """
    if table.columns[0] == QUANTITY:
        name_of: Callable[[str], str] = str if table.name in KEYED else quantity_words
        name_of = series_words if table.name == SERIES else name_of
        return lambda row: _quantity_row(table.columns, row, name_of)
    columns = columns_of(table) if columns is None else columns
    units = [unit_of(table, name) for name in table.columns]
    largest: dict[str, float] = defaultdict(float)
    for unit, contents in zip(units, columns.values(), strict=True):
        scale = unit.removeprefix(SIGNED)  # a change has as many decimals as the value
        largest[scale] = max(chain([largest[scale]], map(abs, contents.ends)))
    formats = table.formats or ("",) * len(table.columns)
    writers = [
        partial(_format_cell, written=written)
        if written
        else _category_cell
        if name == CATEGORY
        else _writer(unit, contents, largest[unit.removeprefix(SIGNED)])
        for name, unit, contents, written in zip(
            table.columns, units, columns.values(), formats, strict=True
        )
    ]
    return lambda row: [write(cell) for write, cell in zip(writers, row, strict=True)]


def category_words(name: str) -> str:
    """Return the category of a kernel for people."""
    return _CATEGORIES.get(name, name)


def _category_cell(cell: Cell) -> str:
    return "" if cell is None else category_words(_word(cell))


def _format_cell(cell: Cell, written: str) -> str:
    if cell is None:
        return DASH
    return written.format(cell) if is_number(cell) else literal(str(cell))


def _quantity_row(
    columns: Sequence[str], row: Sequence[Cell], name_of: Callable[[str], str]
) -> list[str]:
    quantity, *rest = row
    key = str(quantity)
    units = ["n" if column == "n" else key for column in columns[1:]]
    return [name_of(key), *map(one_figure, units, rest)]


def is_numeric(table: Table, column: str) -> bool:
    """Return whether the column holds numbers, or texts that sort as numbers; both are
    right-aligned."""
    if column in table.sort_keys:
        return True
    return Contents(table.column(column)).holds_numbers


def one_figure(key: str, value: Cell) -> str:
    """Format a single value, with the unit of its key."""
    if not is_number(value):
        return UNKNOWN if value is None else _word(value)
    return _number(_unit(key), value, abs(value))


def literal(text: str) -> str:
    """Return untrusted text on one line with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def literal_json(document: bytes, indent: int = 2) -> bytes:
    """Return JSON with the control characters escaped that JSON allows in strings; on one line with
    an indent of 0."""
    text = msgspec.json.format(document, indent=indent).decode()
    hidden = (char for char in set(text) if char != "\n" and not char.isprintable())
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in hidden}).encode()


def _writer(unit: str, contents: Contents, largest: float) -> Callable[[Cell], str]:
    if any(issubclass(kind, str | bool) for kind in contents.kinds):
        return lambda cell: "" if cell is None else _word(cell)
    return lambda cell: _number(unit, cell, largest) if is_number(cell) else DASH


def _word(cell: str | float | bool) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return literal(cell) if isinstance(cell, str) else f"{cell:,}"


def _number(unit: str, value: float, largest: float) -> str:
    if unit != SIGNED_SHARE and unit.startswith(SIGNED):
        text = _number(unit.removeprefix(SIGNED), value, largest)
        return f"+{text}" if value > 0 and text[0] != "<" else text
    if unit == "bytes":
        return format_bytes(value)
    if unit in ("share", "mfu", "roof"):
        return percent(value)
    if unit == SIGNED_SHARE:
        return signed_percent(value)
    if unit == "µs":
        return decimal_cell(value / 1e3, _decimals(largest / 1e3))
    if unit == "ns":
        return decimal_cell(value / 1e6, _decimals(largest / 1e6))
    if unit == "ms":
        return decimal_cell(value, _decimals(largest))
    if unit == "flops":
        return f"{format_count(value)}FLOP"
    without_decimals = float(value).is_integer() or abs(value) >= 1000
    return f"{value:,.0f}" if without_decimals else f"{value:.4g}"


def _unit(column: str) -> str:
    if column in _PER_CALL:
        return "µs"
    return SIGNED_SHARE if column in _CHANGES else column.rpartition("_")[2]


def decimal_cell(value: float, decimals: int) -> str:
    """Format with a fixed number of decimals; a value that rounds to zero becomes a bound."""
    text = f"{value:,.{decimals}f}"
    if value and not text.strip("-0.,"):
        return f"{'<' if value > 0 else '>-'}{10.0**-decimals:.{decimals}f}"
    return text


def _decimals(largest: float) -> int:
    """Return enough decimals to distinguish small parts of the largest number."""
    if largest >= 1000:
        return 2
    return 3 if largest >= 0.1 else 5
