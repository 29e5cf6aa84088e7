"""Base of the workloads that have steps: phases, a model, and one step at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import is_dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from sysbench.core.spec.choices import DtypeName
from sysbench.core.spec.spec import RunSpec

EnterPhase = Callable[[str], None]
"""Called with the name of each phase as it begins, and with ``""`` when the step is over."""


class StepError(Exception):
    """A step failed in ``phase``; the cause is chained."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase

    def __str__(self) -> str:
        return f"in the {self.phase} phase"


class TokenCache(Protocol):
    """What a model keeps of the tokens before the next one."""

    @property
    def words(self) -> str:
        """What it is, and how it keeps its length from step to step."""

    @property
    def tensors(self) -> list[Tensor]: ...

    @property
    def bytes_per_token(self) -> int | None:
        """Bytes that one more token of one sequence adds; None if unknown."""

    def rewind(self) -> None:
        """Go back to the length before the step: none in prefill, all but one token in decode."""


class MarkedCache:
    """A cache of a model's own classes, whose lengths and counts are set back before each step.

    Attributes:
        held: The object that the model works on; None before it is made.
    """

    held: Any = None

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._marks: list[Place] = []

    def mark(self) -> None:
        """Note what a step changes apart from contents; `rewind` goes back to it."""
        self._marks = marks_of(self.held)

    @property
    def tensors(self) -> list[Tensor]:
        found = tensors_in([value for *_, value in places_of(self.held)])
        return [one for one in found if one.dim() and not _is_count(one)]

    @property
    def bytes_per_token(self) -> int | None:
        if not self._marks:
            return None
        grown = sum(_growth(places[key], mark) for places, key, mark in self._marks)
        return grown // self._batch

    def rewind(self) -> None:
        for places, key, mark in self._marks:
            if (value := _reset(places[key], mark)) is not places[key]:
                places[key] = value


Place = tuple[Any, Any, Any]
"""A dictionary or list, a key of it, and the value there or its mark."""


def places_of(value: Any, _above: tuple[int, ...] = ()) -> Iterator[Place]:
    """Yield the places of tensors, their tuples, and numbers in a cache.

    It is searched through lists, tuples, dictionaries and attributes of objects; objects of torch
    and modules with parameters are no part of it.
    """
    if id(value) in _above or _is_foreign(value):
        return
    places = value if isinstance(value, (dict, list, tuple)) else getattr(value, "__dict__", {})
    above = (*_above, id(value))
    for key, each in [*(places.items() if isinstance(places, dict) else enumerate(places))]:
        has_tensors = isinstance(each, tuple) and any(isinstance(one, Tensor) for one in each)
        if has_tensors or isinstance(each, (Tensor, int)):
            if not isinstance(places, tuple):
                yield places, key, each
        else:
            yield from places_of(each, above)


