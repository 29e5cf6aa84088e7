"""Makes the pages under docs/reference from the program's own registries and types: ``make api``.

The sentence about a column comes from its row in ``core/tables``.
"""

from __future__ import annotations

import ast
import inspect
import runpy
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from sysbench.core.record.record import SCHEMA, Record
from sysbench.core.spec.fields import FIELDS
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.table import FACT_COLUMNS, MEANINGS
from sysbench.tui.screens.ask_dialog import EXPLANATIONS

HERE = Path(__file__).parent
ROOT = HERE.parent
FOLDER = HERE / "reference"
MADE = "<!-- Made by `make api`. Do not edit: tests/test_docs.py compares. -->"
UNITS = {
    "ns": "nanoseconds",
    "ms": "milliseconds",
    "bytes": "bytes",
    "share": "fraction of one",
    "mhz": "MHz",
    "celsius": "°C",
    "percent": "%",
    "gbs": "GB/s, 1e9 bytes",
    "tflops": "1e12 FLOP/s",
    "flops": "FLOP",
}


def numbers_page() -> str:
    """Every number that a screen explains with ``?``: formula, clock, source, extent."""
    parts = [
        "# Every number and its origin",
        MADE,
        "`?` on the screens shows the same texts. What a step includes, and what not, is "
        "described in [architecture.md](../architecture.md#what-each-number-includes).",
    ]
    for explanation in EXPLANATIONS.values():
        parts += [
            f"## {explanation.title}",
            "| | |\n|---|---|\n"
            + "\n".join(
                f"| {label} | {cell(text)} |"
                for label, text in (
                    ("formula", explanation.formula),
                    ("clock", explanation.clock),
                    ("source", explanation.source),
                    ("included", explanation.included),
                )
            ),
        ]
    return "\n\n".join(parts) + "\n"


def keys_page() -> str:
    """Every key of a spec, by group of the form."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(RunSpec)}
    parts = [
        "# Every key of a spec",
        MADE,
        "`sysbench-tui run tiny batch=8 precision=bf16`, a line of a TOML file, or a field of the "
        "form. *Decides* is the extent of a key's effect: the kernels of a `forward` pass, only "
        "the `step` after it, only the `procedure` of measuring, or the `conditions` alone.",
    ]
    for group in dict.fromkeys(field.group for field in FIELDS):
        rows = [
            f"| `{field.name}` | {cell(field.help)} | {cell(field.allowed)} | "
            f"`{shown(defaults[field.name])}` | {field.decides} |"
            for field in FIELDS
            if field.group == group and field.is_typed
        ]
        if rows:
            parts += [
                f"## {(group or 'experiments of the studies').capitalize()}",
                "| key | meaning | takes | default | decides |\n|---|---|---|---|---|\n"
                + "\n".join(rows),
            ]
    return "\n\n".join(parts) + "\n"


def record_page() -> str:
    """The schema of ``record.json``: one section a type, in the order in which they are met."""
    parts = [
        "# record.json",
        MADE,
        f"What `run --json`, `show RUN --json` and `Result.record` hold, schema {SCHEMA}. Keys are "
        "added, never renamed ([release.md](../release.md#the-schema-number-of-recordjson)). A "
        "value that is not available is null, and `missing` of the same block has the reason under "
        "its name. Shares are fractions of one.",
    ]
    waiting: list[type[Any]] = [Record]
    described: list[type[Any]] = []
    while waiting:
        kind = waiting.pop(0)
        if kind in described:
            continue
        described.append(kind)
        fields = msgspec.structs.fields(kind)
        waiting += [inner for field in fields for inner in structs_in(field.type)]
        rows = "\n".join(
            f"| `{field.encode_name}` | {type_words(field.type)} | {default_words(field)} |"
            for field in fields
        )
        text = inspect.cleandoc(kind.__doc__ or "").replace("``", "`")  # its own, not a parent's
        parts += [f"## {kind.__name__}", text, f"| key | type | default |\n|---|---|---|\n{rows}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def structs_in(kind: Any) -> Iterator[type[Any]]:
    """The structs that a type mentions."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from structs_in(inner)


