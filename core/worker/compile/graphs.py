"""Provenance of the kernel calls of compiled graphs, read from Inductor while it compiles.

Inductor numbers its kernel calls and keeps the operators of each, per graph and only during its
compilation. It announces finished code to the structured log, and a log handler reads the graph
at that moment. Fields that a version of torch lacks are missing in the result, not guessed.
"""

from __future__ import annotations

import ast
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._functorch import config as functorch_config

from sysbench.core.formatting import short_path
from sysbench.core.record.record import GeneratedKernel
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.provenance import (
    GeneratedCall,
    GeneratedGraph,
    ScheduledNode,
    bytes_of_calls,
    generated_kernels,
    relative_path,
)
from sysbench.core.trace.scopes import PART_RANGE
from sysbench.core.worker.ranges import MakeRange, OpenRange

if TYPE_CHECKING:
    from torch import fx


STRUCTURED_LOG = "torch.__trace"
ANNOUNCEMENT = "inductor_output_code"
CODE_FOLDER = "output_code"
TORCH_FOLDER = str(Path(torch.__file__).parent)
LONGEST_LINE = 100
CALL = re.compile(r"# \[Provenance debug handles\] (\S+:\d+)")
"""Comment before a kernel call in the code, with the key of the call in Inductor's notes."""


@contextmanager
def watched_graphs(spec: RunSpec, root: nn.Module) -> Iterator[list[GeneratedGraph]]:
    """Collect the graphs that Inductor compiles inside ``with``, flex attention's included.

    Cached graphs lack their origins, so the graph cache is off; caches of binaries stay on. CPU
    kernels get profiler events, which the profiler needs to see them.
    """
    graphs: list[GeneratedGraph] = []
    if not spec.compiles or (spec.compile != "off" and spec.compile_backend != "inductor"):
        yield graphs
        return
    from torch._inductor import config as inductor_config  # lazy: torch's compiler takes a second

    wanted: dict[str, object] = {
        "fx_graph_cache": False,
        "trace.provenance_tracking_level": 1,
        "cpp.enable_kernel_profile": not spec.on_cuda,
    }
    watcher = _Watcher(graphs, root)
    log = logging.getLogger(STRUCTURED_LOG)
    with ExitStack() as stack:
        stack.enter_context(_patch(inductor_config, wanted))
        stack.enter_context(_patch(functorch_config, {"enable_autograd_cache": False}))
        log.addHandler(watcher)
        stack.callback(log.removeHandler, watcher)
        yield graphs


def made_kernels(graphs: Iterable[GeneratedGraph], job: Job) -> list[GeneratedKernel]:
    """The kernels of the graphs, their code copied into the job's folder."""
    kept = []
    for number, graph in enumerate(graphs, 1):
        name = f"{CODE_FOLDER}/{number}-{graph.phase}.py"
        (job.path / CODE_FOLDER).mkdir(exist_ok=True)
        shutil.copyfile(graph.file, job.path / name)
        kept.append(replace(graph, file=name))
    return generated_kernels(kept, "blocks.*" if job.spec.compile_scope == "block" else "")


def _patch(config: Any, wanted: dict[str, object]) -> Any:
    return config.patch({key: value for key, value in wanted.items() if _has(config, key)})


def _has(config: Any, key: str) -> bool:
    for part in key.split("."):
        if not hasattr(config, part):
            return False
        config = getattr(config, part)
    return True


class _Watcher(logging.Handler):
    """Adds a graph for each piece of code that Inductor reports."""

    def __init__(self, graphs: list[GeneratedGraph], root: nn.Module) -> None:
        super().__init__()
        self._graphs = graphs
        self._root = root

    def emit(self, record: logging.LogRecord) -> None:
        metadata = getattr(record, "metadata", {})
        path = metadata.get(ANNOUNCEMENT, {}).get("filename")
        if not path:
            return
        try:
            self._graphs.append(_generated_graph(path, self._root))
        except Exception:  # private to torch and may change: continue without
            logging.getLogger(__name__).exception("the origins of %s are not known", path)


