"""The model of a dry run, changed by a variant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from sysbench.core.errors import ModelError
from sysbench.core.predict.closed_form import COMMUNICATION
from sysbench.core.predict.dry_run_client import NO_HEAD, NO_LAYER, TrainingVariant
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.worker.dry_run.storages import Place
from sysbench.core.worker.workloads.stepped_workload import local_shard, weight_dtype

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from sysbench.core.worker.dry_run.storages import StorageTracker
    from sysbench.core.worker.ranks.layout import Parallelize
    from sysbench.core.worker.ranks.pipeline import PlayedPipeline
    from sysbench.core.worker.ranks.strategies import Bucket


@contextmanager
def _replace(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute inside ``with``; the only place of the dry run that patches torch.

    FSDP2 refuses meta parameters and resizes storages without an operation, divided tensors compute
    shapes of the whole by operations that no rank runs, optimizers choose kernels by the type of
    the device, and a generator's state is made by no operator: none has a hook.
    """
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def fused_kernels() -> Iterator[None]:
    """Let a user's optimizers choose fused kernels on meta tensors, as they do on a device."""
    chooser, name = (
        sys.modules[torch.optim.Optimizer.__module__],
        "_get_fused_kernels_supported_devices",
    )
    devices = ["meta", *getattr(chooser, name)()]
    with _replace(chooser, name, lambda: devices):
        yield


@contextmanager
def generator_states(spec: RunSpec) -> Iterator[None]:
    """Let the host's generator give its state, which recomputed layers keep, as a meta tensor."""
    if spec.on_cuda or not spec.checkpoint:  # the state is in no memory of CUDA
        yield
        return
    state = torch.get_rng_state()
    with (
        _replace(torch, "get_rng_state", lambda: torch.empty_like(state, device="meta")),
        _replace(torch, "set_rng_state", lambda state: None),
    ):
        yield


@contextmanager
def fake_process_group(world: World, rank: int) -> Iterator[None]:
    """Fake process group of that size, with this process as one rank; none for one device."""
    if world.size == 1:
        yield
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group  # lazy: FSDP takes a second
    from torch.distributed.pipelining import schedules  # lazy: as above
    from torch.distributed.tensor._sharding_prop import ShardingPropagator  # lazy: as above

    whole_shapes = ShardingPropagator._propagate_tensor_meta_non_cached

    def untracked(*arguments: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return whole_shapes(*arguments)

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world.size)
    try:
        group = _fsdp_param_group.FSDPParamGroup
        with (
            _replace(group, "_validate_no_meta_params", lambda self: None),
            _replace(ShardingPropagator, "_propagate_tensor_meta_non_cached", untracked),
            _replace(schedules, "_batch_p2p", _sent),
        ):
            yield
    finally:
        dist.destroy_process_group()


class _Sent:
    """A transfer that moves nothing, and has its tensor until nobody has the transfer."""

    def __init__(self, operation: dist.P2POp) -> None:
        self._tensor = operation.tensor

    def wait(self) -> None:
        """Return, still with the tensor, as after a transfer that was not batched."""


def _sent(operations: Sequence[dist.P2POp], desc: str | None = None) -> list[_Sent]:
    """Transfers of a stage at a time; a batch that goes both ways has no tensors."""
    is_alone = len({one.op for one in operations}) == 1
    return [_Sent(one) for one in operations] if is_alone else []


