"""Stages of a pipeline, in torch's own schedules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed import P2POp
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining._utils import InferenceMode

from sysbench.core.errors import ModelError
from sysbench.core.formatting import counted
from sysbench.core.predict.pipeline_requests import OneF1B
from sysbench.core.spec.world import Schedule, World
from sysbench.core.worker.ranks.tensor_plans import LLAMA, check_router_loss, parts_to_cut
from sysbench.core.worker.workloads.model_workload import loss_of
from sysbench.core.worker.workloads.stepped_workload import EnterPhase

SCHEDULES: Mapping[Schedule, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}


def cut_stages(model: nn.Module, world: World, rank: int, layers: int = 0) -> dict[int, nn.Module]:
    """A model for each stage of a rank, by index; the first has the embedding, the last the head.

    The model itself becomes one of them, so that whatever has it keeps nothing of other ranks.

    Args:
        rank: Position in the mesh's ``pp`` dimension.
        layers: Blocks of the whole model, if this one has the rank's only.

    Raises:
        ModelError: The model has other parts, fewer blocks than stages, or one tensor for two ends.
    """
    names = parts_to_cut(model)
    if names is None:
        raise ModelError("pp divides the built-in models, and those of transformers like Llama")
    if names is LLAMA and world.schedule == "zero-bubble":
        # It detaches a stage's output in place, and the model's is a view.
        raise ModelError("schedule = zero-bubble: interleaved or 1f1b with models of transformers")
    check_router_loss(model)
    blocks = [*cast("nn.ModuleList", model.get_submodule(names.blocks))]
    if world.all_stages > (layers or len(blocks)):
        count = counted(layers or len(blocks), "layer")
        raise ModelError(f"world.pp = {world.pp}: at most the model's {count}")
    ends = [model.get_submodule(name) for name in (*names.first, *names.last)]
    weights = [id(one) for end in ends for one in end.parameters()]
    if len({*weights}) < len(weights):
        raise ModelError(
            "the embedding and the head are one tensor, and pp puts them on different ranks: set "
            "tie_word_embeddings=false"
        )
    ranges = [*world.stage_blocks(layers or len(blocks))]
    indices = range(rank, world.all_stages, world.pp)
    own = [block for index in indices for block in ranges[index]]
    all_blocks = dict(zip(own, blocks, strict=True)) if layers else blocks
    parts = {index: model if index == rank else copy.copy(model) for index in indices}
    for index, part in parts.items():
        _own_modules(part, names.blocks)
        kept = nn.ModuleList()
        for place, block in enumerate(ranges[index]):
            # Places of a built-in model's blocks are those in the stage.
            kept.add_module(str(block if names is LLAMA else place), all_blocks[block])
        part.set_submodule(names.blocks, kept)
    for index, part in parts.items():
        is_last = index == world.all_stages - 1
        for name in (*(names.first if index else ()), *(() if is_last else names.last)):
            part.set_submodule(name, nn.Identity())
        if names is LLAMA:
            part.register_forward_hook(_only_logits)
    return parts


def _only_logits(model: nn.Module, inputs: object, output: Any) -> Tensor:
    """What the head returned, which a stage without one passes on as this rank's tensor."""
    logits = output.logits
    is_last = not isinstance(model.get_submodule(LLAMA.last[-1]), nn.Identity)
    return cast(
        "Tensor", logits if is_last or not hasattr(logits, "to_local") else logits.to_local()
    )


def _own_modules(part: nn.Module, path: str) -> None:
    """Let a copy of a model have its own modules on the way to one of them, and its own hooks."""
    shared = {name: value for name, value in vars(part).items() if isinstance(value, dict)}
    vars(part).update({name: copy.copy(value) for name, value in shared.items()})
    name, _, rest = path.partition(".")
    if rest:
        inner = copy.copy(part.get_submodule(name))
        part._modules[name] = inner
        _own_modules(inner, rest)


