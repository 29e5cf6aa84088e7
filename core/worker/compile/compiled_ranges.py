"""Ranges around each kernel call in generated code, named by the module it belongs to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sysbench.core.trace.provenance import GeneratedGraph
from sysbench.core.trace.scopes import PART_RANGE
from sysbench.core.worker.ranges import MakeRange, OpenRange

CALL_NUMBER = re.compile(r"^(\s*)# \[Provenance debug handles\] \S+:(\d+)\s*$", re.MULTILINE)
"""The compiler's comment before a kernel call, which is replaced by a change of ranges."""
RETURN = re.compile(r"^( +)return(?=[ (])", re.MULTILINE)
MARK = "_sysbench_enter"


@contextmanager
def part_ranges(graphs: Iterable[GeneratedGraph], make: MakeRange) -> Iterator[None]:
    """Open a range before every kernel call of the graphs inside ``with``.

    Functions that call kernels are recompiled with one extra statement per call.
    """
    from torch._inductor.codecache import PyCodeCache  # lazy: torch's compiler takes a second

    loaded = {getattr(module, "__file__", ""): module for module in PyCodeCache.modules}
    with ExitStack() as stack:
        for graph in graphs:
            module = loaded.get(graph.file)
            if module is not None and all(call.number for call in graph.calls):
                _mark_calls(module, graph, make, stack)
        yield


def _mark_calls(
    module: ModuleType, graph: GeneratedGraph, make: MakeRange, stack: ExitStack
) -> None:
    ranges = {call.number: call.module and PART_RANGE + call.module for call in graph.calls}
    marked = _functions_with_marks(Path(graph.file).read_text())
    names = vars(module)
    opened = OpenRange(make)
    names[MARK] = lambda number: opened.switch(ranges.get(number, ""))
    stack.callback(names.pop, MARK)
    present = _functions(names)
    for name, code in _compile(marked, names).items():
        if name in present:
            stack.callback(setattr, present[name], "__code__", present[name].__code__)
            present[name].__code__ = code.__code__


def _functions_with_marks(source: str) -> ast.Module:
    lines = source.splitlines(keepends=True)
    kept: list[ast.stmt] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            if CALL_NUMBER.search(text):
                text = CALL_NUMBER.sub(rf"\1{MARK}(\2)", text)
                kept += ast.parse(RETURN.sub(rf"\1{MARK}(0); return", text)).body
    return ast.Module(body=kept, type_ignores=[])


def _compile(tree: ast.Module, names: Mapping[str, Any]) -> dict[str, FunctionType]:
    scratch = dict(names)
    before = set(map(id, _functions(scratch).values()))
    exec(compile(tree, "<generated code with ranges>", "exec"), scratch)
    return {
        name: function
        for name, function in _functions(scratch).items()
        if id(function) not in before
    }


def _functions(names: Mapping[str, Any]) -> dict[str, FunctionType]:
    functions: dict[str, FunctionType] = {}
    for name, value in names.items():
        if isinstance(value, FunctionType):
            functions[name] = value
        elif isinstance(value, type) and name == "Runner":
            functions |= {
                f"{name}.{key}": member
                for key, member in vars(value).items()
                if isinstance(member, FunctionType)
            }
    return functions
