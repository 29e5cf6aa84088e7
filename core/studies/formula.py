"""Formulas over a record: a dotted path, with ``[key=value]`` after a list.

``timing.phases.forward.mean_ms`` · ``memory.ledger[name=activations].bytes`` (sum of matching
rows) · ``timing.step`` (mean ± standard deviation) · ``spec.batch`` · ``measures.gemm_share``,
one of `MEASURES`. The suffix is the unit.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import fsum
from typing import Any, NamedTuple

import msgspec

from sysbench.core.compare.rounds import rounds_counted
from sysbench.core.errors import SpecError
from sysbench.core.formatting import did_you_mean
from sysbench.core.predict.layout_plan import Layout
from sysbench.core.predict.sizes import Sizes
from sysbench.core.record.environment import device_name, instruction_set, node, sdpa_kernel
from sysbench.core.record.record import Allocation, KernelRow, Record, Spread
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.table import Cell, is_number
from sysbench.core.trace.attention_kernels import is_product, is_softmax
from sysbench.core.trace.questions import NamedTime, by_name


class PredictedRecord(Record, frozen=True, kw_only=True):
    """What is known of a cell that is predicted and not run.

    Attributes:
        predicted: Its fullest rank.
    """

    predicted: Layout


class Measure(NamedTuple):
    read: Callable[[Record], Cell]
    block: str = ""


def _status(record: Record) -> Cell:
    if isinstance(record, PredictedRecord):
        return "predicted"
    return "OK" if record.status == "finished" else record.status


def _timed_steps(record: Record) -> Cell:
    if record.timing is None:
        return None
    return (record.timing.steps or record.timing.step).n


def _backward_and_optimizer_ms(record: Record) -> Cell:
    phases = record.timing.phases if record.timing else {}
    if "backward" not in phases or "optimizer" not in phases:
        return None
    return phases["backward"].mean_ms + phases["optimizer"].mean_ms


def _rows(record: Record, phase: str = "") -> list[KernelRow]:
    if record.kernels is None:
        return []
    return [row for row in record.kernels.rows if phase in ("", row.phase)]


def _exclusive(rows: Sequence[KernelRow]) -> float:
    return fsum(row.exclusive_ns for row in rows)


def _quotient(part: float, total: float) -> float | None:
    return part / total if total else None


def _gemm_share(record: Record, phase: str = "") -> Cell:
    rows = _rows(record, phase)
    return _quotient(_exclusive([row for row in rows if row.category == "gemm"]), _exclusive(rows))


def _forward_time(record: Record, belongs: Callable[[KernelRow], bool]) -> Cell:
    rows = [row for row in _rows(record, "forward") if belongs(row)]
    return _exclusive(rows) if rows else None


def _of_longest(read: Callable[[NamedTime, Record], Cell]) -> Measure:

    def measure(record: Record) -> Cell:
        forward = by_name(_rows(record, "forward"))
        return read(forward[0], record) if forward else None

    return Measure(measure, "kernels")


def _exposed_fraction(record: Record) -> Cell:
    block = record.distributed
    if block is None or block.exposed is None:
        return None
    return _quotient(block.exposed.mean_ms, block.step.mean_ms)


def _hidden_ms(record: Record) -> Cell:
    block = record.distributed
    if block is None or block.transfer is None:
        return None
    return block.communication.mean_ms - block.transfer.mean_ms


def _saved_in_blocks_fraction(record: Record) -> Cell:
    modules = record.memory.modules if record.memory else []
    saved = {module.module: module.activation_bytes for module in modules}
    if "blocks" not in saved or "model" not in saved:
        return None
    return _quotient(saved["blocks"], saved["model"])


def _residual_bytes(record: Record) -> Cell:
    try:
        spec = RunSpec(**record.spec)
    except (SpecError, TypeError):  # written by another version
        return None
    return spec.tokens_per_step * spec.d_model * Sizes(spec).width.residual


def _of_largest(read: Callable[[Allocation], Cell]) -> Measure:

    def measure(record: Record) -> Cell:
        largest = record.memory.largest if record.memory else []
        return read(max(largest, key=lambda row: row.bytes)) if largest else None

    return Measure(measure, "memory")


MEASURES: dict[str, Measure] = {
    "hardware": Measure(lambda record: device_name(record.environment)),
    # The node of a cluster on which it ran, with the numbers of its GPUs there.
    "machine": Measure(lambda record: node(record.environment)),
    # Of the CPU, in use: libraries choose their workspace by it.
    "instruction_set": Measure(lambda record: instruction_set(record.environment)),
    # The kernel that torch chose for `attention = sdpa`.
    "sdpa_kernel": Measure(lambda record: sdpa_kernel(record.environment)),
    "status": Measure(_status),
    # Processes that the step time and its interval are of: with one the interval is inside it.
    "rounds": Measure(lambda record: rounds_counted(record.timing) or None, "timing"),
    # Steps of the step time, in all processes.
    "timed_steps": Measure(_timed_steps, "timing"),
    # Matrix products' part of the time in which kernels (operators) ran.
    "gemm_share": Measure(_gemm_share, "kernels"),
    "gemm_forward_share": Measure(lambda record: _gemm_share(record, "forward"), "kernels"),
    "longest_kernel": _of_longest(lambda kernel, _: kernel.name),
    # In one forward.
    "longest_kernel_calls": _of_longest(lambda kernel, _: kernel.calls),
    # Its part of the time in which kernels ran in forward.
    "longest_kernel_share": _of_longest(
        lambda kernel, record: _quotient(kernel.ns, _exclusive(_rows(record, "forward")))
    ),
    # Attention's softmax and its two matrix products, in one forward.
    "softmax_ns": Measure(lambda record: _forward_time(record, is_softmax), "kernels"),
    "attention_matmul_ns": Measure(lambda record: _forward_time(record, is_product), "kernels"),
    # Both timed directly, and added.
    "backward_and_optimizer_ms": Measure(_backward_and_optimizer_ms, "timing"),
    # Share of the step in which computing waited for communication.
    "exposed_fraction": Measure(_exposed_fraction, "distributed"),
    # Overlapped communication, on average per step and rank.
    "hidden_ms": Measure(_hidden_ms, "distributed"),
    # Part of all saved activations that the blocks hold.
    "saved_in_blocks_fraction": Measure(_saved_in_blocks_fraction, "memory"),
    # One tensor of the residual stream: batch x context x d_model x width.
    "residual_bytes": Measure(_residual_bytes),
    "largest_bytes": _of_largest(lambda allocation: allocation.bytes),
    "largest_category": _of_largest(lambda allocation: allocation.category),
    "largest_module": _of_largest(lambda allocation: allocation.module),
}


FACT_ROOTS = ("spec", "parameters")
"""Paths that a cell's spec answers without a record."""
COUNTING_ROOTS = ("memory", "measures", "distributed")


