"""One step replayed without running it: the transformer's, and that of bare attention.

Follows `models.transformer` and `transformer` in `sysbench.core.worker.workloads`, run eagerly, as
torch 2.13 executes them. What can set a peak is there; small statistics, scratch space inside
kernels and the allocator's rounding are not.

Follows `models.attention` and `attention` in `sysbench.core.worker.workloads`, run eagerly.
Queries, keys and values are contiguous, so that no product makes a copy of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...spec.spec import RunSpec
from ..sizes import Sizes
from .backward import play_backward
from .forward import LOGITS, play_forward, play_loss, softmax_of_scores
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
    mask = spec.context**2 if spec.attention_row.scores == "model" else 0
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


GRADIENTS = "gradients"


def attention_flops(spec: RunSpec) -> int:
    """Of a forward: two products of 2·B·T²·d, masked or not, as dense kernels compute them."""
    return 4 * spec.batch * spec.context**2 * spec.d_model


def attention_memory(spec: RunSpec) -> StepMemory:
    """Play one step. With the scores written out it is all there; of other kernels only what
    goes in and comes out, without what they need inside, as if nothing was cast.
    """
    sizes = Sizes(spec)
    given = spec.tokens_per_step * spec.d_model * sizes.width.weight
    naive = spec.attention_row.scores == "model"
    resident = {
        "inputs": 3 * given + (sizes.x if spec.has_backward else 0),
        "buffers": spec.context**2 if naive and spec.is_causal else 0,
    }
    tape = Tape(resident, graph=spec.step != "inference")
    tape.enter("forward", "attention")
    (_naive if naive else _fused)(tape, sizes)
    saved = tape.live[ACTIVATIONS]
    if spec.has_backward:
        tape.enter("backward", "attention")
        (_naive_back if naive else _fused_back)(tape, sizes, given)
    return StepMemory(tape.peaks, saved)


def _naive(tape: Tape, sizes: Sizes) -> None:
    _lower(tape, sizes, "q cast", "k cast")
    tape.spike(2 * sizes.scores)
    tape.free("q cast", "k cast")
    softmax_of_scores(tape, sizes)
    _lower(tape, sizes, "v cast")
    tape.new("mixed", sizes.x, LOGITS)
    tape.free("quotients", "quotients cast", "exponentials", "row sums", "v cast")


def _lower(tape: Tape, sizes: Sizes, *names: str) -> None:
    """Autocast's copies of what goes into a product; the graph keeps them."""
    if sizes.width.autocast:
        for name in names:
            tape.new(name, sizes.x)
        tape.save(*names)


def _naive_back(tape: Tape, sizes: Sizes, gradient: int) -> None:
    cast = sizes.scores_soft != sizes.scores
    casts = ("q cast", "k cast", "v cast") if sizes.width.autocast else ()
    tape.new("g quotients", sizes.scores)
    tape.add(GRADIENTS, gradient)  # of v
    tape.release("quotients cast" if cast else "quotients", *casts[2:])
    if cast:
        tape.new("g quotients float", sizes.scores_soft)
        tape.free("g quotients")
    tape.spike(4 * sizes.scores_soft)  # both sides of the division
    tape.release("exponentials", "row sums")
    tape.free("g quotients", "g quotients float")
    tape.new("g scores", sizes.scores)
    tape.add(GRADIENTS, 2 * gradient)  # of q and k
    tape.free("g scores")
    tape.release(*casts[:2])


def _fused(tape: Tape, sizes: Sizes) -> None:
    tape.new("mixed", sizes.x)
    tape.new("row sums", sizes.rows_float)
    tape.save("mixed", "row sums")


def _fused_back(tape: Tape, sizes: Sizes, gradient: int) -> None:
    tape.add(GRADIENTS, 3 * gradient)
