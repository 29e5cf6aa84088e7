"""Notes on the owner of each storage and on the module that computes, taken during steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass,
)

from sysbench.core.memory.allocations import (
    BUILD,
    CACHE,
    InputMark,
    ModuleMark,
    Notes,
    Owner,
    PhaseMark,
    Tag,
)
from sysbench.core.predict.closed_form import COMMUNICATION, GATHERED
from sysbench.core.trace.classify import LOSS, WHOLE_MODEL
from sysbench.core.trace.scopes import MODULE_RANGE
from sysbench.core.worker.ranges import is_compiled, module_ranges, takes_fused_paths
from sysbench.core.worker.workloads.held_tensors import HeldTensors
from sysbench.core.worker.workloads.stepped_workload import (
    SteppedWorkload,
    local_shard,
    parts_of_weight,
    shape_words,
    tensors_in,
)

CASTS = (torch.ops.aten._to_copy, torch.ops.aten.to)
"""Casts of weights by autocast: with gradients, and in inference mode."""


class Tagger:
    """Writes `Notes`: phases, open modules, and owners of storages by address.

    Views share their storage's address. The notes hold addresses and times, so they keep no tensor
    alive. Addresses are reused: the analysis joins a tag to the allocation that is alive at its
    time.
    """

    def __init__(self) -> None:
        self._step = BUILD
        self._open: list[str] = [WHOLE_MODEL]
        self._notes = Notes()
        self._weights: dict[int, str] = {}  # address to module
        self._modules: dict[Any, str] = {}  # parameter to module
        self._gathered: dict[nn.Module, set[int]] = {}  # addresses during a forward
        self._modes: list[AbstractContextManager[object]] = []  # in the model's forward

    @property
    def notes(self) -> Notes:
        return self._notes

    def begin_step(self, index: int) -> None:
        """Begin a step, counted from 0; the phases that follow belong to it."""
        self._step = index

    def enter(self, phase: str) -> None:
        """Begin a phase; the empty name ends the step."""
        self._notes.phases.append(PhaseMark(time.time_ns(), self._step, phase))
        # The kernel table has the loss as a place too; outside it the model is the root.
        self._open[0] = LOSS if phase == LOSS else WHOLE_MODEL
        self._compute(self._open[0])

    def tag(self, tensor: Tensor, owner: Owner, module: str = WHOLE_MODEL) -> None:
        self._notes.tags.append(Tag(time.time_ns(), _address(tensor), owner, module))

    @contextmanager
    def watching(
        self, workload: SteppedWorkload, held: HeldTensors | None = None
    ) -> Iterator[None]:
        """Tag the workload's tensors and those that its steps create inside ``with``."""
        self._tag_residents(workload)
        self._modules = _modules_of(workload.bare_model)
        others = held.parameters if held else ()
        spec = workload.spec
        hides_casts = spec.compile != "off" or takes_fused_paths(workload.model)
        if spec.precision_row.autocast and not hides_casts:
            # Compiled code casts inside its kernels, where the dispatcher does not see it.
            self._modes = [_CastWatcher(self._weights, self.tag)]
            if not spec.attention_row.compiles:
                self._modes.append(_PlainAttention())
        with ExitStack() as stack:
            stack.enter_context(module_ranges(workload.bare_model, self._computing))
            for handle in self._hooks(workload, others):
                stack.callback(handle.remove)
            stack.enter_context(saved_tensors_hooks(self._pack, self._unpack))
            yield

    def tag_held(self, workload: SteppedWorkload, held: HeldTensors) -> None:
        """Tag what a user's code keeps after a step; the model may have other buffers by now."""
        for name, buffer in workload.bare_model.named_buffers():
            self.tag(buffer, "buffers", _module_of(name))
        for tensor, owner, of in held.owned():
            self.tag(tensor, owner, self._modules.get(of, WHOLE_MODEL))

    def _tag_residents(self, workload: SteppedWorkload) -> None:
        for name, parameter in workload.bare_model.named_parameters():
            module = _module_of(name)
            for part in parts_of_weight(parameter):
                self._weights[_address(part)] = module
                self.tag(part, "parameters", module)
        for name, buffer in workload.bare_model.named_buffers():
            self.tag(buffer, "buffers", _module_of(name))
        for tensor in workload.inputs:
            self.tag(tensor, "inputs")
        self.tag_cache(workload)

    def tag_cache(self, workload: SteppedWorkload) -> None:
        """Tag the cache as it is now: a step can put new tensors in place of the old ones."""
        for tensor in workload.cached:
            self.tag(tensor, CACHE)

    def _hooks(self, workload: SteppedWorkload, others: Sequence[Tensor]) -> Iterator[Any]:
        model = workload.bare_model
        if not is_compiled(model):  # a hook would be compiled in
            yield model.register_forward_hook(self._tag_call, with_kwargs=True)
        for part in workload.gathering:
            yield part.register_forward_pre_hook(self._tag_gathered)
            yield part.register_forward_hook(self._forget_gathered)
        workload.tag_sent(lambda buffer: self.tag(buffer, COMMUNICATION))
        leaves = self._modules | dict.fromkeys((*workload.inputs, *others), WHOLE_MODEL)
        for parameter, module in leaves.items():
            if parameter.requires_grad:
                yield parameter.register_post_accumulate_grad_hook(self._grad_tagger(module))
        for optimizer in workload.optimizers:
            yield optimizer.register_step_post_hook(self._state_tagger(self._modules))

    @contextmanager
    def _computing(self, range_name: str) -> Iterator[None]:
        """Mark a module's forward; the whole model's also detects casts."""
        path = range_name.removeprefix(MODULE_RANGE)
        self._open.append(path)
        self._compute(path)
        try:
            # A child of the model can have its name, and is watched already.
            is_whole = path == WHOLE_MODEL and self._open.count(path) <= 1 + (
                self._open[0] == WHOLE_MODEL
            )
            with ExitStack() as stack:
                for mode in self._modes if is_whole else ():
                    stack.enter_context(mode)
                yield
        finally:
            self._open.pop()
            self._compute(self._open[-1])

    def _compute(self, path: str) -> None:
        modules = self._notes.modules
        # Only changes: a mark holds until the next one.
        if not modules or modules[-1].module != path:
            modules.append(ModuleMark(time.time_ns(), path))

    def _tag_call(self, module: nn.Module, args: Any, named: Any, output: object) -> None:
        """Tag the model's output, and note the shapes of its inputs."""
        for tensor in tensors_in(output):
            self.tag(tensor, "outputs")
        shapes = ", ".join(map(shape_words, tensors_in((args, named))))
        mark = InputMark(time.time_ns(), self._step, shapes)
        if not self._notes.inputs or not self._notes.inputs[-1].is_like(mark):
            self._notes.inputs.append(mark)

    def _tag_gathered(self, module: nn.Module, args: object) -> None:
        """Tag the parameters that other ranks have sent for this forward."""
        self._gathered[module] = {_address(one) for one in module.parameters()} - {*self._weights}
        for parameter in module.parameters():
            if _address(parameter) in self._gathered[module]:
                self.tag(parameter, GATHERED)

    def _forget_gathered(self, module: nn.Module, args: object, output: object) -> None:
        del self._gathered[module]

    def _grad_tagger(self, module: str) -> Callable[[Tensor], None]:
        def tag_gradient(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.tag(parameter.grad, "gradients", module)

        return tag_gradient

    def _state_tagger(self, modules: Mapping[Tensor, str]) -> Callable[..., None]:
        def tag_state(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._tag_state(optimizer, modules)

        return tag_state

    def _tag_state(self, optimizer: torch.optim.Optimizer, modules: Mapping[Tensor, str]) -> None:
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, Tensor):
                    self.tag(value, "optimizer state", modules.get(parameter, WHOLE_MODEL))

    def tag_optimizer_state(self, workload: SteppedWorkload) -> None:
        """Tag the state that the optimizers have now, also in the middle of their first step."""
        for optimizer in workload.optimizers:
            self._tag_state(optimizer, _modules_of(workload.bare_model))

    def _pack(self, tensor: Tensor) -> tuple[str, Tensor, bool]:
        """Tag a tensor that is saved for backward; parameters are not activations."""
        module, address = self._open[-1], _address(tensor)
        is_gathered = any(address in addresses for addresses in self._gathered.values())
        if address not in self._weights and not is_gathered:
            self.tag(tensor, "activations", module)
        # Detached: an output that its own graph node saves would otherwise be a cycle.
        return module, tensor.detach(), is_gathered

    def _unpack(self, saved: tuple[str, Tensor, bool]) -> Tensor:
        """Return a saved tensor to backward and mark the module that saved it."""
        module, tensor, is_gathered = saved
        if is_gathered:  # for backward once more, perhaps at another address
            self.tag(tensor, GATHERED)
        self._compute(module)
        return tensor


class _PlainAttention(TorchFunctionMode):
    """Runs attention outside of dispatch modes, under which torch adds its mask to the scores in a
    new tensor. No weight is cast inside."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_attention = func is F.scaled_dot_product_attention
        with _disable_current_modes() if is_attention else nullcontext():
            return func(*args, **(kwargs or {}))


class _CastWatcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tags autocast's copies of weights, which only the dispatcher sees."""

    def __init__(self, weights: Mapping[int, str], tag: Callable[..., None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = weights
        self._tag = tag

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True, because flex attention is compiled under this mode too.

        The compiler refuses other modes. Casts in compiled code are not seen; flex attention casts
        no weights.
        """
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in CASTS and not is_traceable_wrapper_subclass(args[0]):
            module = self._weights.get(_address(args[0]))
            # A cast to the same dtype returns the weight itself: that is no copy.
            if module is not None and _address(result) not in self._weights:
                self._tag(result, "autocast weight copies", module)
        return result


def _modules_of(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: _module_of(name) for name, parameter in model.named_parameters()}


def _module_of(name: str) -> str:
    """Path of the module that has this parameter or buffer."""
    return name.rpartition(".")[0] or WHOLE_MODEL


def _address(tensor: Tensor) -> int:
    """Address of the storage of this rank's part; views share it."""
    return local_shard(tensor).untyped_storage().data_ptr()