class Unit(NamedTuple):
    """Dimension of a unit, its size in the dimension's base unit, and how its numbers are shown."""

    dimension: str
    size: float
    format: str


UNITS = {
    "ns": Unit("time", 1e-9, "{:,.0f}"),
    "us": Unit("time", 1e-6, "{:.1f}"),
    "ms": Unit("time", 1e-3, "{:.2f}"),
    "s": Unit("time", 1.0, "{:.4f}"),
    "B": Unit("bytes", 1, "{:,.0f}"),
    "KiB": Unit("bytes", 2**10, "{:,.1f}"),
    "MiB": Unit("bytes", 2**20, "{:,.1f}"),
    "GiB": Unit("bytes", 2**30, "{:.2f}"),
    "%": Unit("share", 0.01, "{:.1f}"),
}
_SHARE = Unit("share", 1.0, "{:.1f} %")
"""Of formulas that end in ``share``, which are fractions of one and shown in per cent."""
_SUFFIXES = {"ns": "ns", "ms": "ms", "seconds": "s", "bytes": "B", "share": "share"}
_DOT = re.compile(r"\.(?![^\[]*\])")
_STEP = re.compile(r"([^\[\]]*[^\[\]\s])\s*(?:\[(.*)\])?")
_ARITHMETIC = re.compile(r"\s[-+*/]\s(?![^\[]*\])")
_Measures = msgspec.defstruct("Measures", [(name, object) for name in MEASURES])


class Step(NamedTuple):
    name: str
    wanted: tuple[tuple[str, str], ...] = ()


@cache
def parse_path(text: str) -> tuple[Step, ...]:
    """Parse a path into its steps; raises SpecError that names the first step that fails."""
    if _ARITHMETIC.search(text):
        raise SpecError("value", text, "one path: a formula has no arithmetic; show two columns "
                        "and their ratio, or one of the measures")  # fmt: skip
    steps = tuple(_parse_step(text, part.strip()) for part in _DOT.split(text))
    _kind_at(text, steps)
    return steps


def evaluate(record: Record, text: str) -> Any:
    """Return the value at the path in the unit of its suffix, if known."""
    first, *rest = parse_path(text)
    if first.name == "measures" and rest:
        return MEASURES[rest[0].name].read(record)
    value: Any = record
    for step in (first, *rest):
        value = _next(value, step.name)
        if isinstance(value, list) and step.wanted:
            value = [row for row in value if _matches(row, step.wanted)]
        if value is None:
            return None
    return _reduce(value) if isinstance(value, list) else value


def check_formula(text: str, unit: str) -> None:
    kind = _row_kind(_kind_at(text, parse_path(text)))
    if typing.get_origin(kind) is dict:
        raise SpecError("value", text, f"a single value: {text} has entries by their name")
    if kind is not Spread and (names := _fields(kind)):
        raise SpecError("value", text, f"a single value: {text} has {', '.join(names)}")
    if not unit:
        return
    if unit not in UNITS:
        raise SpecError("unit", unit, f"one of {', '.join(UNITS)}")
    source = _unit(source_unit(text))
    if source is None or source.dimension != UNITS[unit].dimension:
        raise SpecError("unit", unit, f"a unit that fits {text!r}, by its suffix")


