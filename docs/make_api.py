"""Makes docs/api.md from the docstrings of the names in ``sysbench.core``: ``make api``.

The source is read, not run: signatures and annotations then read the same in every version of
Python, and no torch is loaded.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import sysbench.core

PAGE = Path(__file__).with_name("api.md")
HEAD = """# Python API

<!-- Made by `make api` from the docstrings. Do not edit: tests/test_docs.py compares. -->

The public names of `sysbench.core`. Everything else in the package may change in any version
([release.md](release.md)). `run` needs torch in the process that it starts, never in yours.

```python
from sysbench.core import RunSpec, run

result = run(RunSpec(model="tiny", step="inference"), passes=["timing"])
print(result.record.timing.step.median_ms)
```
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def api_page() -> str:
    """The whole page, names in alphabetical order."""
    names = sorted(sysbench.core.__all__, key=str.lower)
    return HEAD + "".join(_entry(name) for name in names)


def _entry(name: str) -> str:
    module = sysbench.core._MODULES[name]
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    nodes = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    node = next(node for node in nodes if getattr(node, "name", None) == name)
    where = f"\n## {name}\n\n*`{module}`*\n\n"
    if isinstance(node, Function):
        return where + _function(node)
    assert isinstance(node, ast.ClassDef)
    return where + "\n".join(_class(node))


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases]
    yield _code(f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}")
    yield _text(node)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    if fields:
        yield "| field | type | default |\n|---|---|---|\n" + "".join(map(_field, fields))
    for item in node.body:
        if isinstance(item, Function) and not item.name.startswith("_"):
            yield f"### {node.name}.{item.name}\n\n{_function(item)}"


def _field(node: ast.AnnAssign) -> str:
    default = f"`{ast.unparse(node.value)}`" if node.value else "required"
    type_ = ast.unparse(node.annotation).replace("|", "\\|")
    return f"| `{ast.unparse(node.target)}` | `{type_}` | {default} |\n"


def _function(node: Function) -> str:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if "property" in decorators:
        line = f"{node.name}{result.replace(' ->', ':')}  # property"
    else:
        line = f"{node.name}({ast.unparse(node.args)}){result}"
    return f"{_code(line)}\n{_text(node)}"


def _code(line: str) -> str:
    return f"```python\n{line}\n```\n"


def _text(node: ast.ClassDef | Function) -> str:
    """The docstring as Markdown, or nothing: doubled backticks single, sections as lists."""
    raw = ast.get_docstring(node) or ""
    lines: list[str] = []
    in_section = False
    for line in inspect.cleandoc(raw).replace("``", "`").splitlines():
        if line.rstrip(":") in ("Args", "Attributes", "Raises", "Returns") and line.endswith(":"):
            in_section = True
            lines += [f"**{line.rstrip(':')}**", ""]
        elif in_section and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(":")
            lines.append(f"- `{name}`:{rest}" if colon else f"- {line.strip()}")
        else:
            in_section = in_section and (not line or line.startswith(" "))
            lines.append(f"  {line.strip()}" if in_section and line else line.rstrip())
    return "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(api_page(), encoding="utf-8")
