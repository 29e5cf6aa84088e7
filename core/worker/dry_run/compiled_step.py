"""Calls of compiled modules on meta tensors, as the graphs that torch.compile makes of them.

Dynamo traces a copy of each module whose tensors are fake ones on the CPU; Inductor's passes and
its partitioner divide the graph into forward and backward. No kernel is generated: both parts run
on meta tensors, and only what Inductor would write to memory is allocated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import Unsupported
from torch._functorch import config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.lowering import fallbacks
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from sysbench.core.errors import ModelError
from sysbench.core.formatting import first_line
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.apply import compiled_modules
from sysbench.core.worker.dry_run.storages import PRODUCTS
from sysbench.core.worker.workloads.stepped_workload import autocast_dtype, tensors_in

_aten, _prims = torch.ops.aten, torch.ops.prims

MORE_VIEWS = frozenset({_aten._unsafe_view, _prims.broadcast_in_dim})
"""Operations that make no tensor in compiled code, beside torch's views."""

INLINED = frozenset(
    {
        *(_aten.embedding, _aten.index, _aten.gather, _aten.constant_pad_nd, _aten.flip),
        *(_aten._to_copy, _aten.clone, _aten.full, _aten.full_like, _aten.scalar_tensor),
        *(_aten.zeros, _aten.ones, _aten.new_zeros, _aten.zeros_like, _aten.empty, _aten.arange),
        *(_aten.slice_scatter, _aten.select_scatter, _aten.lift_fresh_copy),
        *(_prims.convert_element_type, _prims.iota),
    }
)
"""Operations that a generated kernel computes where it reads the result, as pointwise ones."""

OF_LIBRARIES = PRODUCTS | {_aten._grouped_mm, _aten.convolution, _aten.convolution_backward}
"""Operations of libraries, beside those for which Inductor has no kernel."""

MAX_READS = 4
"""Tensors that an inlined result may read; with more, and several uses, Inductor writes it."""


class CompiledRegions:
    """Modules of a workload on meta tensors whose calls run as compiled graphs."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._fake = FakeTensorMode()
        self._originals: dict[int, Tensor] = {}  # tensors of modules, by the id of their twin

    def take(self, model: nn.Module) -> None:
        """Compile the modules that the spec compiles; the first call traces them.

        Raises:
            SpecError: The model has no blocks to compile.
            ModelError: In that call, if dynamo cannot trace the module as one graph.
        """
        torch.compiler.reset()  # sizes that differ from those compiled before would be dynamic
        for module in compiled_modules(self._spec, model):
            twins = {}
            for tensor in (*module.parameters(), *module.buffers()):
                twin = self._twin(tensor)
                twins[id(tensor)] = twin
                self._originals[id(twin)] = tensor
            call = torch.compile(
                copy.deepcopy(module, twins), backend=self._backend, fullgraph=True
            )
            module._compiled_call_impl = partial(self._call, module, call)

    def _twin(self, tensor: Tensor) -> Tensor:
        with self._fake:
            twin = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(twin, requires_grad=tensor.requires_grad)
        return twin.requires_grad_(tensor.requires_grad)

    def _call(self, module: nn.Module, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        made: dict[int, Tensor] = {}

        def twin_of(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if id(value) not in made:
                twin = made[id(value)] = self._twin(value)
                self._originals[id(twin)] = value
            return made[id(value)]

        # Dynamo traces with torch's own autocast; the emulated device is for what runs eagerly.
        with torch._C.DisableTorchFunction():
            with _disable_current_modes():
                twins = tree_map(twin_of, (args, kwargs))
            try:
                with self._casting():
                    output = call(*twins[0], **twins[1])
            except Unsupported as error:
                why = first_line(str(error))
                raise ModelError(f"torch.compile cannot trace it as one graph: {why}") from error
        for twin in made.values():
            del self._originals[id(twin)]
        for hook in module._forward_hooks.values():
            hook(module, args, output)
        return output

    @contextmanager
    def _casting(self) -> Iterator[None]:
        dtype, backend = autocast_dtype(self._spec), self._spec.attention_row.backend
        with ExitStack() as stack:
            if dtype is not None:
                stack.enter_context(torch.autocast("cpu", dtype))
            if backend is not None and not self._spec.on_cuda:
                stack.enter_context(sdpa_kernel(SDPBackend.__members__[backend]))
            yield

    def _backend(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """A backend of torch.compile: partition the graph in the first call, and run its parts."""
        parts: list[Callable[..., Any]] = []

        def run(*twins: Tensor) -> Any:
            if not parts:
                parts.append(self._partition(graph, inputs))
            return parts[0](*(self._originals[id(twin)] for twin in twins))

        return run

    def _partition(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        # Autocast and attention of the CPU are torch's own; those of CUDA are emulated.
        with _disable_current_modes(), ExitStack() as stack:
            stack.enter_context(config.patch(enable_autograd_cache=False))
            if self._spec.on_cuda:
                stack.enter_context(torch._C._EnableTorchFunction())
                stack.enter_context(torch.autocast("cpu", enabled=False))
            # Its annotations name Inductor's own classes.
            compiled = compile_fx(graph, inputs, inner_compile=runnable)  # type: ignore[arg-type]
            return cast("Callable[..., Any]", compiled)


def runnable(graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Return what runs a partitioned graph on meta tensors, in place of Inductor's code."""
    plan = KernelPlan(graph)

    def run(values: list[Any]) -> Any:
        return plan.run(values)

    run._boxed_call = True  # type: ignore[attr-defined]  # it clears the list
    return run