def is_fact(text: str) -> bool:
    return parse_path(text)[0].name in FACT_ROOTS


def is_spread(text: str) -> bool:
    """Return whether the formula has a mean and a standard deviation, shown as one text."""
    return _kind_at(text, parse_path(text)) is Spread


def is_counted(text: str) -> bool:
    """Return whether every process gives the same: facts, predictions, and bytes that a pass
    counts."""
    is_bytes = source_unit(text) == "B" and "driver" not in text
    is_given = is_fact(text) or is_prediction(text)
    return is_given or (is_bytes and parse_path(text)[0].name in COUNTING_ROOTS)


def is_prediction(text: str) -> bool:
    return parse_path(text)[0].name == "predicted"


def source_unit(text: str) -> str:
    """Return the unit at the end of a formula; empty for none."""
    last = parse_path(text)[-1].name
    return "ms" if is_spread(text) else _SUFFIXES.get(last.rpartition("_")[2], "")


def shown_unit(text: str, unit: str) -> str:
    """Return the unit after conversion: ``B`` for bytes, empty for a count."""
    source = source_unit(text)
    return unit or ("%" if source == "share" else source)


def read_cell(record: Record, text: str, unit: str = "", template: str = "") -> Cell:
    """Return a table cell: a number in its unit, or ``mean ± standard deviation``."""
    value = evaluate(record, text)
    if isinstance(value, Spread):
        write = (template or UNITS[unit or "ms"].format).format
        both = (value.mean_ms, value.std_ms)
        return " ± ".join(write(convert(text, unit, number)) for number in both)
    if is_number(value):
        return convert(text, unit, value)
    return value if isinstance(value, str | bool) else None


def number_format(text: str, unit: str, template: str) -> str:
    if is_spread(text):
        return ""
    shown = _unit(unit or source_unit(text))
    return template or (shown.format if shown else "")


def convert(text: str, unit: str, value: float) -> float:
    source, shown = _unit(source_unit(text)), _unit(shown_unit(text, unit))
    if source is None or shown is None or source is shown:
        return value
    return value * source.size / shown.size


def _unit(name: str) -> Unit | None:
    return _SHARE if name == "share" else UNITS.get(name)


def _parse_step(text: str, part: str) -> Step:
    match = _STEP.fullmatch(part)
    if match is None:
        raise SpecError("value", text, "names with dots between them, and [key=value] after a list")
    pairs = [pair.partition("=") for pair in match[2].split(",")] if match[2] is not None else []
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise SpecError("value", text, "[key=value], such as memory.ledger[name=parameters].bytes")
    return Step(match[1], tuple((key.strip(), value.strip()) for key, _, value in pairs))


@cache
def _kind_at(text: str, steps: tuple[Step, ...]) -> Any:
    """Return the type at the end of a path, without None; Any if it is open."""
    kind: Any = Record
    place = "a record"
    for step in steps:
        kind = _row_kind(kind)
        if typing.get_origin(kind) is dict:
            kind = _plain(typing.get_args(kind)[1])
        elif kind is not Any:
            names = _fields(kind)
            if not names:
                raise SpecError("value", text, f"{place} is a single value: nothing comes after it")
            if step.name not in names:
                hint = did_you_mean(step.name, names)
                allowed = f"{place} has no {step.name!r}; {hint}it has {', '.join(names)}"
                raise SpecError("value", text, allowed)
            kind = _plain(names[step.name])
        if step.wanted and kind is not Any and typing.get_origin(kind) is not list:
            raise SpecError("value", text, f"{step.name} is no list: no [key=value] after it")
        place = step.name
    return kind


def _row_kind(kind: Any) -> Any:
    return _plain(typing.get_args(kind)[0]) if typing.get_origin(kind) is list else kind


@cache
def _fields(kind: Any) -> Mapping[str, Any]:
    """Return the types of possible next names; empty after a single value."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    hints = typing.get_type_hints(kind)
    named = {name: hints[name] for name in kind.__struct_fields__}
    roots = {"spec": RunSpec, "measures": _Measures, "predicted": Layout}
    return named | roots if kind is Record else named


def _plain(kind: Any) -> Any:
    """Return a type without None; other unions become Any."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [member for member in typing.get_args(kind) if member is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else Any
    return kind


def _next(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [item for row in value if (item := _next(row, name)) is not None]
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)


def _matches(row: Any, wanted: Sequence[tuple[str, str]]) -> bool:
    return all(str(_next(row, key)) == value for key, value in wanted)


def _reduce(values: Sequence[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    if values and all(isinstance(value, int | float) for value in values):
        return sum(values)
    return None