def type_words(kind: Any) -> str:
    """A type in Markdown: a struct as a link to its section."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if one is type(None) else type_words(one) for one in inner)
    if origin is list:
        return f"list of {type_words(inner[0])}"
    if origin is dict:
        return f"object: {type_words(inner[0])} to {type_words(inner[1])}"
    if origin is tuple:
        return "list: " + ", ".join(map(type_words, inner))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return {str: "text", Any: "any"}.get(kind, getattr(kind, "__name__", str(kind)))


def default_words(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return "null" if field.default is None else f"`{shown(field.default)}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()}`"
    return "always there"


@dataclass(frozen=True)
class ShownTable:
    """A table as its source declares it."""

    name: str
    title: str
    about: str
    columns: dict[str, str]
    """A sentence about each column, by its name."""


def tables_page() -> str:
    """Every table by module, with its columns and what each means."""
    parts = [
        "# Every table and column",
        MADE,
        "The names are those of CSV files, data frames and `--json`; screens and Markdown write "
        "them for people. A name ends in its unit. An empty cell is not known or does not apply, "
        "never zero. `<phase>` and the like stand for one column each. "
        "`sysbench-tui show RUN --section NAME` prints the tables of a section, "
        "`sysbench-tui inspect FILE --section NAME` those of a file.",
    ]
    for path in sorted((ROOT / "core" / "tables").rglob("*.py")):
        tables = merged(tables_in(path))
        if not tables:
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        parts.append(f"## {docstring.splitlines()[0].rstrip('.')}")
        for table in tables:
            parts += [f"### {table.name}", title_words(table.title), table.about]
            rows = "\n".join(
                f"| `{column}` | {cell(meaning(column, about))} |"
                for column, about in table.columns.items()
            )
            parts.append(f"| column | meaning |\n|---|---|\n{rows}")
    return "\n\n".join(part for part in parts if part) + "\n"


def title_words(title: str) -> str:
    """The title in italics; nothing of one that a record fills in."""
    return "" if "…" in title or title.startswith("<") else f"*{title}*"


def merged(tables: Iterable[ShownTable]) -> list[ShownTable]:
    """The tables, those of one name as one with the columns of all."""
    by_name: dict[str, ShownTable] = {}
    for table in tables:
        before = by_name.get(table.name, table)
        by_name[table.name] = replace(before, columns=table.columns | before.columns)
    return list(by_name.values())


def meaning(column: str, about: str) -> str:
    """The sentence about a column, with the unit at the end of the column's name."""
    unit = UNITS.get(column.rpartition("_")[2])
    return f"{about}; {unit}" if unit and unit not in about else about