class KernelPlan:
    """A graph with the results that Inductor writes to memory; all others are in kernels.

    Written are the results of libraries and of reductions, what libraries read, what the graph
    returns, and what several kernels would compute again from more than `MAX_READS` tensors.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._nodes = list(graph.graph.nodes)
        self._external = {
            node
            for node in self._nodes
            if node.op == "call_function"
            and (_packet(node) in OF_LIBRARIES or node.target in fallbacks)
        }
        self._written = {node for node in self._nodes if not (_is_view(node) or _is_inlined(node))}
        for node in self._nodes:
            if node in self._external or node.op == "output":
                self._written.update(map(_root, node.all_input_nodes))
        self._reads: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in self._nodes:
            reads = frozenset[fx.Node]().union(*map(self._sources, node.all_input_nodes))
            if len(reads) > MAX_READS and len(node.users) > 1 and _is_inlined(node):
                self._written.add(node)
            self._reads[node] = reads
        last = {
            source: node
            for node in self._nodes
            if node in self._written
            for source in self._reads[node]
        }
        self._ends: dict[fx.Node, list[fx.Node]] = {}
        for source, node in last.items():
            self._ends.setdefault(node, []).append(source)

    def _sources(self, node: fx.Node) -> frozenset[fx.Node]:
        """Written results that a reader of the node reads."""
        return frozenset({node}) if node in self._written else self._reads[node]

    def run(self, values: list[Any]) -> Any:
        """Run on meta tensors, and clear the list; storages live as long as in compiled code."""
        alive: dict[fx.Node, Any] = {}
        values.reverse()
        for node in self._nodes:
            if node not in self._written:
                continue
            if node.op == "placeholder":
                alive[node] = values.pop()
                continue
            if node.op == "output":
                return fx.node.map_arg(node.args[0], lambda one: self._value(one, alive))
            ends = self._ends.get(node, ())
            if _is_inlined(node) and (replaced := self._replaced(node, ends)) is not None:
                alive.pop(replaced)
            alive[node] = self._result(node, alive)
            for source in ends:
                alive.pop(source, None)
            if not node.users:
                del alive[node]
        raise AssertionError("a graph without an output")

    def _replaced(self, node: fx.Node, ends: Sequence[fx.Node]) -> fx.Node | None:
        """The operand, read for the last time, to whose memory a pointwise kernel writes.

        Inductor takes no input of the graph, and nothing that scatter has made.
        """
        size = _nbytes(node)
        usual = (one for one in ends if one in self._external or _is_inlined(one))
        return next((one for one in usual if _nbytes(one) == size), None)

    def _result(self, node: fx.Node, alive: Mapping[fx.Node, Any]) -> Any:
        if node in self._external:
            return self._value(node, alive, is_new=True)
        operand = node.all_input_nodes[0] if node.all_input_nodes else node
        if _packet(node) is _prims.convert_element_type and operand.op == "placeholder":
            # Known to the tracker as a copy, of a weight if it is one.
            return _aten._to_copy(alive[operand], dtype=node.args[1])
        return tree_map(_empty_like, node.meta["val"])

    def _value(self, node: fx.Node, alive: Mapping[fx.Node, Any], *, is_new: bool = False) -> Any:
        """The value of a written node, of a view of one, or of an operation that runs now."""
        if node in alive and not is_new:
            return alive[node]
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda one: self._value(one, alive)
        )
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("meta")}
        operation: Any = node.target
        return operation(*args, **kwargs)


def _packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


def _is_view(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return True  # an item of a result
    return node.target.is_view or _packet(node) in MORE_VIEWS


def _is_inlined(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or _packet(node) in INLINED


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory a view shows."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _nbytes(node: fx.Node) -> int:
    return sum(one.untyped_storage().nbytes() for one in tensors_in(node.meta.get("val")))


def _empty_like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
