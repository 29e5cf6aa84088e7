"""Replay the memory of one step by formulas: the transformer's, and bare attention's.

The transformer's follows `models.transformer` and `transformer` in
`sysbench.core.worker.workloads`, run eagerly, as torch 2.13 executes them. Every tensor that can
set a peak is counted; small statistics, scratch space inside kernels and the allocator's rounding
are not.

Bare attention's follows `models.attention` and `attention` there, run eagerly. Its queries, keys
and values are contiguous, so no product copies them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sysbench.core.predict.backward import GRADIENTS, replay_backward
from sysbench.core.predict.forward import LOGITS, replay_forward, replay_loss, softmax_of_scores
from sysbench.core.predict.sizes import Sizes
from sysbench.core.predict.tape import ACTIVATIONS, Tape, TapeMoment
from sysbench.core.spec.spec import RunSpec


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of a replayed step: the peak of each phase, and the bytes that the graph holds after
    forward and loss, without weights."""

    peaks: dict[str, TapeMoment]
    saved_bytes: int

    @property
    def peak(self) -> TapeMoment:
        return max(self.peaks.values(), key=lambda moment: moment.total)


def step_memory(spec: RunSpec) -> StepMemory:
    """Replay one steady step: optimizer state allocated, gradients freed in the step before."""
    sizes = Sizes(spec)
    tape = Tape(step_resident_bytes(sizes), graph=spec.step != "inference")
    replay_forward(tape, sizes)
    saved = tape.live[ACTIVATIONS]
    if spec.has_backward:
        replay_loss(tape, sizes)
        saved += tape.live[LOGITS]
        replay_backward(tape, sizes)
    if spec.step == "train":
        tape.enter("optimizer", spec.optimizer)
        tape.spike(_optimizer_scratch(sizes))
    return StepMemory(tape.peaks, saved)


def step_resident_bytes(sizes: Sizes) -> dict[str, int]:
    """Bytes that are live between steps, by kind."""
    spec, weight = sizes.spec, sizes.width.weight
    parameters = sizes.size.parameters * weight
    has_state = spec.step == "train" and spec.optimizer != "sgd"
    # Two rotary tables; a mask of one byte an element; tokens and targets of 8 bytes each.
    mask = spec.context**2 if spec.attention_row.scores == "model" else 0
    return {
        "parameters": parameters,
        "optimizer state": 2 * parameters if has_state else 0,
        "buffers": 2 * spec.context * sizes.size.head_dimension * weight + mask,
        "inputs": 2 * 8 * spec.tokens_per_step,
    }


def _optimizer_scratch(sizes: Sizes) -> int:
    """Temporary bytes of AdamW.

    foreach computes the roots of all second moments at once. The loop holds a root, its quotient
    and the quotient of the parameter before it.
    """
    optimizer, weight = sizes.spec.optimizer, sizes.width.weight
    if optimizer == "adamw-foreach":
        return sizes.size.parameters * weight
    if optimizer == "adamw-loop":
        return max(2 * sizes.table, 3 * sizes.wide, 3 * sizes.square) * weight
    return 0


def attention_memory(spec: RunSpec) -> StepMemory:
    """Replay one step of bare attention.

    Complete if the scores are materialised; other kernels count without scratch space and casts.
    """
    sizes = Sizes(spec)
    operand = spec.tokens_per_step * spec.d_model * sizes.width.weight
    naive = spec.attention_row.scores == "model"
    resident = {
        "inputs": 3 * operand + (sizes.x if spec.has_backward else 0),
        "buffers": spec.context**2 if naive and spec.is_causal else 0,
    }
    tape = Tape(resident, graph=spec.step != "inference")
    tape.enter("forward", "attention")
    (_naive if naive else _fused)(tape, sizes)
    saved = tape.live[ACTIVATIONS]
    if spec.has_backward:
        tape.enter("backward", "attention")
        (_naive_back if naive else _fused_back)(tape, sizes, operand)
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
