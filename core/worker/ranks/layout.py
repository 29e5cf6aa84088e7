"""Division of a model over the ranks of a mesh, by torch's own modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from sysbench.core.errors import ModelError
from sysbench.core.spec.world import World
from sysbench.core.worker.ranks.tensor_plans import (
    DISPATCH,
    LLAMA,
    divide_layers,
    named_blocks,
    named_experts,
    parts_to_cut,
    use_local,
    use_own,
)
from sysbench.core.worker.workloads.attention import CausalSelfAttention
from sysbench.core.worker.workloads.factory import a_kind, guarded
from sysbench.core.worker.workloads.model_workload import blocks_of

MESH_NAMES = ("pp", "replica", "dp", "tp")
DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_mesh(world: World, kind: str = "cpu") -> DeviceMesh:
    """The mesh of all ranks, whose dimensions are `MESH_NAMES`, on a kind of device.

    FSDP shards over ``cp``, too: both are in the dimension ``dp``.
    """
    sizes = (world.pp, world.replicas, world.shards, world.tp)
    return init_device_mesh(kind, sizes, mesh_dim_names=MESH_NAMES)


def make_ring(world: World, kind: str = "cpu") -> ProcessGroup | None:
    """The ranks that have the other parts of this rank's samples; None without ``cp``."""
    if world.cp == 1:
        return None
    mesh = init_device_mesh(
        kind, (world.pp * world.dp, world.cp, world.tp), mesh_dim_names=("outer", "cp", "tp")
    )
    return mesh["cp"].get_group()


