"""Division of a model over the ranks of a mesh, by torch's own modules."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from sysbench.core.errors import ModelError
from sysbench.core.spec.world import World
from sysbench.core.worker.workloads.model_workload import blocks_of
from sysbench.core.worker.workloads.transformer import Norm, Transformer

Plan = dict[str, ParallelStyle]
MESH_NAMES = ("pp", "replica", "dp", "tp")
TOKENS = Shard(1)
"""Residuals of shape (batch, context, d_model), divided by tokens."""
DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STYLES: dict[str, Any] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
}
"""Styles of transformers' plans that torch has, too."""


def make_mesh(world: World, kind: str = "cpu") -> DeviceMesh:
    """The mesh of all ranks, whose dimensions are `MESH_NAMES`, on a kind of device."""
    sizes = (world.pp, world.replicas, world.dp // world.replicas, world.tp)
    return init_device_mesh(kind, sizes, mesh_dim_names=MESH_NAMES)


def divided(model: nn.Module, world: World, mesh: DeviceMesh, transfer: Any = None) -> nn.Module:
    """The model of this rank, divided in place; return what to call.

    Args:
        transfer: In place of the collectives of ``fully_shard``; None for torch's.

    Raises:
        ModelError: The model cannot be divided so.
    """
    if world.tp > 1:
        _divide_layers(model, world, mesh)
    if world.dp == 1:
        return model
    if world.data == "ddp":
        return nn.parallel.DistributedDataParallel(
            model, process_group=mesh["dp"].get_group(), broadcast_buffers=False, init_sync=False
        )
    shards = mesh["replica", "dp"] if world.replicas > 1 else mesh["dp"]
    _shard_blocks(model, world, shards, transfer)
    return model


def _divide_layers(model: nn.Module, world: World, mesh: DeviceMesh) -> None:
    plan = _built_in_plan(world) if isinstance(model, Transformer) else _own_plan(model)
    named = {
        name: style
        for pattern, style in plan.items()
        for name, module in model.named_modules()
        if fnmatchcase(name, pattern) and not isinstance(module, nn.Identity)
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
    plan["head"] = ColwiseParallel(input_layouts=residual, output_layouts=Replicate())
    if world.sequence:
        plan |= {name: SequenceParallel() for name in ("norm", "blocks.*.*_norm")}
        plan["blocks.*.ffn"] = _gathered(1)
        plan["blocks.*.attention"] = _gathered(4)
    return plan


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


def _own_plan(model: nn.Module) -> Plan:
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
    return {pattern: STYLES[style]() for pattern, style in styles.items()}


def _shard_blocks(model: nn.Module, world: World, mesh: DeviceMesh, transfer: Any) -> None:
    # A stage may have one block, which repeats only in the whole model.
    blocks = list(model.blocks) if isinstance(model, Transformer) else blocks_of(model)
    if not blocks:
        raise ModelError("no blocks repeat in the model, so FSDP cannot gather them one by one")
    policy = MixedPrecisionPolicy(DTYPES[world.params], DTYPES[world.reduce])
    stays = None if world.reshard else False  # None: the model's own stay gathered, blocks' do not
    for part in (*blocks, model):
        sharded = fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=stays)
        if transfer is not None:
            sharded.set_custom_all_gather(transfer)
            sharded.set_custom_reduce_scatter(transfer)