class Transfer:
    """Transfers of ``fully_shard``, DistributedDataParallel and stages that move nothing.

    Attributes:
        tracker: Gets their buffers as such.
        place_of: Place of a module by name.
        ranks: Number of ranks that DistributedDataParallel adds.
    """

    tracker: StorageTracker | None = None
    place_of: Callable[[str], Place] = partial(Place, 0)
    ranks: int = 1

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        buffer = torch.empty(*size, dtype=dtype, device="meta")
        if self.tracker is not None:
            self.tracker.own(buffer, COMMUNICATION)
        return buffer

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **_: Any) -> None:
        pair = output_tensor.nbytes, input_tensor.nbytes
        if self.tracker is not None:
            kind = "all-gather" if pair[0] > pair[1] else "reduce-scatter"
            self.tracker.count_sent(kind, max(pair), group.size())

    def reduce_in_block(self, block: FSDPModule, name: str) -> None:
        """Have gradients that a stage reduces after all backwards counted in their block."""

        def run(reduce: Callable[..., None], *arguments: Any) -> None:
            if self.tracker is None:
                reduce(*arguments)
            else:
                with self.tracker.at(self.place_of(name)):
                    reduce(*arguments)

        for group in block._get_fsdp_state()._fsdp_param_groups:
            group.post_backward = partial(run, group.post_backward)  # type: ignore[method-assign]

    def send(self, tensor: Tensor) -> None:
        """Count what a stage sends to another one."""
        if self.tracker is not None:
            self.tracker.count_sent("send", tensor.nbytes, 2)

    def all_reduce(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """What DistributedDataParallel waits for."""
        if self.tracker is not None:
            self.tracker.count_sent("all-reduce", bucket.buffer().nbytes, self.ranks)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


def real_mesh(world: World) -> DeviceMesh:
    """The mesh of all ranks, whose own tensors have data, inside `fake_process_group`."""
    from sysbench.core.worker.ranks.layout import make_mesh  # lazy: FSDP takes a second

    with _disable_current_modes(), torch.device("cpu"):
        return make_mesh(world)


@dataclass(frozen=True)
class Division:
    """What a rank runs.

    Attributes:
        transfer: Its collectives.
        pipeline: Its stages of the pipeline; None without one.
        loss_context: What each step runs in.
    """

    model: nn.Module
    transfer: Transfer
    pipeline: PlayedPipeline | None = None
    loss_context: Callable[[], AbstractContextManager[None]] = nullcontext


def divide(
    model: nn.Module,
    spec: RunSpec,
    variant: TrainingVariant,
    loss: Any,
    parallelize: Parallelize | None,
) -> Division:
    """Divide the model over the ranks of a fake process group.

    Args:
        loss: Loss of the outputs and targets of a pipeline's micro-batch.
        parallelize: See `divided`.

    Raises:
        ModelError: The model cannot be divided so.
    """
    from torch.distributed.fsdp import FSDPModule  # lazy: FSDP takes a second

    from sysbench.core.worker.ranks.layout import (  # lazy: as above
        DTYPES,
        attend_in_ring,
        divided,
        divided_loss,
        make_experts_mesh,
        make_mesh,
        make_ring,
    )
    from sysbench.core.worker.ranks.pipeline import (  # lazy: as above
        PlayedPipeline,
        PlayedStage,
        cut_stages,
    )
    from sysbench.core.worker.ranks.tensor_plans import named_blocks  # lazy: as above

    world, transfer = variant.world, Transfer()
    transfer.ranks = world.dp
    with _disable_current_modes(), torch.device("cpu"):  # the mesh needs real tensors
        mesh, ring, experts = make_mesh(world), make_ring(world), make_experts_mesh(world)
    rank = world.coordinates(variant.rank)["pp"]
    parts: dict[int, nn.Module] = {0: model}
    if ring is not None:
        attend_in_ring(model, ring, on_cuda=spec.on_cuda)
    if world.pp > 1:
        parts = cut_stages(model, world, rank, 0 if spec.is_own else spec.layers)
    for number, (index, part) in enumerate(parts.items()):
        blocks = named_blocks(part) if world.pp > 1 else {}
        parts[index] = part = divided(part, world, mesh, transfer, experts, parallelize)
        within = tuple(f"{name}." for name in blocks)
        for name, module in part.named_modules():
            if isinstance(module, FSDPModule):
                _gather_on_meta(module)
                if f"{name}.".startswith(within):
                    path = f"{number}.{name}" if world.stages > 1 else name
                    transfer.reduce_in_block(module, path)
        if isinstance(part, nn.parallel.DistributedDataParallel):
            # The fake group's result is no tensor. A lambda, since DDP checks annotations.
            part.register_comm_hook(None, lambda _, bucket: transfer.all_reduce(bucket))
    loss_context = partial(divided_loss, world)
    if world.pp == 1:
        return Division(parts[0], transfer, loss_context=loss_context)
    owner: Any = model
    width = owner.config.hidden_size if spec.is_own else spec.d_model
    shape = spec.batch // world.microbatches, world.tokens(spec.context), width
    dtype = DTYPES[world.params] or weight_dtype(spec)
    hidden = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
    stages = [
        PlayedStage(
            part,
            index,
            world.all_stages,
            hidden.device,
            hidden,
            hidden,
            group=mesh["pp"].get_group(),
        )
        for index, part in parts.items()
    ]
    for stage in stages:
        stage.send = transfer.send
    whole = nn.ModuleList(parts.values()) if world.stages > 1 else stages[0].submod
    pipeline = PlayedPipeline(stages, world, loss, variant.short)
    return Division(whole, transfer, pipeline, loss_context)


def whole_gradients(model: nn.Module) -> Iterator[Tensor]:
    """Gradients that ``fully_shard`` adds up over micro-batches, before it reduces them."""
    for module in model.modules():
        state: Any = getattr(module, "_get_fsdp_state", None)
        for group in () if state is None else state()._fsdp_param_groups:
            gradients = (one.unsharded_accumulated_grad for one in group.fsdp_params)
            yield from (local_shard(one) for one in gradients if one is not None)


def _on_meta(make: Callable[..., None]) -> Callable[..., None]:
    """The function, with the last of its arguments as a device without data."""
    return lambda *sizes: make(*sizes[:-1], torch.device("meta"))


def _gather_on_meta(part: FSDPModule) -> None:
    """Have casts before a transfer made without data; they are on the mesh's device otherwise."""
    for group in part._get_fsdp_state()._fsdp_param_groups:
        for parameter in group.fsdp_params:
            parameter.device = torch.device("meta")
            if group._all_gather_process_group.size() == 1:  # it gathers without `Transfer`
                make = parameter.init_all_gather_outputs
                vars(parameter)[make.__name__] = _on_meta(make)


@contextmanager
def track_resizes(tracker: StorageTracker, world: World) -> Iterator[None]:
    """Track allocations that ``fully_shard`` makes without an operation.

    It frees and reallocates gathered weights by resizing their storage.
    """
    if world.size == 1:
        yield
        return
    from torch.distributed.fsdp._fully_shard import (  # lazy: FSDP takes a second
        _fsdp_param,
        _fsdp_param_group,
    )

    def track(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def resize_and_track(tensor: Tensor) -> None:
            resize(tensor)
            tracker.resized(tensor)

        return resize_and_track

    with ExitStack() as stack:
        for owner, name in (
            (_fsdp_param, "alloc_storage"),
            (_fsdp_param_group, "alloc_storage"),  # of a group of one rank
            (_fsdp_param, "free_storage"),
        ):
            if hasattr(owner, name):
                stack.enter_context(_replace(owner, name, track(getattr(owner, name))))
        yield


SCALE = 2.0
"""LoRA's alpha over rank; does not affect memory."""


def adapt(model: nn.Module, rank: int) -> None:
    """Freeze the model and add LoRA adapters to its linear layers, except the head.

    If convolutions hold more weights than these layers, they get adapters, too. Adapters have the
    layer's dtype. Weights outside of both, such as fused experts, stay frozen.

    Raises:
        ModelError: The model has no such layer.
    """
    model.requires_grad_(False)
    linear = [layer for layer in model.modules() if _widths(layer) is not None]
    convolutions = [layer for layer in model.modules() if _is_dense_convolution(layer)]
    heads = _vocabulary_layers(model) or _last_if_unused(linear, convolutions)
    layers = [layer for layer in linear if all(layer is not head for head in heads)]
    if _weights_of(convolutions) > _weights_of(layers):
        layers += convolutions
    if not layers:
        raise ModelError(NO_LAYER)
    for layer in layers:
        down, up = _adapters(layer, rank)
        layer.add_module("lora_A", down)
        layer.add_module("lora_B", up)
        layer.register_forward_hook(_add_adapter)


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _is_dense_convolution(layer: nn.Module) -> bool:
    return isinstance(layer, CONVOLUTIONS) and layer.groups == 1


def _weights_of(layers: Sequence[Any]) -> int:
    return sum(layer.weight.numel() for layer in layers)


def _last_if_unused(linear: Sequence[Any], convolutions: Sequence[Any]) -> Sequence[Any]:
    """The last linear layer if no layer has inputs of its width: then it makes the output."""
    used = {widths[0] for layer in linear if (widths := _widths(layer)) is not None}
    used |= {layer.in_channels for layer in convolutions}
    return [layer for layer in linear[-1:] if layer.weight.shape[0] not in used]


def _vocabulary_layers(model: nn.Module) -> list[nn.Module]:
    """Linear layers with as many outputs as an embedding has rows."""
    tables = {one.num_embeddings for one in model.modules() if isinstance(one, nn.Embedding)}
    return [
        layer
        for layer in model.modules()
        if (widths := _widths(layer)) is not None and widths[1] in tables
    ]


def _widths(layer: Any) -> tuple[int, int] | None:
    """Input and output widths of a linear layer; None for other modules."""
    if type(layer) is nn.Linear:
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D" and isinstance(layer.weight, Tensor):
        width_in, width_out = layer.weight.shape  # transformers' linear layer of GPT-2
        return width_in, width_out
    return None


def _adapters(layer: Any, rank: int) -> tuple[nn.Module, nn.Module]:
    """Both factors of an adapter; of a convolution the second one has a kernel of one element."""
    options: dict[str, Any] = {
        "bias": False,
        "device": layer.weight.device,
        "dtype": layer.weight.dtype,
    }
    widths = _widths(layer)
    if widths is not None:
        width_in, width_out = widths
        return nn.Linear(width_in, rank, **options), nn.Linear(rank, width_out, **options)
    same = {
        name: getattr(layer, name)
        for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    }
    down = type(layer)(layer.in_channels, rank, **same, **options)
    return down, type(layer)(rank, layer.out_channels, 1, **options)


def _add_adapter(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    result: Tensor = output + layer.lora_B(layer.lora_A(inputs[0])) * SCALE
    return result


def chunk_loss(model: nn.Module, chunks: int) -> None:
    """Let the output layer see the first part of the tokens.

    What is alive then is what a loss in parts has: logits of one part, the gradient of all hidden
    states, and that of the layer's weight once.

    Raises:
        ModelError: No layer has the vocabulary as its outputs.
    """
    heads = _vocabulary_layers(model)
    if not heads:
        raise ModelError(NO_HEAD)

    def first_part(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *others = inputs
        return hidden[..., : -(-hidden.shape[-2] // chunks), :], *others

    heads[-1].register_forward_pre_hook(first_part)


def vary(
    model: nn.Module,
    spec: RunSpec,
    variant: TrainingVariant,
    loss: Any = None,
    parallelize: Parallelize | None = None,
) -> Division:
    """Change the model in place, inside `fake_process_group`; for the arguments see `divide`.

    Raises:
        ModelError: The variant does not apply to the model.
    """
    if variant.lora_rank:
        adapt(model, variant.lora_rank)
    if variant.loss_chunks > 1:
        chunk_loss(model, variant.loss_chunks)
    if variant.world.size == 1:
        return Division(model, Transfer())
    return divide(model, spec, variant, loss, parallelize)
