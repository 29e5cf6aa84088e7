"""Sentences, cautions, and the commands that reproduce cells."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.errors import SysbenchError
from sysbench.core.formatting import counted
from sysbench.core.record.environment import (
    device_name,
    instruction_set,
    node,
    threads,
    torch_version,
)
from sysbench.core.record.record import Record
from sysbench.core.spec.command_line import as_typed
from sysbench.core.spec.fields import differing_keys, field_named
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import study_files
from sysbench.core.studies.formula import PredictedRecord
from sysbench.core.studies.ratios import Ratio
from sysbench.core.studies.schema import (
    CLUSTER_KEYS,
    Axis,
    Study,
    TableLayout,
    load_study,
    separator_of,
)
from sysbench.core.studies.study_grid import Cell, with_variant
from sysbench.core.studies.study_table import Filling, outcome

MAX_PER_COLUMN = 12
MAX_DIGITS = 4


def sentences_of(
    filled: Iterable[Filling], cells: Sequence[Cell], records: Mapping[str, Record]
) -> Iterator[str]:
    for filling in filled:
        rows = list(filling.table.mappings())
        naming = [name for name in _label_columns(filling.layout) if name in filling.table.columns]
        for column in filling.layout.columns:
            tested = [key for key in filling.ratios if key[1] == column.name]
            for key in tested[:MAX_PER_COLUMN]:
                place = ", ".join(str(rows[key[0]][name]) for name in naming)
                assert column.ratio is not None
                text = _of_ratio(column.ratio, filling.ratios[key])
                yield f"{place}: {text}."
    yield from _without_numbers(cells, records)


def _of_ratio(names: tuple[str, str], ratio: Ratio) -> str:
    """Describe a ratio, or two medians with the reason if no test supports it."""
    first, second = names
    if ratio.low is None or ratio.high is None:
        if ratio.is_claim:
            return f"{first} is {ratio.value:.2f} times {second} ({ratio.why})"
        return f"{ratio.medians}; {ratio.why}"
    write = _writer(ratio.low, ratio.high)
    low, high = write(ratio.low), write(ratio.high)
    if ratio.is_claim:
        return f"{first} is {write(ratio.value)} times {second} ({low} to {high}; {ratio.why})"
    if ratio.state == "same":
        return f"{first} and {second} are the {ratio.why} (ratio {low} to {high})"
    return f"{ratio.medians}; {ratio.why} (ratio {low} to {high})"


def _writer(low: float, high: float) -> Callable[[float], str]:
    digits = 2
    while digits < MAX_DIGITS and 1 in (round(low, digits), round(high, digits)):
        digits += 1
    return lambda value: f"{value:.{digits}f}"


def _label_columns(layout: TableLayout) -> list[str]:
    facts = {f"spec.{axis}" for axis in layout.rows}
    own = [column.name for column in layout.columns if column.is_label or column.value in facts]
    return [*layout.rows, *own]


def _without_numbers(cells: Sequence[Cell], records: Mapping[str, Record]) -> Iterator[str]:
    ended = [(cell, records[cell.id]) for cell in cells if cell.id in records]
    oom = [cell for cell, record in ended if record.status == "oom"]
    if oom:
        first = oom[0]
        text = outcome(records[first.id])
        yield f"{counted(len(oom), 'cell')} ran out of memory, first {first.words}: {text}."
    fallen = [cell for cell, record in ended if record.compile and record.compile.fell_back]
    if fallen:
        yield f"{counted(len(fallen), 'cell')} fell back to eager, first {fallen[0].words}."
    predicted = sum(isinstance(record, PredictedRecord) for _, record in ended)
    if predicted:
        yield (
            f"{counted(predicted, 'cell')} predicted, not measured: the step of the fullest rank "
            "on tensors without data; buffers of NCCL are in no figure."
        )
    waiting = sum(cell.id not in records and not cell.refused for cell in cells)
    if waiting:
        yield f"{counted(waiting, 'cell')} of {len(cells)} without a value yet."


def cautions_of(study: Study, cells: Sequence[Cell], records: Mapping[str, Record]) -> list[str]:
    return [
        *(text for axis in study.axes if (text := _of_axis(axis, study.fixed))),
        *(text for layout in study.tables for text in _of_ratios(layout, cells)),
        *_of_machines(measured_of(records)),
    ]


def measured_of(records: Mapping[str, Record]) -> list[Record]:
    return [record for record in records.values() if not isinstance(record, PredictedRecord)]


def factors(a: RunSpec, b: RunSpec) -> list[str]:
    """Return the keys in which two specs differ; the dimensions of a model count as one."""
    return _fold_keys(differing_keys(msgspec.structs.asdict(a), msgspec.structs.asdict(b)))


def _fold_keys(keys: Sequence[str]) -> list[str]:
    """Replace parts, such as a dimension, by their whole."""
    wholes = (key if key in CLUSTER_KEYS else field_named(key).part_of or key for key in keys)
    return list(dict.fromkeys(wholes))


def _of_axis(axis: Axis, fixed: dict[str, Any]) -> str | None:
    unset = msgspec.structs.asdict(RunSpec()) | dict.fromkeys(CLUSTER_KEYS) | fixed
    specs = [unset | point.settings for point in axis.points]
    changing = _fold_keys([key for key in axis.keys if len({repr(s[key]) for s in specs}) > 1])
    if len(changing) < 2:
        return None
    return (
        f"Points of {axis.name} differ in {len(changing)} factors ({', '.join(changing)}): "
        "a difference between them has no single cause."
    )


def _of_ratios(layout: TableLayout, cells: Sequence[Cell]) -> Iterator[str]:
    for column in layout.columns:
        if column.ratio is None:
            continue
        over, under = (layout.column(name).where for name in column.ratio)
        pinned = [line.where for line in layout.lines] or [{}]
        differing = max(
            (_differing(over | line, under | line, layout.rows, cells) for line in pinned), key=len
        )
        if len(differing) > 1:
            yield (
                f"{column.name} compares cells that differ in {len(differing)} factors "
                f"({', '.join(differing)})."
            )


def _differing(
    over: Mapping[str, str], under: Mapping[str, str], rows: Sequence[str], cells: Sequence[Cell]
) -> list[str]:
    def by_row(side: Mapping[str, str]) -> dict[tuple[str, ...], tuple[RunSpec, dict[str, Any]]]:
        return {
            tuple(cell.point[axis] for axis in rows): (
                cell.spec,
                {key: getattr(cell, key) for key in CLUSTER_KEYS},
            )
            for cell in cells
            if cell.spec and side.items() <= cell.point.items()
        }

    upper, lower = by_row(over), by_row(under)
    pairs = [
        (*factors(spec, lower[row][0]), *differing_keys(cluster, lower[row][1]))
        for row, (spec, cluster) in upper.items()
        if row in lower
    ]
    return list(dict.fromkeys(key for keys in pairs for key in keys))


def _of_machines(records: Sequence[Record]) -> Iterator[str]:
    facts = {
        "devices": device_name,
        "machines of a cluster": lambda environment: node(environment) or "none",
        "instruction sets": instruction_set,
        "versions of torch": torch_version,
        "thread counts": threads,
    }
    for name, fact in facts.items():
        distinct = {str(fact(record.environment)) for record in records}
        if len(distinct) > 1:
            yield f"The cells were measured with different {name}: {', '.join(sorted(distinct))}."


def study_command(study: Study) -> str:
    """Return ``sysbench-tui study precision --variant small --set model=tiny``."""
    is_found = str(study_files().get(study.name)) == study.file
    name = study.name if is_found else study.file
    return shlex.join(["sysbench-tui", "study", name, *_options(study)])


def _options(study: Study) -> Iterator[str]:
    if study.variant:
        yield from ("--variant", study.variant)
    try:
        original = with_variant(load_study(Path(study.file)), study.variant)
    except SysbenchError:
        # The file was deleted or replaced: the overrides are unknown.
        return
    if study.repeat != original.repeat:
        yield from ("--repeat", str(study.repeat))
    for axis in study.axes:
        if axis != original.axis(axis.name):
            yield from ("--set", f"{axis.name}={separator_of(axis.name).join(axis.labels)}")
    for key, value in study.fixed.items():
        if original.fixed.get(key) != value:
            yield from ("--set", f"{key}={as_typed(key, value)}")
