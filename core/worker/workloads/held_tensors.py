"""Tensors that a user's step keeps from one step to the next, found among all Python objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sysbench.core.memory.allocations import Owner
from sysbench.core.worker.workloads.stepped_workload import tensors_in


class HeldTensor(NamedTuple):
    """A tensor, its owner, and what it is of: the parameter of a state, else the tensor itself."""

    tensor: Tensor
    owner: Owner
    of: Any


class HeldTensors:
    """Finds optimizers, other modules and inputs, wherever the user's code keeps them.

    Made after the model is built and before its first step: a tensor that exists by then, and
    that no step writes, is an input.

    Attributes:
        parameters: Trained parameters of modules outside the model.
    """

    def __init__(self, model: nn.Module) -> None:
        gc.collect()
        self._model = model
        self._device = next((one.device for one in _tensors_of(model)), torch.device("cpu"))
        of_modules = {_storage(tensor) for tensor in self._of_modules()}
        of_modules |= {_storage(tensor) for tensor in _tensors_of(model)}
        built = [
            one
            for one in _alive(Tensor)
            if type(one) in (Tensor, nn.Parameter)
            and one.device.type == self._device.type
            and one.layout is torch.strided
            and not one.is_inference()
            and one.grad_fn is None
            and _storage(one) not in of_modules
        ]
        self._built = [(weakref.ref(one), one._version) for one in built]
        self.parameters = [one for one in self._of_modules() if one.requires_grad]

    def owned(self) -> Iterator[HeldTensor]:
        """Yield each tensor that is alive now, apart from those of the model."""
        yield from (HeldTensor(tensor, "other weights", tensor) for tensor in self._of_modules())
        for optimizer in _alive(torch.optim.Optimizer):
            for parameter, state in optimizer.state.items():
                for kept in tensors_in(state):
                    yield HeldTensor(kept, "optimizer state", parameter)
        for reference, version in self._built:
            tensor = reference()
            if tensor is not None and tensor._version == version and tensor.grad_fn is None:
                yield HeldTensor(tensor, "inputs", tensor)

    def _of_modules(self) -> Iterator[Tensor]:
        own = {_storage(tensor) for tensor in _tensors_of(self._model)}
        for module in _alive(nn.Module):
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.device.type == self._device.type and _storage(tensor) not in own:
                    own.add(_storage(tensor))
                    yield tensor


def _alive(kind: type) -> list:  # type: ignore[type-arg]
    """Every object of a class, without asking proxies for theirs.

    There are a million objects, and a profiler notes each call that a line of Python makes.
    """
    objects = gc.get_objects()
    types = list(map(type, objects))
    wanted = {one for one in set(types) if issubclass(one, kind)}
    return list(compress(objects, map(wanted.__contains__, types)))


def _tensors_of(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