def _is_foreign(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return next(value.parameters(), None) is not None
    is_of_torch = type(value).__module__.partition(".")[0] == "torch"
    return is_of_torch or isinstance(value, (type, ModuleType, FunctionType))


def marks_of(cache: Any) -> list[Place]:
    """Shapes of a cache's tensors and its numbers, with their places."""
    return [(places, key, _mark(value)) for places, key, value in places_of(cache)]


def _is_count(tensor: Tensor) -> bool:
    """Whether it counts tokens: an integer of a byte is a quantised key or value."""
    return not tensor.is_floating_point() and tensor.element_size() > 1


def _mark(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if _is_count(value) else value.shape
    return [_mark(each) for each in value] if isinstance(value, tuple) else value


def _reset(value: Any, mark: Any) -> Any:
    """The value with the lengths and counts of its mark."""
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(map(_reset, value, mark))
    if isinstance(mark, Tensor):
        return value.copy_(mark) if value.shape == mark.shape else mark.clone()
    if not isinstance(value, Tensor):
        return mark
    for dimension, size in enumerate(mark):
        if value.shape[dimension] != size:
            value = value.narrow(dimension, 0, size)
    return value


def _growth(value: Any, mark: Any) -> int:
    """Bytes by which tensors are larger than their marks."""
    if isinstance(value, tuple):
        return sum(map(_growth, value, mark))
    if isinstance(value, Tensor) and isinstance(mark, torch.Size):
        return value.nbytes - mark.numel() * value.element_size()
    return 0


class SteppedWorkload(ABC):
    """Workload that passes run step by step.

    A step's output is dropped before the next step, gradients become None at its end, and autocast
    is entered per step, as in a usual training loop.

    Attributes:
        phases: Names passed to ``enter`` during a step, in order.
        inputs: Tensors that live between steps, without the model's.
        optimizers: Those of a training step, in the order in which they step.
        loss: Last loss; reading its value synchronises.
    """

    phases: tuple[str, ...]
    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    loss: Tensor | None = None
    cache: TokenCache | None = None

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.device = torch.device(spec.device)
        torch.manual_seed(spec.seed)

    @property
    @abstractmethod
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def bare_model(self) -> nn.Module:
        """The model without what several ranks wrap around it."""
        return self.model

    @property
    def gathering(self) -> Sequence[nn.Module]:
        """Modules that have whole parameters during their forward only."""
        return ()

    def tag_sent(self, tag: Callable[[Tensor], None]) -> None:
        """Call ``tag`` with each buffer that is made for other ranks; one device has none."""
        return

    @property
    def cached(self) -> tuple[Tensor, ...]:
        """Tensors of the cache of keys and values, as they are now."""
        return () if self.cache is None else tuple(self.cache.tensors)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cache's storages: a tensor can be a part of one."""
        storages = (tensor.untyped_storage() for tensor in self.cached)
        return sum({one._cdata: one.nbytes() for one in storages}.values())

    @abstractmethod
    def _step(self, enter: EnterPhase) -> None:
        """Run one step; the last entered phase is the empty one."""

    @property
    def states(self) -> dict[Tensor, dict[str, object]]:
        """State of all optimizers by parameter."""
        return {key: state for each in self.optimizers for key, state in each.state.items()}

    def loss_value(self) -> float | None:
        """Value of the last loss; waits for the device. None without a loss."""
        return None if self.loss is None else self.loss.item()

    def step(self, enter: EnterPhase) -> None:
        """Run one step and call ``enter`` at each phase; never synchronises.

        Raises:
            StepError: The step failed.
        """
        failure = StepError("start")  # made now: it could not be allocated when out of memory

        def begin(phase: str) -> None:
            failure.phase = phase
            enter(phase)

        try:
            self._step(begin)
        except Exception as error:
            raise failure from error

    def _update(self, enter: EnterPhase) -> None:
        """Clip and update if the step has an optimizer; drop the model's gradients."""
        if self.optimizers:
            if self.spec.clip:
                enter("clip")
                clip_gradients(self.model.parameters(), self.spec.clip)
            enter("optimizer")
            for optimizer in self.optimizers:
                optimizer.step()
        enter("zero-grad")
        for parameter in self.model.parameters():
            parameter.grad = None

    @contextmanager
    def _casting(self) -> Iterator[None]:
        autocast: AbstractContextManager[object] = nullcontext()
        dtype = autocast_dtype(self.spec)
        if dtype is not None:
            autocast = torch.autocast(self.device.type, dtype)
        kernel: AbstractContextManager[object] = nullcontext()
        backend = self.spec.attention_row.backend
        if backend is not None:
            kernel = sdpa_kernel(SDPBackend.__members__[backend])
        with autocast, kernel:
            yield


def clip_gradients(parameters: Iterable[Tensor], most: float) -> None:
    """Scale gradients to a norm of at most ``most``, over all meshes on which they are divided.

    torch takes those of one mesh. As torchtitan: the norms of each mesh's make one of all.
    """
    meshes = defaultdict[object, list[Tensor]](list)
    for one in parameters:
        if one.grad is not None:
            meshes[getattr(one.grad, "device_mesh", None)].append(one)
    if len(meshes) < 2:
        for each in meshes.values():
            nn.utils.clip_grad_norm_(each, most)
        return
    norms: list[Any] = [
        nn.utils.get_total_norm([one.grad for one in each if one.grad is not None])
        for each in meshes.values()
    ]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in norms]
    norm = torch.linalg.vector_norm(torch.stack(whole))
    for each in meshes.values():
        nn.utils.clip_grads_with_norm_(each, most, norm)


def tensors_in(value: object) -> list[Tensor]:
    """Tensors of a nested structure in order; objects by their attributes."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        parts: Iterable[object] = value.values()
    elif isinstance(value, (list, tuple, set)):
        parts = value
    elif is_dataclass(value) or isinstance(value, SimpleNamespace):
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    else:
        return []
    return [tensor for part in parts for tensor in tensors_in(part)]


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a sharded tensor; other tensors unchanged."""
    shard_of: Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard_of


def parts_of_weight(tensor: Tensor) -> list[Tensor]:
    """The data and scales of a weight in blocks, or the tensor itself."""
    if hasattr(tensor, "_local_tensor") or not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in parts_of_weight(getattr(tensor, name))]


def bytes_of(parameters: Iterable[Tensor]) -> int:
    return sum(part.nbytes for one in parameters for part in parts_of_weight(one))


def shape_words(tensor: Tensor) -> str:
    """Format as ``int64 (4, 128)``."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def phases_of(spec: RunSpec) -> tuple[str, ...]:
    """Phases of a training step over token ids, in order."""
    if not spec.has_backward:
        return ("forward",)
    if spec.step == "forward+backward":
        return ("forward", "loss", "backward", "zero-grad")
    clip = ("clip",) if spec.clip else ()
    return ("forward", "loss", "backward", *clip, "optimizer", "zero-grad")


MakeOptimizer = Callable[[RunSpec, list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the spec's optimizer over these parameters."""


def optimizer_over(spec: RunSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The spec's optimizer over these parameters, with its usual settings."""
    if spec.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    return torch.optim.AdamW(
        parameters,
        lr=1e-4,
        foreach=spec.optimizer == "adamw-foreach",
        fused=spec.optimizer == "adamw-fused",
    )


def weight_dtype(spec: RunSpec) -> torch.dtype:
    """Dtype of parameters, gradients and optimizer state."""
    return _dtype(spec.precision_row.weights)


def autocast_dtype(spec: RunSpec) -> torch.dtype | None:
    """Dtype of matrix products under autocast; None without autocast."""
    name = spec.precision_row.autocast
    return None if name is None else _dtype(name)


def _dtype(name: DtypeName) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
