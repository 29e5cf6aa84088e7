"""Reads the ``[[tables]]`` of a study: rows, columns, formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import SpecError
from ..report.details import EACH
from ..values.formula import check_formula, check_template, parse_path, paths_in
from .reader import Section
from .study import Axis, Column, Layout, Line

MOST_ROWS = 1000
FACT_ROOTS = ("spec", "parameters")
"""Paths that a cell's spec answers: they need no record, and cells of a row may share them."""

_KEYS = ("name", "title", "rows", "columns", "lines", "each", "most")
_LINE_KEYS = ("name", "value", "where", "unit", "format")
_COLUMN_KEYS = (*_LINE_KEYS, "ratio", "label")


def read_layouts(top: Section, axes: Sequence[Axis]) -> tuple[Layout, ...]:
    """The tables of a study; `fill` makes the first one."""
    layouts: list[Layout] = []
    for section in top.tables("tables"):
        section.require_unique([layout.name for layout in layouts])
        layouts.append(_layout(section, axes))
    if not top.values.get("tables"):
        top.invalid("tables", "at least one [[tables]] with columns, or with each")
    return tuple(layouts)


def is_fact(formula: str) -> bool:
    """True for a formula that the cell's spec answers."""
    return parse_path(paths_in(formula)[0])[0].name in FACT_ROOTS


def _layout(section: Section, axes: Sequence[Axis]) -> Layout:
    section.reject_unknown(_KEYS)
    names = tuple(axis.name for axis in axes)
    rows = section.texts("rows") if "rows" in section.values else names
    if not set(rows) <= set(names):
        section.invalid("rows", f"any of {', '.join(names)}")
    per_cell_table = section.text("each")
    if per_cell_table and per_cell_table not in EACH:
        section.invalid("each", f"one of {', '.join(EACH)}")
    lines = tuple(_line(line_section, axes) for line_section in section.tables("lines"))
    columns: list[Column] = []
    for column_section in section.tables("columns"):
        column_section.require_unique([column.name for column in columns])
        columns.append(_column(column_section, axes, columns, lines, set(names) - set(rows)))
    if bool(columns) == bool(per_cell_table):
        section.invalid("columns", "a list of columns, or each = the name of a cell's own table")
    return Layout(
        name=section.text("name", required=True),
        title=section.text("title"),
        rows=rows,
        columns=tuple(columns),
        lines=lines,
        each=per_cell_table,
        most=section.whole("most", 0, 0, MOST_ROWS),
    )


def _line(section: Section, axes: Sequence[Axis]) -> Line:
    section.reject_unknown(_LINE_KEYS)
    line = Line(
        name=section.text("name", required=True),
        value=section.text("value"),
        where=_where(section, axes),
        unit=section.text("unit"),
        format=section.text("format"),
    )
    if line.value:
        _check_value(section, line.value, line.unit, line.format)
    return line


def _column(
    section: Section,
    axes: Sequence[Axis],
    before: Sequence[Column],
    lines: Sequence[Line],
    loose: set[str],
) -> Column:
    """One column; ``loose`` are axes that the rows leave open."""
    section.reject_unknown(_COLUMN_KEYS)
    column = Column(
        name=section.text("name", required=True),
        value=section.text("value"),
        where=_where(section, axes),
        unit=section.text("unit"),
        format=section.text("format"),
        ratio=_ratio(section, before),
        is_label=section.values.get("label") is True,
    )
    has_ratio = "ratio" in section.values
    kinds = (bool(column.value), has_ratio, column.is_label)
    from_lines = bool(lines) and all(line.value for line in lines)
    if sum(kinds) != 1 and not (sum(kinds) == 0 and from_lines):
        section.invalid(
            "value", "one of value, ratio or label = true; none where lines have a value"
        )
    if column.value:
        _check_value(section, column.value, column.unit, column.format)
    elif column.format:
        _checked(section, lambda: check_template(column.format))
    pinned = set(column.where).union(*(line.where for line in lines[:1]))
    needs_one = not (has_ratio or column.is_label or (column.value and _is_known_fact(column)))
    if needs_one and loose - pinned:
        section.invalid(
            "where", f"which cell of the row: a value for {', '.join(sorted(loose - pinned))}"
        )
    return column


def _is_known_fact(column: Column) -> bool:
    try:
        return is_fact(column.value)
    except SpecError:
        return True  # reported already


def _check_value(section: Section, value: str, unit: str, template: str) -> None:
    if _checked(section, lambda: check_template(template)):
        _checked(section, lambda: check_formula(value, unit, template))
    else:
        _checked(section, lambda: check_formula(value, unit, ""))


def _checked(section: Section, check: Callable[[], object]) -> bool:
    try:
        check()
    except SpecError as error:
        section.problems.add_error(error, section.path(error.field))
        return False
    return True


def _where(section: Section, axes: Sequence[Axis]) -> dict[str, str]:
    """Axis to label, each checked against the axis."""
    table = section.table("where")
    labels = {axis.name: axis.labels for axis in axes}
    table.reject_unknown(tuple(labels))
    where = {}
    for name in table.values.keys() & labels.keys():
        where[name] = str(table.values[name])
        if where[name] not in labels[name]:
            table.invalid(name, f"one of {', '.join(labels[name])}")
    return where


def _ratio(section: Section, before: Sequence[Column]) -> tuple[str, str] | None:
    if "ratio" not in section.values:
        return None
    names = section.texts("ratio")
    earlier = [column.name for column in before if column.value or not column.is_label]
    if len(names) != 2 or not set(names) <= set(earlier):
        section.invalid("ratio", f"two columns before this one: any of {', '.join(earlier)}")
        return None
    return names[0], names[1]