def tables_in(path: Path) -> Iterator[ShownTable]:
    """The tables that a module makes with `tabulate` or `facts`, read from its source."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = import_module(".".join(("sysbench", *path.relative_to(ROOT).with_suffix("").parts)))
    constants = assigned_once(tree.body)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        about = (ast.get_docstring(function) or "").partition("\n\n")[0].replace("``", "`")
        makers = {
            node.name: calls_of(node, "Column")[0]
            for node in ast.walk(function)
            if isinstance(node, ast.FunctionDef) and node is not function
            if calls_of(node, "Column")
        }
        reader = _Reader(module, constants | assigned_once(ast.walk(function)), makers)
        for call in calls_of(function, "tabulate"):
            words = {word.arg: word.value for word in call.keywords}
            if isinstance(words["name"], ast.Constant):
                columns = dict(reader.parts(call.args[1:]))
                title = reader.text(words["title"])
                yield ShownTable(str(words["name"].value), title, about, columns)
        for call in calls_of(function, "facts"):
            if isinstance(call.args[0], ast.Constant):
                name, title = str(call.args[0].value), reader.text(call.args[1])
                yield ShownTable(name, title, about, FACT_COLUMNS)


def assigned_once(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Names with one expression; a name with several expressions is left out."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id].append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def calls_of(node: ast.AST, name: str) -> list[ast.Call]:
    """The calls of a function, in the order of the source."""
    calls = [
        inner
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Name)
        and inner.func.id == name
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


class _Reader:
    """Reads columns, each with the sentence about it, out of expressions.

    Args:
        module: For attributes that only the running program knows.
        known: Names of expressions.
        makers: Local functions that make a column, each with its call of `Column`.
    """

    def __init__(
        self, module: types.ModuleType, known: dict[str, ast.expr], makers: dict[str, ast.Call]
    ) -> None:
        self._module = module
        self._known = known
        self._makers = makers

    def parts(self, nodes: Iterable[ast.expr]) -> Iterator[tuple[str, str]]:
        """The columns that arguments make; a name is that of an attribute."""
        for node in nodes:
            if isinstance(node, ast.Constant):
                yield str(node.value), MEANINGS[str(node.value)]
            else:
                yield from self.columns(node)

    def columns(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        """The columns of a tuple, a list or an expression that makes some."""
        if isinstance(node, ast.Tuple | ast.List):
            for part in node.elts:
                yield from self.columns(part)
        elif isinstance(node, ast.Starred):
            yield from self.columns(node.value)
        elif isinstance(node, ast.IfExp):
            yield from self.columns(node.body)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            yield from self._of_each(node)
        elif isinstance(node, ast.Name):
            if node.id in self._known:
                yield from self.columns(self._known[node.id])
            elif hasattr(self._module, node.id):  # imported from another module
                yield from (
                    (column.name, column.meaning) for column in getattr(self._module, node.id)
                )
        elif isinstance(node, ast.Call):
            yield from self._call(node)

    def _of_each(self, node: ast.ListComp | ast.GeneratorExp) -> Iterator[tuple[str, str]]:
        """Columns that a comprehension makes, or a part of those that it goes over."""
        if isinstance(node.elt, ast.Name):
            yield from self.columns(node.generators[0].iter)
        else:
            yield from self.columns(node.elt)

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        name = function.id if isinstance(function, ast.Name) else ""
        if name == "Column":
            yield self.text(node.args[0]), self._about(node)
        elif name == "columns_for":
            yield from self.parts(node.args[1:])
        elif name == "map" and isinstance(node.args[0], ast.Name):
            yield from self._made(node.args[0].id, node.args[1])
        elif name in self._makers:
            yield from self._made(name, node.args[0])

    def _made(self, maker: str, argument: ast.expr) -> Iterator[tuple[str, str]]:
        """The columns of a local function: those of a mapping from names to sentences, else one
        that stands for all."""
        column = self._makers[maker]
        about = next((word.value for word in column.keywords if word.arg == "about"), None)
        if isinstance(about, ast.Subscript) and isinstance(about.value, ast.Name):
            sentences = getattr(self._module, about.value.id)
            yield from ((name, sentences[name]) for name in self._names(argument))
        else:
            bare = maker.removeprefix("of_").removesuffix("_column")
            name = self.text(column.args[0]).replace("…", f"<{bare}>")
            yield name if f"<{bare}>" in name else f"<{bare}>", self._about(column)

    def _about(self, node: ast.Call) -> str:
        sentences = (self.text(word.value) for word in node.keywords if word.arg == "about")
        return next(sentences, "") or MEANINGS.get(self.text(node.args[0]), "")

    def _names(self, node: ast.expr) -> list[str]:
        if isinstance(node, ast.Name) and node.id not in self._known:
            return list(getattr(self._module, node.id))
        value = self._known[node.id] if isinstance(node, ast.Name) else node
        names = ast.literal_eval(value)
        return [names] if isinstance(names, str) else list(names)

    def text(self, node: ast.expr) -> str:
        """The text, with ``…`` for what only a record fills in."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        if isinstance(node, ast.Call) and node.args:  # what a name is made from
            return self.text(node.args[0])
        if isinstance(node, ast.Name):
            if node.id in self._known:
                return self.text(self._known[node.id])
            return str(getattr(self._module, node.id, f"<{node.id}>"))
        return "…"


def cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


PAGES = {
    FOLDER / "numbers.md": numbers_page,
    FOLDER / "keys.md": keys_page,
    FOLDER / "record.md": record_page,
    FOLDER / "tables.md": tables_page,
}

if __name__ == "__main__":
    runpy.run_path(str(HERE / "make_api.py"), run_name="__main__")
    for page, make in PAGES.items():
        page.write_text(make(), encoding="utf-8")
