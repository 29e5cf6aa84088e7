"""The memory of one steady step of our transformer, played through without running it.

Follows `models.transformer` and `transformer` in `sysbench.core.worker.workloads`, run eagerly, as
torch 2.13 executes them. What can set a peak is there; small statistics, scratch space inside
kernels and the allocator's rounding are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...spec.spec import RunSpec
from ..sizes import Sizes
from .backward import play_backward
from .forward import LOGITS, play_forward, play_loss
from .tape import ACTIVATIONS, Moment, Tape


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What `step_memory` found.

    Attributes:
        peaks: The worst moment of each phase, by the workload's names.
        saved_bytes: What the graph holds when forward and loss are done, weights apart.
    """

    peaks: dict[str, Moment]
    saved_bytes: int

    @property
    def peak(self) -> Moment:
        """The worst moment of all."""
        return max(self.peaks.values(), key=lambda moment: moment.total)


def step_memory(spec: RunSpec) -> StepMemory:
    """Play one steady step: optimizer state in place, gradients freed the step before."""
    sizes = Sizes(spec)
    tape = Tape(resident_bytes(sizes), graph=spec.step != "inference")
    play_forward(tape, sizes)
    saved = tape.live[ACTIVATIONS]
    if spec.has_backward:
        play_loss(tape, sizes)
        saved += tape.live[LOGITS]
        play_backward(tape, sizes)
    if spec.step == "train":
        tape.enter("optimizer", spec.optimizer)
        tape.spike(_optimizer_scratch(sizes))
    return StepMemory(tape.peaks, saved)


def resident_bytes(sizes: Sizes) -> dict[str, int]:
    """What is live between steps."""
    spec, weight = sizes.spec, sizes.width.weight
    parameters = sizes.size.parameters * weight
    has_state = spec.step == "train" and spec.optimizer != "sgd"
    mask = spec.context**2 if spec.attention == "naive" else 0
    return {
        "parameters": parameters,
        "optimizer state": 2 * parameters if has_state else 0,
        "buffers": 2 * spec.context * sizes.size.head_dimension * weight + mask,
        "inputs": 2 * 8 * spec.tokens_per_step,
    }


def _optimizer_scratch(sizes: Sizes) -> int:
    """What AdamW needs for an instant.

    foreach takes the roots of all second moments at once; the loop holds a root, its quotient
    and the quotient of the parameter before it.
    """
    optimizer, weight = sizes.spec.optimizer, sizes.width.weight
    if optimizer == "adamw-foreach":
        return sizes.size.parameters * weight
    if optimizer == "adamw-loop":
        return max(2 * sizes.table, 3 * sizes.wide, 3 * sizes.square) * weight
    return 0
