"""Counts storages as operators return them and as they die: no profiler, no addresses."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.make_workload import Workload


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operators have made, alive now and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: set[int] = set()

    def see(self, tensor: Tensor) -> None:
        """Count a tensor's storage, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = NotImplemented
        if torch.is_inference_mode_enabled():  # what is made of other operators comes whole
            with self:
                result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        return result


class Live(NamedTuple):
    """Of a second step, in bytes: its peak, when its loss began (None without one), its end."""

    peak: int
    forward_end: int | None
    end: int


def live_of(spec: RunSpec) -> Live:
    """What a workload of that spec really holds, step by step, with nothing recorded."""
    counter = LiveBytes()
    at: dict[str, int] = {}

    def enter(phase: str) -> None:
        at[phase] = counter.live

    with counter:
        workload = Workload(spec)
        for parameter in workload.model.parameters():
            counter.see(parameter)
        workload.step(_ignore)  # makes the optimizer's state
        counter.peak = counter.live
        workload.step(enter)
        return Live(counter.peak, at.get("loss"), counter.live)


def _ignore(phase: str) -> None: ...
