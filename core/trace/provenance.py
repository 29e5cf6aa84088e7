"""Operators, modules and source lines of the kernels of compiled graphs.

The compiler numbers the kernel calls of a graph and records their operators; each operator has the
module and line it was traced from. Module paths are relative to the compiled module.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from sysbench.core.record.record import GeneratedKernel, KernelRow, Kernels
from sysbench.core.trace.classify import FUSED, WHOLE_MODEL
from sysbench.core.trace.module_tree import fold_layer_numbers

GRAPH_PREFIX = re.compile(r"^graph_\d+_(?=cpp_fused_)")
"""Prefix with the graph's number, which the profiler records for CPU kernels."""

SUBSCRIPT = re.compile(r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]")
SOURCES_KEPT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCall:
    """One call of a kernel in a compiled graph, by its position in the graph's order, from 1.

    ``modules`` are paths of its operators, "" the compiled module itself; ``sources`` are
    ``file:line code`` of each, the innermost outside torch. ``moved_bytes`` is by the compiler, or
    None.
    """

    number: int
    name: str
    ops: tuple[str, ...]
    modules: tuple[str, ...]
    sources: tuple[str, ...]
    moved_bytes: int | None

    @property
    def module(self) -> str:
        return enclosing(self.modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedGraph:
    """One piece of generated code, called once per step or once per layer."""

    phase: Literal["forward", "backward"]
    file: str
    calls: tuple[GeneratedCall, ...]


def enclosing(modules: Iterable[str]) -> str:
    """Return the longest path that contains all paths; "" is the root.

    Paths of the root are ignored if there are others: one operator without a module would move
    every kernel that it is fused into to the root.
    """
    paths = [path.split(".") for path in dict.fromkeys(modules) if path]
    if not paths:
        return ""
    shared = 0  # ends at the latest where the shortest path does
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return ".".join(paths[0][:shared])


def relative_path(traced: str) -> str:
    """Return ``blocks.0`` for ``L['self'].blocks.0`` or ``L['self']._modules['blocks'][0]``."""
    root, quote, rest = traced.partition("']")
    if not (quote and root.startswith("L['")):
        rest = traced
    return SUBSCRIPT.sub(lambda match: f".{match[1] or match[2] or match[3]}", rest).lstrip(".")


class ScheduledNode(NamedTuple):
    """A node of the compiler's schedule, with the names of the graph's operators that it computes.

    ``size`` is in bytes; calls are of a library, others become generated kernels.
    """

    origins: frozenset[str]
    size: int
    is_call: bool


def bytes_of_calls(
    operators: Mapping[str, Iterable[str]], scheduled: Iterable[ScheduledNode]
) -> dict[str, int]:
    """Return the bytes of each kernel call, without calls that cannot be matched uniquely.

    A library call is one node, and so is a GPU kernel with exactly its operators; the C++ backend
    may join several nodes in a kernel. One operator can be two kernels, such as a split reduction:
    two nodes in the same order. ``operators`` are those of each call, in execution order.
    """
    names = [(key, frozenset(inside)) for key, inside in operators.items()]
    claims: dict[tuple[str, ...], list[int]] = defaultdict(list)
    doubtful: set[str] = set()
    for node in scheduled:
        if not node.size:  # it only unpacks results
            continue
        claimed = _claims(node, names)
        claims[claimed].append(node.size)
        if not claimed:
            doubtful |= _in_doubt(node, names)
    sizes: Counter[str] = Counter()
    for keys, amounts in claims.items():
        if len(keys) == 1:
            sizes[keys[0]] += sum(amounts)
        elif len(keys) == len(amounts):
            sizes.update(dict(zip(keys, amounts, strict=True)))
        else:
            doubtful.update(keys)
    return {key: size for key, size in sizes.items() if key not in doubtful}


def _claims(node: ScheduledNode, names: Iterable[tuple[str, frozenset[str]]]) -> tuple[str, ...]:
    """Return the calls with exactly the node's operators, else those that contain them."""
    alike = [(key, inside) for key, inside in names if bool(FUSED.search(key)) != node.is_call]
    exact = tuple(key for key, inside in alike if inside == node.origins)
    if exact:
        return exact
    if node.is_call:
        return tuple(key for key, inside in alike if inside and inside <= node.origins)
    return tuple(key for key, inside in alike if node.origins and node.origins <= inside)


def _in_doubt(node: ScheduledNode, names: Sequence[tuple[str, frozenset[str]]]) -> set[str]:
    """Return the calls that may contain a node that no call claims.

    Some versions of torch give a fallback kernel, such as attention of a library, no number. Its
    operators are also those of generated kernels that computed its inputs; its bytes are not
    theirs.
    """
    if node.is_call and node.origins:
        calls = [(key, inside) for key, inside in names if not FUSED.search(key)]
        return {key for key, inside in calls if inside & node.origins}
    touched = {key for key, inside in names if inside & node.origins}
    return touched or {key for key, _ in names}


def generated_kernels(graphs: Iterable[GeneratedGraph], root: str = "") -> list[GeneratedKernel]:
    """Return the kernels of distinct graphs in order, layers folded.

    ``root`` is the path of the compiled module: "" the model, ``blocks.*`` its blocks.
    """
    groups: dict[tuple[str, ...], list[tuple[GeneratedGraph, GeneratedCall]]] = defaultdict(list)
    for graph in graphs:
        for call in graph.calls:
            module = fold_layer_numbers(under(root, call.module))
            key = (graph.file, graph.phase, call.name, module, *call.ops)
            groups[key].append((graph, call))
    return [_kernel(members, root) for members in groups.values()]


def under(outer: str, inner: str) -> str:
    return ".".join(filter(None, (outer, inner)))


def _kernel(members: Sequence[tuple[GeneratedGraph, GeneratedCall]], root: str) -> GeneratedKernel:
    graph, first = members[0]
    calls = [call for _, call in members]
    moved = [call.moved_bytes for call in calls if call.moved_bytes is not None]
    modules = (fold_layer_numbers(under(root, path)) for call in calls for path in call.modules)
    sources = dict.fromkeys(line for call in calls for line in call.sources)
    return GeneratedKernel(
        name=first.name,
        phase=graph.phase,
        fused=bool(FUSED.search(first.name)),
        ops=list(first.ops),
        module=fold_layer_numbers(under(root, first.module)),
        modules=sorted(set(modules)),
        sources=list(sources)[:SOURCES_KEPT],
        sites=len(calls),
        bytes_per_call=sum(moved) / len(moved) if len(moved) == len(calls) else None,
        file=graph.file,
    )


def with_provenance(kernels: Kernels, generated: Sequence[GeneratedKernel]) -> Kernels:
    """Return the kernel table with the compiler's facts about its kernels.

    A fused row gets its operators and the bytes it moves. It gets a more specific module if all
    call sites of the kernel agree on one inside the module of the trace.
    """
    by_key: dict[tuple[str, str], list[GeneratedKernel]] = defaultdict(list)
    for kernel in generated:
        if kernel.fused:
            by_key[kernel.name, kernel.phase].append(kernel)
    rows = [_with_origin(row, by_key[row_key(row)]) for row in kernels.rows]
    missing = kernels.missing
    if not generated and any(row.fused for row in rows):
        missing = missing | {"generated": "this version of torch keeps no provenance of kernels"}
    return msgspec.structs.replace(kernels, rows=rows, generated=list(generated), missing=missing)


def row_key(row: KernelRow) -> tuple[str, str]:
    # A graph is of forward or backward; other phases, such as the loss, run forward graphs.
    phase = "backward" if row.phase == "backward" else "forward"
    return GRAPH_PREFIX.sub("", row.name), phase


def _with_origin(row: KernelRow, kernels: Sequence[GeneratedKernel]) -> KernelRow:
    # A name may be generated in several modules: prefer those in the module of the trace.
    module = fold_layer_numbers(row.module)
    origins = [kernel for kernel in kernels if kernel.module == module] or kernels
    if not origins:
        return row
    ops = dict.fromkeys(op for kernel in origins for op in kernel.ops)
    return msgspec.structs.replace(
        row,
        fused=True,
        ops=list(ops),
        module=_module(row.module, {kernel.module for kernel in origins}),
        moved_bytes=row.moved_bytes if row.moved_bytes is not None else _moved_bytes(row, origins),
    )


def _module(traced: str, modules: set[str]) -> str:
    (inner, *others) = modules
    if others or not inner:
        return traced
    if traced in ("", WHOLE_MODEL):
        return inner
    # The compiler's path has its layers folded: keep the trace's numbers and append the rest.
    outer = fold_layer_numbers(traced)
    return traced + inner.removeprefix(outer) if inner.startswith(f"{outer}.") else traced


def _moved_bytes(row: KernelRow, kernels: Sequence[GeneratedKernel]) -> float | None:
    call_sites = [(kernel.bytes_per_call, kernel.sites) for kernel in kernels]
    amounts = [size * sites for size, sites in call_sites if size is not None]
    if len(amounts) < len(call_sites):
        return None
    return sum(amounts) / sum(sites for _, sites in call_sites) * row.calls


def kernel_source(code: str, name: str) -> str:
    start = re.compile(rf"^{re.escape(name)} = async_compile\.", re.MULTILINE).search(code)
    if start is None:
        return ""
    end = re.compile(r"^'''.*\)$", re.MULTILINE).search(code, start.end())
    return code[start.start() : end.end() if end else len(code)]
