"""Named ranges around phases and modules, for torch.profiler or for NVIDIA's profilers.

The timing pass has none of these.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sysbench.core.record.steps import RouterLoad
from sysbench.core.trace.scopes import MODULE_RANGE, PHASE_RANGE

MakeRange = Callable[[str], AbstractContextManager[Any]]
"""Makes a named range that is open inside ``with``."""

ROOT = "model"
NVTX_DOMAIN = "sysbench"
LISTENER_VARIABLES = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


def nvtx_ranges() -> tuple[MakeRange | None, str]:
    """Return a maker of NVTX ranges if a profiler listens, and a description.

    Under some versions of nsys the ``nvtx`` package silently records nothing (dummy domain); then
    torch's binding is used.
    """
    if not any(os.environ.get(variable) for variable in LISTENER_VARIABLES):
        return None, f"no profiler listens for NVTX ranges ({LISTENER_VARIABLES[0]} is not set)"
    why = "the nvtx package records nothing"
    try:
        import nvtx  # lazy: optional

        if type(nvtx.get_domain(NVTX_DOMAIN)).__name__ != "DummyDomain":
            return functools.partial(nvtx.annotate, domain=NVTX_DOMAIN), "NVTX by the nvtx package"
    except ImportError:
        why = "the nvtx package is not installed"
    try:
        torch.cuda.nvtx.mark("sysbench-tui")  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return None, f"a profiler listens, but neither nvtx nor torch reaches it: {error}"
    return torch.cuda.nvtx.range, f"NVTX by torch.cuda.nvtx: {why}"


class OpenRange:
    def __init__(self, make: MakeRange) -> None:
        self._make = make
        self._open: AbstractContextManager[Any] | None = None

    def switch(self, name: str) -> None:
        """Close the range that is open and open another one; an empty name opens none."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if name:
            self._open = self._make(name)
            self._open.__enter__()


def phase_markers(make: MakeRange) -> Callable[[str], None]:
    """A workload's ``enter`` that keeps a range open for the current phase."""
    opened = OpenRange(make)
    return lambda phase: opened.switch(phase and PHASE_RANGE + phase)


def takes_fused_paths(model: nn.Module) -> bool:
    """Whether torch runs attention layers of the model as one operator in inference.

    Under a dispatch mode autocast does not reach inside such an operator.
    """
    layers = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
    return any(isinstance(one, layers) and not one.training for one in model.modules())


def is_compiled(module: nn.Module) -> bool:
    """Whether `compiled` has compiled the call of this module."""
    return module._compiled_call_impl is not None


@contextmanager
def module_ranges(model: nn.Module, make: MakeRange) -> Iterator[None]:
    """Open a range named by path around every module's forward inside ``with``.

    A compiled module gets an outer range; hooks of its children would be compiled in.
    """
    with ExitStack() as stack:
        for path, module, is_fused in _reachable(model, ""):
            name = MODULE_RANGE + (path or ROOT)
            if is_compiled(module):
                _wrap(module, name, make, stack)
            elif is_fused:
                _wrap_forward(module, name, make, stack)
            else:
                _hook(module, name, make, stack)
        yield


def _reachable(
    module: nn.Module, path: str, is_fused: bool = False
) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield the module and its descendants, but not the children of compiled modules.

    The flag is true inside a layer that torch fuses in inference unless a module has hooks.
    """
    is_fused = is_fused or (isinstance(module, nn.TransformerEncoderLayer) and not module.training)
    yield path, module, is_fused
    if not is_compiled(module):
        for name, child in module.named_children():
            yield from _reachable(child, f"{path}.{name}" if path else name, is_fused)


def _hook(module: nn.Module, name: str, make: MakeRange, stack: ExitStack) -> None:
    """Open the range by hooks; ``always_call`` also closes it when forward raises."""
    opened: list[AbstractContextManager[Any]] = []

    def enter(*_: object) -> None:
        opened.append(make(name))
        opened[-1].__enter__()

    def leave(*_: object) -> None:
        opened.pop().__exit__(None, None, None)

    stack.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)


def _wrap_forward(module: nn.Module, name: str, make: MakeRange, stack: ExitStack) -> None:
    """Open the range around ``forward``: a hook would change which operators run."""
    own, forward = vars(module).get("forward"), module.forward

    @functools.wraps(forward)
    def forward_in_range(*args: Any, **kwargs: Any) -> Any:
        with make(name):
            return forward(*args, **kwargs)

    module.forward = forward_in_range
    if own is None:
        stack.callback(delattr, module, "forward")
    else:
        stack.callback(setattr, module, "forward", own)


def _wrap(module: nn.Module, name: str, make: MakeRange, stack: ExitStack) -> None:
    """Open the range around the compiled call: hooks would run inside the graph."""
    call = module._compiled_call_impl
    assert call is not None

    def call_in_range(*args: Any, **kwargs: Any) -> Any:
        with make(name):
            return call(*args, **kwargs)

    module._compiled_call_impl = call_in_range
    stack.callback(setattr, module, "_compiled_call_impl", call)


Choices = dict[str, tuple[int, list[Tensor]]]
"""By router: the number of its experts, and the indices that it returned in each call."""


@contextmanager
def watched_routers(model: nn.Module) -> Iterator[Choices]:
    """Keep the indices of experts that modules return inside ``with``, without any operation.

    A router returns, in a tuple, logits of shape (tokens, experts) and integers of shape (tokens,
    top_k). Calls that recompute a segment in the backward pass are left out; compiled modules call
    no hooks.
    """
    choices: Choices = {}

    def keep(name: str, _: nn.Module, __: Any, output: Any) -> None:
        experts, indices = _chosen(output)
        if indices is not None and torch._C._current_graph_task_id() < 0:
            choices.setdefault(name, (experts, []))[1].append(indices.detach())

    with ExitStack() as stack:
        for name, module, is_fused in _reachable(model, ""):
            if not is_fused and not is_compiled(module):
                hook = module.register_forward_hook(functools.partial(keep, name or ROOT))
                stack.callback(hook.remove)
        yield choices


def _chosen(output: Any) -> tuple[int, Tensor | None]:
    parts = output if isinstance(output, tuple) else ()
    flat = [one for one in parts if isinstance(one, Tensor) and one.dim() == 2]
    indices = [one for one in flat if one.dtype in (torch.int64, torch.int32)]
    if len(indices) != 1:
        return 0, None
    tokens, top_k = indices[0].shape
    logits = [one for one in flat if one.is_floating_point() and one.shape[0] == tokens]
    experts = max((one.shape[1] for one in logits), default=0)
    return (experts, indices[0]) if experts > top_k else (0, None)


def router_loads(choices: Choices) -> list[RouterLoad]:
    """Count each expert's rows; reads values, so it waits for the device."""
    return [
        RouterLoad(
            module=name,
            top_k=calls[0].shape[1],
            rows_by_expert=torch.bincount(
                torch.cat([one.flatten() for one in calls]).cpu(), minlength=experts
            ).tolist(),
        )
        for name, (experts, calls) in choices.items()
    ]
