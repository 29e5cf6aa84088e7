"""Division of a model over the ranks of a mesh, by torch's own modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from sysbench.core.errors import ModelError
from sysbench.core.spec.world import World
from sysbench.core.worker.workloads.attention import CausalSelfAttention
from sysbench.core.worker.workloads.factory import a_kind, guarded
from sysbench.core.worker.workloads.model_workload import blocks_of
from sysbench.core.worker.workloads.transformer import Norm, Transformer

Plan = dict[str, ParallelStyle]
MESH_NAMES = ("pp", "replica", "dp", "tp")
TOKENS = Shard(1)
"""Residuals of shape (batch, context, d_model), divided by tokens."""
DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEAD = "colwise_gather_output"
STYLES: dict[str, Callable[[World], ParallelStyle]] = {
    "colwise": lambda _: ColwiseParallel(),
    "rowwise": lambda _: RowwiseParallel(),
    HEAD: lambda world: _head(world),
    "embedding_rowwise": lambda _: RowwiseParallel(input_layouts=Replicate()),
}
"""Styles of transformers' plans that torch has, too."""


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
    """The mesh of experts: FSDP shards them over ``dp``, which is without ``ep``; None without."""
    if world.ep == 1:
        return None
    sizes = (world.replicas, world.shards // world.ep, world.ep)
    return init_device_mesh(kind, sizes, mesh_dim_names=("replica", "dp", "ep"))


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
        k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
        return ring(q, k, v).transpose(1, 2).contiguous(), None

    library.AttentionInterface.register("ring", attend)
    model.config._attn_implementation = "ring"


DISPATCH = "ep_dispatch_experts"
"""Style of transformers' plans for modules that take tokens, indices of experts, and weights."""
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
        for name, one in experts.named_parameters(recurse=False):
            vars(experts)[name] = one.to_local()  # type: ignore[attr-defined]
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
        for name, _ in experts.named_parameters(recurse=False):
            del vars(experts)[name]
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
    plan: dict[str, str] = getattr(model, "ep_plan", None) or {}
    patterns = [pattern for pattern, style in plan.items() if style == DISPATCH]
    found = [
        module
        for name, module in model.named_modules()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not found:
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


class Parts(NamedTuple):
    """Names of a model's modules: its list of blocks, and what only the first and last stage run.

    A stage runs the model's own forward, in which an absent part returns what it gets.
    """

    blocks: str
    first: tuple[str, ...]
    last: tuple[str, ...]


BUILT_IN = Parts("blocks", ("embedding",), ("norm", "head"))
LLAMA = Parts("model.layers", ("model.embed_tokens",), ("model.norm", "lm_head"))
LLAMA_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
"""Modules of a layer of Llama, Mistral, Qwen 2 and 3, and others."""


def parts_to_cut(model: nn.Module) -> Parts | None:
    """Names of the parts of a built-in model, or of one like Llama in transformers; else None."""
    if isinstance(model, Transformer):
        return BUILT_IN
    layers = getattr(getattr(model, "model", None), "layers", ())
    alike = [{*dict(layer.named_children())} == LLAMA_LAYER for layer in layers]
    return LLAMA if alike and all(alike) and hasattr(model, "lm_head") else None


def named_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a model that can be cut, by name."""
    names = parts_to_cut(model)
    if names is None:
        return {}
    blocks = model.get_submodule(names.blocks).named_children()
    return {f"{names.blocks}.{key}": block for key, block in blocks}


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
        _divide_layers(model, world, mesh)
    if world.dp * world.cp == 1:
        return model
    if experts is not None:
        shards = experts["replica", "dp"] if world.replicas > 1 else experts["dp"]
        for part in divide_experts(model, experts, None if transfer is None else world.loads):
            is_few = world.shards > len(next(part.parameters()))
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
            f"world.{changed[0]}: left out, as the model divides itself over "
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


def _divide_layers(model: nn.Module, world: World, mesh: DeviceMesh) -> None:
    built_in = isinstance(model, Transformer)
    plan = _built_in_plan(world) if built_in else _own_plan(model, world)
    named = {
        name: style
        for pattern, style in plan.items()
        for name, module in model.named_modules()
        if fnmatchcase(name, pattern)
        # An absent part of a stage has nothing to divide, but what it gets may be prepared.
        and (isinstance(style, PrepareModuleInput) or not isinstance(module, nn.Identity))
    }
    if not named:
        names = [name for name, _ in model.named_modules() if name]
        raise ModelError(
            f"the model's tensor-parallel plan names none of its modules: {next(iter(plan))!r} and "
            f"others must match names such as {names[-1]!r}"
        )
    parallelize_module(model, mesh["tp"], named)
    if isinstance(model, Transformer) and not world.sequence:
        for module in model.modules():
            if isinstance(module, Norm):  # optimizers take no mixture with undivided tensors
                # Their results are used; the annotations say None.
                distribute_module(module, mesh["tp"], None, _as_whole, _as_local)  # type: ignore[arg-type]


def _built_in_plan(world: World) -> Plan:
    """Columns of the first matrices and rows of the second, as Megatron-LM (arXiv:1909.08053).

    With ``sequence`` norms see a part of the tokens each (arXiv:2205.05198).
    """
    plan: Plan = {f"blocks.*.{name}": ColwiseParallel() for name in COLUMNS}
    residual: Any = TOKENS if world.sequence else Replicate()
    plan |= {f"blocks.*.{name}": RowwiseParallel(output_layouts=residual) for name in ROWS}
    plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)
    plan["head"] = _head(world, residual)
    if world.sequence:
        plan |= {name: SequenceParallel() for name in ("norm", "blocks.*.*_norm")}
        plan["blocks.*.ffn"] = _gathered(1)
        plan["blocks.*.attention"] = _gathered(4)
    return plan


def _head(world: World, layout: Any = None) -> ParallelStyle:
    if world.loss_parallel:
        return ColwiseParallel(input_layouts=layout, use_local_output=False)
    return ColwiseParallel(input_layouts=layout, output_layouts=Replicate())


def divided_loss(world: World) -> AbstractContextManager[None]:
    """Compute cross-entropy and its gradient on logits divided by words, with `loss_parallel`."""
    return loss_parallel() if world.loss_parallel else nullcontext()


def _as_whole(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)


def _as_local(_: nn.Module, output: Any, mesh: DeviceMesh) -> Tensor:
    local: Tensor = output.to_local()
    return local


COLUMNS = ("attention.q", "attention.k", "attention.v", "ffn.w1", "ffn.w3")
ROWS = ("attention.out", "ffn.w2")


def _gathered(arguments: int) -> ParallelStyle:
    """The first of these arguments with all tokens."""
    rest = (None,) * (arguments - 1)
    return PrepareModuleInput(
        input_layouts=(TOKENS, *rest), desired_input_layouts=(Replicate(), *rest)
    )


def _own_plan(model: nn.Module, world: World) -> Plan:
    """The plan that a model of transformers has."""
    styles: dict[str, str] = getattr(model, "tp_plan", None) or {}
    if not styles:
        raise ModelError(
            "the model has no tensor-parallel plan: set tp=1, or give it an attribute tp_plan with "
            "a style for each pattern of module names"
        )
    unknown = sorted({*styles.values()} - STYLES.keys())
    if unknown:
        raise ModelError(
            f"the model's tp_plan has styles that are not played: {', '.join(unknown)}; set tp=1, "
            f"or use {', '.join(STYLES)}"
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(getattr(model, "config", None), name, None)
        if heads and heads % world.tp:
            raise ModelError(f"world.tp = {world.tp}: a divisor of {name}={heads}")
    if world.loss_parallel and HEAD not in styles.values():
        raise ModelError(f"world.loss_parallel: the model's tp_plan divides no head, by {HEAD!r}")
    plan = {pattern: STYLES[style](world) for pattern, style in styles.items()}
    return plan | (_llama_tokens(model, world) if world.sequence else {})


def _llama_tokens(model: nn.Module, world: World) -> Plan:
    """Styles that divide the residuals of a language model like Llama by tokens, as torchtitan's.

    None are returned for a model whose layers have other parts. Embeddings are divided, too. They
    stay DTensors, since the model takes the number of its tokens from their shape.
    """
    if parts_to_cut(model) is not LLAMA:
        return {}
    rowwise = RowwiseParallel(output_layouts=TOKENS, use_local_output=False)
    embedding: ParallelStyle = RowwiseParallel(
        input_layouts=Replicate(), output_layouts=TOKENS, use_local_output=False
    )
    if isinstance(model.get_submodule(LLAMA.first[0]), nn.Identity):  # it returns what it gets
        embedding = PrepareModuleInput(
            input_layouts=TOKENS, desired_input_layouts=TOKENS, use_local_output=False
        )
    return {
        "model.embed_tokens": embedding,
        "model.layers.*.self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": TOKENS},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "model.layers.*.self_attn.o_proj": rowwise,
        "model.layers.*.mlp": _gathered(1),
        "model.layers.*.mlp.down_proj": rowwise,
        "model.layers.*_layernorm": SequenceParallel(),
        "model.norm": SequenceParallel(),
        "lm_head": _head(world, TOKENS),
    }


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