def make_experts_mesh(world: World, kind: str = "cpu") -> DeviceMesh | None:
    """The mesh of experts, as torchtitan's; None without ``ep``.

    All ranks of a stage see other tokens. Neighbours have different experts, and FSDP shards each
    rank's over ``dp``, the ranks that have the same ones.
    """
    if world.ep == 1:
        return None
    sizes = (world.pp, world.replicas, world.shards * world.tp // world.ep, world.ep)
    return init_device_mesh(kind, sizes, mesh_dim_names=("pp", "replica", "dp", "ep"))


class RingKernel(NamedTuple):
    """A kernel of causal attention for a block of keys.

    Attributes:
        options: Arguments of the forward.
        gradient: Name of the backward's first argument.
        rest: Names under which the backward takes the forward's results after the second.
        given: Further arguments of the backward.
    """

    forward: Callable[..., Any]
    options: dict[str, Any]
    backward: Callable[..., Any]
    gradient: str
    rest: tuple[str, ...]
    given: dict[str, Any]


RING_MODULE = "torch.distributed.tensor.experimental._context_parallel._attention"


def ring_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Torch's ring attention, forward and backward.

    Both are private: ``context_parallel``, which is public, refuses the CPU.

    Raises:
        ModelError: This version of torch has them in another place.
    """
    try:
        module: Any = importlib.import_module(RING_MODULE)
        return module._templated_ring_attention, module._templated_ring_attention_backward
    except (ImportError, AttributeError) as error:
        raise ModelError(
            "cp needs torch's ring attention where torch 2.13 has it, and torch "
            f"{torch.__version__} does not: {error}"
        ) from error


_aten = torch.ops.aten
NO_DROPOUT = {"dropout_p": 0.0, "scale": None}
CPU_RING = RingKernel(
    _aten._scaled_dot_product_flash_attention_for_cpu,
    NO_DROPOUT,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,
    "grad_out",
    (),
    NO_DROPOUT,
)
"""torch's own ring has no kernel of the CPU: ``context_parallel`` refuses it."""
FLASH_RING = RingKernel(
    _aten._scaled_dot_product_flash_attention,
    NO_DROPOUT,
    _aten._scaled_dot_product_flash_attention_backward,
    "grad_out",
    ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"),
    NO_DROPOUT,
)
EFFICIENT_RING = RingKernel(
    _aten._scaled_dot_product_efficient_attention,
    {**NO_DROPOUT, "attn_bias": None, "compute_log_sumexp": True},
    _aten._scaled_dot_product_efficient_attention_backward,
    "grad_out_",
    ("philox_seed", "philox_offset"),
    {**NO_DROPOUT, "attn_bias": None, "grad_input_mask": (True, True, True, False)},
)


def ring_kernel(dtype: torch.dtype, *, on_cuda: bool) -> RingKernel:
    """The kernel that ``context_parallel`` takes on CUDA, and the CPU's in the same ring."""
    if not on_cuda:
        return CPU_RING
    return EFFICIENT_RING if dtype == torch.float32 else FLASH_RING


class RingAttention(torch.autograd.Function):
    """Causal attention to the keys of all ranks of a group, by torch's ring."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup, kernel: RingKernel
    ) -> Tensor:
        """Shape (batch, heads, tokens, head_dimension) of this rank to the same."""
        attend, _ = ring_functions()
        mixed, weights, *rest = attend(
            group, 2, kernel.forward, q, k, v, is_causal=True, **kernel.options
        )
        ctx.save_for_backward(q, k, v, mixed, weights)
        ctx.group, ctx.kernel = group, kernel
        ctx.rest = dict(zip(kernel.rest, rest, strict=False))
        return cast("Tensor", mixed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        q, k, v, mixed, weights = ctx.saved_tensors
        kernel = ctx.kernel
        _, attend_backward = ring_functions()
        found = attend_backward(
            ctx.group,
            2,
            kernel.backward,
            gradient,
            kernel.gradient,
            q,
            k,
            v,
            mixed,
            weights,
            True,
            **ctx.rest,
            **kernel.given,
        )
        return (*found[:3], None, None)


def attend_in_ring(model: nn.Module, group: ProcessGroup, *, on_cuda: bool) -> None:
    """Let each layer attend to the tokens of all ranks of the group.

    Raises:
        ModelError: This version of torch has no such ring, or the model has other layers.
    """
    ring_functions()

    def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed: Tensor = RingAttention.apply(q, k, v, group, ring_kernel(q.dtype, on_cuda=on_cuda))  # type: ignore[no-untyped-call]
        return mixed

    names = parts_to_cut(model)
    if names is None:
        raise ModelError(f"cp = {group.size()}: 1 with this model, whose layers are not Llama's")
    if names is LLAMA:
        _attend_by(model, ring)
    for module in model.modules():
        if isinstance(module, CausalSelfAttention):
            module.ring = ring


def _attend_by(model: Any, ring: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Let a model of transformers attend by a function.

    Keys and values are repeated for the heads that share them, as torchtitan does before its ring.
    """
    library: Any = importlib.import_module("transformers")

    def attend(
        module: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: object,
        sliding_window: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        if sliding_window:
            raise ModelError("cp = 1 with sliding windows, which torch's ring does not support")
        if q.shape[-1] != v.shape[-1]:
            raise ModelError("cp = 1 with values of another width than keys, as in DeepSeek's")
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
        return ring(q, k, v).transpose(1, 2).contiguous(), None

    library.AttentionInterface.register("ring", attend)
    model.config._attn_implementation = "ring"


Loads = Callable[[int], list[int]]
"""Tokens that a rank sends to each one, of the number of all."""


class ExpertDispatch:
    """Transfers of tokens to the ranks of their experts, and back.

    As torchtitan's ``HFExpertParallel``: a token is sent once for each of its experts, with its
    weight, in the order of the experts. The experts see a token of one expert each.

    Args:
        group: Ranks that have a part of the experts each.
        each: Number of experts of a rank.
        loads: In place of what the indices say, which tensors without data do not have.
    """

    def __init__(self, group: ProcessGroup, each: int, loads: Loads | None) -> None:
        self._group, self._each, self._loads = group, each, loads
        self._sent: list[tuple[list[int], list[int], Tensor, int]] = []

    def send(self, experts: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What this rank's experts get instead; until `combine` they see their own weights."""
        use_local(experts)
        hidden, index, weights = inputs
        chosen, each_token, ranks = index.reshape(-1), index.shape[1], self._group.size()
        order = torch.argsort(chosen, stable=True)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        countable = chosen.float() if chosen.is_cpu else chosen.int()
        last = ranks * self._each - 1
        counts = torch.histc(countable, last + 1, 0, last)
        received = _exchanged(counts, None, None, self._group)
        if self._loads is not None:
            to = self._loads(len(chosen))
            of = [to[self._group.rank()]] * ranks
        else:
            to, of = (one.view(ranks, -1).sum(1).int().tolist() for one in (counts, received))
        self._sent = [(to, of, back, each_token)]
        local = torch.arange(self._each, device=order.device).repeat(ranks)
        local = torch.repeat_interleave(local, received.long(), output_size=sum(of))
        tokens = hidden[order // each_token]
        weights = weights.reshape(-1)[order].unsqueeze(1)
        tokens, weights = (_exchanged(one, of, to, self._group) for one in (tokens, weights))
        return tokens, local.unsqueeze(1), weights

    def combine(self, experts: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """Sums of the experts' results for this rank's tokens."""
        use_own(experts)
        to, of, back, each_token = self._sent.pop()
        returned = _exchanged(output, to, of, self._group)[back]
        return returned.view(-1, each_token, output.shape[1]).sum(1)


def _exchanged(
    given: Tensor, of: list[int] | None, to: list[int] | None, group: ProcessGroup
) -> Tensor:
    exchanged: Tensor = collectives.wait_tensor(  # type: ignore[no-untyped-call]
        collectives.all_to_all_single(given, of, to, group)
    )
    return exchanged


def divide_experts(model: nn.Module, mesh: DeviceMesh, loads: Loads | None) -> list[nn.Module]:
    """Leave this rank its experts; return the modules that have them.

    Raises:
        ModelError: The model names no experts, or their number is no multiple of the ranks.
    """
    if not hasattr(collectives, "wait_tensor_backward"):
        raise ModelError(
            f"ep needs transfers with gradients, as in torch 2.13; here is {torch.__version__}"
        )
    found = [*named_experts(model).values()]
    is_stage = mesh["pp"].size() > 1  # whose layers may have none
    if not found and not (is_stage and getattr(model, "ep_plan", None)):
        raise ModelError(
            "the model names no experts: set ep=1, or give it an attribute ep_plan with the style "
            f"{DISPATCH!r} for a pattern of their modules' names"
        )
    group = mesh["ep"].get_group()
    for module in found:
        named = [*module.named_parameters(recurse=False)]
        count = len(named[0][1])
        if count % group.size():
            raise ModelError(f"world.ep = {group.size()}: a divisor of the {count} experts a layer")
        each = count // group.size()
        for name, one in named:
            part = one.detach()[each * group.rank() :][:each].clone()
            whole = DTensor.from_local(part, mesh["ep"], [Shard(0)], run_check=False)
            module.register_parameter(name, nn.Parameter(whole, one.requires_grad))
        module.num_experts = each
        dispatch = ExpertDispatch(group, each, loads)
        module.register_forward_pre_hook(dispatch.send)
        module.register_forward_hook(dispatch.combine)
    return found


Parallelize = Callable[[nn.Module, DeviceMesh], nn.Module]


def divided(
    model: nn.Module,
    world: World,
    mesh: DeviceMesh,
    transfer: Any = None,
    experts: DeviceMesh | None = None,
    parallelize: Parallelize | None = None,
) -> nn.Module:
    """The model of this rank, divided in place; return what to call.

    Args:
        transfer: In place of the collectives of ``fully_shard``, without data; None for torch's.
        experts: See `make_experts_mesh`.
        parallelize: The user's function, which divides the model instead.

    Raises:
        ModelError: The model cannot be divided so.
    """
    if parallelize is not None:
        return _divided_by(parallelize, model, world, mesh, transfer)
    if world.tp > 1:
        divide_layers(model, world, mesh)
    if world.dp * world.cp == 1 and experts is None:
        return model
    if experts is not None:
        shards = experts["replica", "dp"] if world.replicas > 1 else experts["dp"]
        for part in divide_experts(model, experts, None if transfer is None else world.loads):
            is_few = world.shards * world.tp > len(next(part.parameters()))
            placed = Shard(1) if is_few else Shard(0)  # as torchtitan
            sharded = _shard(part, world, shards, transfer, lambda _, placed=placed: placed)
            sharded.set_gradient_divide_factor(world.dp * world.cp)
    if world.data == "ddp":
        return nn.parallel.DistributedDataParallel(
            model, process_group=mesh["dp"].get_group(), broadcast_buffers=False, init_sync=False
        )
    shards = mesh["replica", "dp"] if world.replicas > 1 else mesh["dp"]
    _shard_blocks(model, world, shards, transfer)
    return model


OWN_DIVISIONS = {"dp", "tp", "data", "replicas"}
"""Keys that are allowed with a model's own `parallelize`: those that make the mesh."""


def _divided_by(
    parallelize: Parallelize, model: nn.Module, world: World, mesh: DeviceMesh, transfer: Any
) -> nn.Module:
    changed = [name for name in world.settings if name not in OWN_DIVISIONS]
    if changed:
        raise ModelError(
            f"world.{changed[0]}: leave it out, as the model divides itself over "
            f"the dimensions {', '.join(MESH_NAMES[1:])} of the mesh"
        )
    with guarded("parallelize()"):
        divided_model = parallelize(model, mesh)
    if not isinstance(divided_model, nn.Module):
        raise ModelError(f"parallelize() returned {a_kind(divided_model)}, not a torch.nn.Module")
    if transfer is not None:
        for module in divided_model.modules():
            if isinstance(module, FSDPModule):
                _set_transfer(module, transfer)
    return divided_model


def _set_transfer(sharded: FSDPModule, transfer: Any) -> None:
    sharded.set_custom_all_gather(transfer)
    sharded.set_custom_reduce_scatter(transfer)


def divided_loss(world: World) -> AbstractContextManager[None]:
    """Compute cross-entropy and its gradient on logits divided by words, with `loss_parallel`."""
    return loss_parallel() if world.loss_parallel else nullcontext()


def _shard_blocks(model: nn.Module, world: World, mesh: DeviceMesh, transfer: Any) -> None:
    # A stage may have one block, which repeats only in the whole model.
    blocks = [*named_blocks(model).values()] or blocks_of(model)
    if not blocks:
        raise ModelError("no blocks repeat in the model, so FSDP cannot gather them one by one")
    for part in (*blocks, model):
        _shard(part, world, mesh, transfer)


def _shard(
    part: nn.Module, world: World, mesh: DeviceMesh, transfer: Any, placement: Any = None
) -> FSDPModule:
    policy = MixedPrecisionPolicy(DTYPES[world.params], DTYPES[world.reduce])
    stays = None if world.reshard else False  # None: the model's own stay gathered, blocks' do not
    sharded = fully_shard(
        part,
        mesh=mesh,
        mp_policy=policy,
        reshard_after_forward=stays,
        shard_placement_fn=placement,
    )
    if transfer is not None:
        _set_transfer(sharded, transfer)
    return sharded