def stage_inputs(batch: Any, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids and targets of a workload's batch, of which a schedule makes micro-batches."""
    given = (
        (batch["input_ids"], batch["labels"]) if isinstance(batch, Mapping) else (batch, targets)
    )
    return cast("tuple[Tensor, Tensor]", given)


def stage_loss(model: Any, output: Tensor, targets: Tensor, ids: int) -> Tensor:
    """The loss that the whole model computes of its output.

    Args:
        ids: See `loss_of`.
    """
    if not hasattr(model, "loss_function"):
        return loss_of(output, targets, ids)[0]
    words = model.config.vocab_size
    return cast("Tensor", model.loss_function(logits=output, labels=targets, vocab_size=words))


def make_schedule(
    stages: Sequence[PipelineStage], world: World, loss: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """torch's schedule of a rank's stages.

    Args:
        loss: Loss of a micro-batch's output and targets.
    """
    given = stages[0] if world.stages == 1 else [*stages]
    return SCHEDULES[world.schedule](given, world.microbatches, loss)


class PlayedStage(PipelineStage):
    """A stage without the others: the shapes that it receives are given.

    Attributes:
        enter: Called with the phase of each of the schedule's actions.
        send: Called with each tensor for another stage.
    """

    enter: EnterPhase
    send: Callable[[Tensor], None]

    def prepare(self, count: int) -> None:
        """Make what the stage receives in ``count`` micro-batches, as a first step does."""
        self._inference_mode = InferenceMode.STATIC
        self.has_backward = True
        self._prepare_forward_infra(count, None, has_backward=True)
        self._prepare_backward_infra(count)

    @property
    def received(self) -> Iterator[Tensor]:
        """Activations and gradients, which live between steps."""
        for infos in (*self.args_recv_info.values(), *self.grad_recv_info.values()):
            yield from (info.buffer for info in infos if info.buffer is not None)

    def get_fwd_send_ops(self, *arguments: Any) -> list[P2POp]:
        """Transfers of a micro-batch's output."""
        return self._noted(super().get_fwd_send_ops(*arguments))

    def get_bwd_send_ops(self, *arguments: Any) -> list[P2POp]:
        """Transfers of the gradients of a micro-batch's input."""
        return self._noted(super().get_bwd_send_ops(*arguments))

    def _noted(self, transfers: list[P2POp]) -> list[P2POp]:
        for one in transfers:
            self.send(one.tensor)
        return transfers

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Run the forward of a micro-batch."""
        self.enter("forward")
        return super().forward_one_chunk(*arguments, **options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> None:
        """Run the backward of a micro-batch, or the part for its inputs."""
        self.enter("backward")
        super().backward_one_chunk(*arguments, **options)

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> None:
        """Run the rest of a micro-batch's backward."""
        self.enter("backward")
        super().backward_weight_one_chunk(*arguments, **options)

    def perform_reduce_grad(self, *arguments: Any) -> None:
        """Reduce the gradients of all micro-batches."""
        self.enter("backward")
        super().perform_reduce_grad(*arguments)


class PlayedPipeline:
    """A rank's stages in torch's schedule, with everything that they receive; nothing is sent.

    Args:
        short: Micro-batches that are played, and forwards in flight; None for those of the world.
    """

    def __init__(
        self, stages: Sequence[PlayedStage], world: World, loss: Any, short: OneF1B | None = None
    ) -> None:
        self._stages = stages
        self._schedule = make_schedule(stages, world, loss)
        self._count = world.microbatches
        self._played = self._count if short is None else short.microbatches
        if short is not None:
            self._schedule._n_microbatches = short.microbatches
            self._schedule._num_stages = stages[0].stage_index + short.in_flight
        for stage in stages:
            stage.prepare(world.microbatches)
        for name in ("_stage_forward", "_stage_backward", "_stages_forward", "_stages_backward"):
            setattr(self._schedule, f"{name}_initialized", True)

    @property
    def received(self) -> Iterator[Tensor]:
        """Activations and gradients, which live between steps."""
        for stage in self._stages:
            yield from stage.received

    def run(self, enter: EnterPhase, batch: Any, targets: Tensor | None) -> None:
        """Run forward and backward of all micro-batches; for the arguments see `stage_inputs`."""
        enter("forward")
        for stage in self._stages:
            stage.enter = enter
        ids, wanted = (
            one[: len(one) // self._count * self._played] for one in stage_inputs(batch, targets)
        )
        given = (ids,) if any(stage.is_first for stage in self._stages) else ()
        has_loss = any(stage.is_last for stage in self._stages)
        self._schedule.step(*given, target=wanted if has_loss else None, return_outputs=False)
