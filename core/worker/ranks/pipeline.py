"""One stage of a pipeline, played without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

from sysbench.core.spec.world import Schedule, World
from sysbench.core.worker.workloads.stepped_workload import EnterPhase
from sysbench.core.worker.workloads.transformer import Transformer


def cut_stage(model: Transformer, world: World, stage: int) -> None:
    """Keep the blocks of a stage; the first also has the embedding, the last the head."""
    blocks = [*world.stage_blocks(len(model.blocks))][stage]
    model.blocks = nn.ModuleList(list(model.blocks)[blocks.start : blocks.stop])
    if stage:
        model.embedding = nn.Identity()  # type: ignore[assignment]
    if stage < world.pp - 1:
        model.norm = model.head = nn.Identity()  # type: ignore[assignment]


def actions(schedule: Schedule, ahead: int, microbatches: int) -> Iterator[tuple[bool, int]]:
    """Whether the next action is a forward, and its micro-batch, in order.

    Args:
        ahead: Forwards before the first backward with ``1f1b``: the stages from this one on.
    """
    first = microbatches if schedule == "gpipe" else min(ahead, microbatches)
    yield from ((True, index) for index in range(first))
    for index in range(microbatches):
        yield False, index
        if first + index < microbatches:
            yield True, first + index


class PlayedStage:
    """A stage with the tensors that it receives; nothing is sent.

    Live tensors are those of torch's `Schedule1F1B` and `ScheduleGPipe`, which hold the last
    output and the last gradient that they sent until the next one.

    Attributes:
        received: Activations and gradients, which live between steps.
    """

    def __init__(
        self, model: nn.Module, world: World, stage: int, group: ProcessGroup, hidden: Tensor
    ) -> None:
        self._world, self._stage = world, stage
        self._runner = PipelineStage(model, stage, world.pp, hidden.device, group=group)
        self._sent: tuple[Tensor | None, ...] = ()
        count = world.microbatches
        inputs, gradients = ([torch.empty_like(hidden) for _ in range(count)] for _ in range(2))
        self._inputs = [] if self.is_first else [one.requires_grad_() for one in inputs]
        self._gradients = [] if self.is_last else gradients

    @property
    def is_first(self) -> bool:
        return self._stage == 0

    @property
    def is_last(self) -> bool:
        return self._stage == self._world.pp - 1

    @property
    def received(self) -> tuple[Tensor, ...]:
        return (*self._inputs, *self._gradients)

    def run(
        self,
        enter: EnterPhase,
        tokens: Tensor,
        loss_of: Callable[[Tensor, int], Tensor],
        casting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Run forward and backward of all micro-batches.

        Args:
            loss_of: Loss of the output of a micro-batch.
        """
        count = self._world.microbatches
        inputs = list(tokens.tensor_split(count)) if self.is_first else self._inputs
        kept: dict[int, tuple[tuple[Tensor], list[Tensor]]] = {}
        losses: list[Tensor] = []
        ahead = self._world.pp - self._stage
        with casting():  # as around the step of a schedule: copies of weights serve all forwards
            for is_forward, index in actions(self._world.schedule, ahead, count):
                if is_forward:
                    enter("forward")
                    output = self._runner.forward_maybe_with_nosync(inputs[index])  # type: ignore[no-untyped-call]
                    kept[index] = (output,), [inputs[index]]
                    if self.is_last:
                        losses.append(loss_of(output, index))
                else:
                    enter("backward")
                    self._sent = self._backward(kept, losses, index)
        self._runner.perform_reduce_grad(count)
        self._sent = ()
        for tensor in inputs:
            tensor.grad = None

    def _backward(
        self, kept: dict[int, tuple[tuple[Tensor], list[Tensor]]], losses: list[Tensor], index: int
    ) -> tuple[Tensor | None, ...]:
        outputs, inputs = kept.pop(index)
        what = {
            "stage_output": losses[index] if self.is_last else outputs,
            "output_grads": None if self.is_last else (self._gradients[index],),
            "input_values": inputs,
        }
        is_end = index == self._world.microbatches - 1
        return self._runner.backward_maybe_with_nosync("full", what, last_backward=is_end)[0]