def _generated_graph(path: str, root: nn.Module) -> GeneratedGraph:
    from torch._inductor import debug  # lazy: torch's compiler takes a second
    from torch._inductor.virtualized import V  # lazy: torch's compiler takes a second

    graph: Any = V.graph
    everything: dict[str, list[str]] = getattr(
        debug, "_inductor_triton_kernel_to_post_grad_node_info", {}
    )
    # Inductor empties its notes for every forward. A backward is lowered when it first runs, after
    # that, so that the notes are of all backwards before it too.
    called = set(CALL.findall(Path(path).read_text()))
    info = {key: names for key, names in everything.items() if key in called or not called}
    nodes = {node.name: node for node in graph.module.graph.nodes}
    constants = _constants(nodes.values())
    sizes = bytes_of_calls(info, _scheduled_nodes(getattr(graph.scheduler, "nodes", [])))
    calls = []
    for key, names in info.items():
        name, _, number = key.rpartition(":")
        if not number.isdigit():  # before torch numbered the calls
            continue
        # In the order of the graph: Inductor collects the names in a set.
        origins = [node for label, node in nodes.items() if label in set(names)]
        deciding = [node for node in origins if node not in constants] or origins
        calls.append(
            GeneratedCall(
                number=int(number),
                name=name,
                ops=_unique(_operator(node) for node in origins),
                modules=_unique(_module(node, root) for node in deciding),
                sources=_unique(_source(node) for node in origins),
                moved_bytes=sizes.get(key),
            )
        )
    if graph.is_backward:
        # The next backward may count from 1 again, and would write into this one's notes.
        everything.clear()
        start_over = getattr(debug, "reset_inductor_kernel_provenance_debug_handle", None)
        if start_over is not None:
            start_over()
    return GeneratedGraph(
        phase="backward" if graph.is_backward else "forward", file=path, calls=tuple(calls)
    )


def _constants(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes that no input of the graph reaches. Layers share them, so their module is that
    of the first layer only."""
    constants: set[fx.Node] = set()
    for node in nodes:
        # Nodes come in topological order, so inputs are classified before their users.
        if node.op == "call_function" and constants.issuperset(node.all_input_nodes):
            constants.add(node)
    return constants


def _unique(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _operator(node: fx.Node) -> str | None:
    """Shorten ``aten.add.Tensor`` to ``add``; from before decomposition if known."""
    if node.op != "call_function":
        return None
    parts = str(node.meta.get("original_aten") or node.target).split(".")
    return parts[1] if len(parts) > 1 else None


def _module(node: fx.Node, root: nn.Module) -> str | None:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    traced, kind = list(stack.values())[-1][:2]
    path = relative_path(str(traced))
    # After a graph break paths begin at an inner module, so the same path can name another one.
    try:
        actual = type(root.get_submodule(path))
    except AttributeError:
        return None
    return path if actual is kind or str(kind).endswith(actual.__qualname__) else None


def _source(node: fx.Node) -> str | None:
    """``models/attention.py:71 q = …``: the innermost line outside torch."""
    text = node.meta.get("stack_trace") or ""
    lines = text.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        place = lines[index].strip()
        if not place.startswith('File "') or place.startswith(f'File "{TORCH_FOLDER}'):
            continue
        file, _, rest = place.removeprefix('File "').partition('", line ')
        code = lines[index + 1].strip() if index + 1 < len(lines) else ""
        return f"{short_path(file)}:{rest.partition(',')[0]} {code}"[:LONGEST_LINE]
    return None


def _scheduled_nodes(nodes: Iterable[Any]) -> Iterator[ScheduledNode]:
    for node in nodes:
        yield ScheduledNode(
            origins=frozenset(
                origin.name
                for part in node.get_nodes()
                if part.node
                for origin in part.node.origins
            ),
            size=node.get_read_write_buffers_sizes(),
            is_call=node.is_extern(),
        )


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
