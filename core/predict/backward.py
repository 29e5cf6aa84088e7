"""Replay the backward pass: the bytes that each operation allocates and frees.

The reverse of `forward`: change the two together. A tensor that the forward saved is released by
its name there, at the end of its operation. Names of gradients in progress begin with ``g``.
"""

from __future__ import annotations

from sysbench.core.predict.forward import (
    ACTIVATIONS,
    COPIES,
    LOGITS,
    TEMPORARIES,
    Tape,
    checkpoint_segments,
    replay_block,
    replay_each,
    saved_blocks,
)
from sysbench.core.predict.sizes import Sizes

GRADIENTS = "gradients"


def replay_backward(tape: Tape, sizes: Sizes) -> None:
    """Replay from the loss to the embedding's gradient."""
    tape.enter("backward", "loss")
    _loss(tape, sizes)
    tape.place = "head"
    _linear(tape, sizes, "g logits", "g", sizes.x, sizes.table, saved=("final normed",))
    _norm(tape, sizes, "x", "final")

    def block(index: int) -> None:
        tape.place = f"block {index}, feed-forward"
        _feed_forward(tape, sizes)
        tape.place = f"block {index}, attention"
        _attention(tape, sizes)

    def segment(index: int) -> None:
        blocks = saved_blocks(sizes, index)
        _recompute(tape, sizes, blocks)
        tape.repeat(block, blocks[::-1])
        if not _keeps_x(sizes):
            tape.add(ACTIVATIONS, -sizes.x_residual)

    if sizes.spec.checkpoint:
        for indices in reversed(checkpoint_segments(sizes)):
            tape.repeat(segment, indices[::-1])
    else:
        tape.repeat(block, range(sizes.size.layers, 0, -1))
    tape.place = "embedding"
    tape.add(GRADIENTS, sizes.table * sizes.width.weight)
    tape.free("g residual")
    if sizes.width.autocast:
        tape.release("rotary")


def _recompute(tape: Tape, sizes: Sizes, blocks: range) -> None:
    _enter_branch(tape, sizes)
    tape.kept_as = TEMPORARIES
    # The checkpoint's input is alive already; 0 if no norm saves x itself.
    tape.rename("x", sizes.x_residual if _keeps_x(sizes) else 0, ACTIVATIONS)
    # Recomputation stops once the last saved tensor is there, inside the last block.
    if len(blocks) > 1:
        replay_each(tape, lambda index: replay_block(tape, sizes, index), blocks[:-1])
    replay_block(tape, sizes, blocks[-1], until_saved=True)
    tape.kept_as = ACTIVATIONS
    tape.free("g branch")


def _keeps_x(sizes: Sizes) -> bool:
    return sizes.width.fused_norm or sizes.width.residual == 4


def _loss(tape: Tape, sizes: Sizes) -> None:
    width = sizes.width
    tape.new("g nll", sizes.logits_copy or sizes.logits_loss, LOGITS)
    tape.release("loss copy")
    if width.loss_copy:
        tape.new("g cast", sizes.logits_loss, LOGITS)
        tape.free("g nll")
    tape.new("g logits", sizes.logits, LOGITS)
    if width.loss > width.compute:
        tape.spike(sizes.logits_loss - sizes.logits, LOGITS)
    tape.free("g nll", "g cast")
    tape.release("log-probabilities")


def _linear(
    tape: Tape,
    sizes: Sizes,
    incoming: str,
    result: str,
    count: int,
    weights: int,
    *,
    saved: tuple[str, ...] = (),
    joins: str = "",
) -> None:
    """Replay the gradients of a projection's weight and input.

    Args:
        incoming: Gradient of the result, freed here.
        result: Gradient of the input, of ``count`` bytes.
        joins: Gradient of the same input to which ``result`` is added.
    """
    width = sizes.width
    # Under autocast the weight's gradient is in the low precision first, then widened.
    tape.add(TEMPORARIES if width.autocast else GRADIENTS, weights * width.compute)
    tape.new(result, count)
    tape.free(incoming)
    tape.release(*saved)
    if width.autocast:
        tape.add(COPIES, -weights * width.compute)
    if joins:  # the sum is a third tensor for an instant, which takes the name of ``joins``
        tape.spike(count)
        tape.free(result)
    if width.autocast:
        tape.add(GRADIENTS, weights * width.weight)
        tape.add(TEMPORARIES, -weights * width.compute)


def _norm(tape: Tape, sizes: Sizes, source: str, name: str) -> None:
    """Replay a norm from ``g``, the gradient of ``NAME normed``, to that of the residual stream."""
    width = sizes.width
    inside = sizes.x_residual if width.fused_norm else sizes.x_float
    if inside != sizes.x:
        tape.new("g wide", inside)
        tape.free("g")
    if width.fused_norm:
        tape.new("g norm", inside)
        tape.free("g", "g wide")
    else:
        tape.spike(2 * inside)
        tape.free("g", "g wide")
        tape.release(f"{name} normalised")
        tape.new("g norm", inside)
        if name != "final" and inside == sizes.x_residual:
            tape.spike(inside)
            tape.free("g norm")
        tape.spike(4 * inside)  # through the mean of squares
    tape.release(f"{name} rstd")
    float_input = not width.fused_norm and width.residual != 4
    tape.release(f"{name} float" if float_input else source)
    tape.add(GRADIENTS, sizes.size.d_model * width.weight)
    tape.free("g norm")
    if name == "final":
        tape.new("g residual", sizes.x_residual)
    else:  # the sum with the residual stream's gradient
        tape.spike(sizes.x_residual)


def _enter_branch(tape: Tape, sizes: Sizes) -> None:
    if sizes.width.autocast:
        tape.new("g branch", sizes.x)


def _feed_forward(tape: Tape, sizes: Sizes) -> None:
    x, f, weights = sizes.x, sizes.f, sizes.wide
    _enter_branch(tape, sizes)
    _linear(tape, sizes, "g branch", "g product", f, weights, saved=("product",))
    tape.new("g silu", f)
    tape.new("g w3", f)
    tape.free("g product")
    tape.release("silu", "w3")
    _linear(tape, sizes, "g w3", "g", x, weights)
    tape.new("g w1", f)
    tape.free("g silu")
    tape.release("w1")
    _linear(tape, sizes, "g w1", "g more", x, weights, saved=("ffn normed",), joins="g")
    _norm(tape, sizes, "middle", "ffn")


def _attention(tape: Tape, sizes: Sizes) -> None:
    x, weights = sizes.x, sizes.square
    kernel = sizes.spec.attention_row
    _enter_branch(tape, sizes)
    flat = ("flat",) if kernel.writes_scores else ()
    _linear(tape, sizes, "g branch", "g mixed", x, weights, saved=flat)
    if kernel.scores == "model":
        _naive(tape, sizes)
    elif kernel.scores == "torch":
        _math(tape, sizes)
    else:
        for name in ("g q", "g k", "g v"):
            tape.new(name, x)
        tape.release("q", "k", "v", "mixed", "row sums")
    tape.free("g mixed")
    if kernel.writes_scores:
        tape.spike(x)  # a copy with the heads after the tokens
    _linear(tape, sizes, "g v", "g", x, weights)
    tape.spike(2 * x)  # the products of the reversed rotation
    _linear(tape, sizes, "g k", "g more", x, weights, joins="g")
    tape.spike(2 * x)
    _linear(tape, sizes, "g q", "g more", x, weights, saved=("attention normed",), joins="g")
    _norm(tape, sizes, "x", "attention")


def _naive(tape: Tape, sizes: Sizes) -> None:
    cast = sizes.scores_soft != sizes.scores
    tape.spike(sizes.x)  # a contiguous copy
    tape.new("g v", sizes.x)
    tape.new("g quotients", sizes.scores)
    tape.free("g mixed")
    tape.release("v copy", "quotients cast" if cast else "quotients")
    softmax_back(tape, sizes)
    tape.new("g q", sizes.x)
    tape.new("g k", sizes.x)
    tape.release("q copy", "k copy")
    tape.free("g scores")


def softmax_back(tape: Tape, sizes: Sizes) -> None:
    """Turn the gradient of the quotients into that of the scores."""
    if sizes.scores_soft != sizes.scores:
        tape.new("g quotients float", sizes.scores_soft)
        tape.free("g quotients")
    tape.spike(4 * sizes.scores_soft)  # both sides of the division
    tape.release("exponentials", "row sums")
    tape.free("g quotients", "g quotients float")
    tape.new("g scores", sizes.scores)


def _math(tape: Tape, sizes: Sizes) -> None:
    upcast = sizes.width.compute != 4
    tape.spike(sizes.x_float * (2 if upcast else 1))
    tape.new("g v", sizes.x_float)
    tape.new("g weights", sizes.scores_float)
    tape.free("g mixed")
    tape.release("v copy")
    tape.new("g scores", sizes.scores_float)
    if sizes.spec.device != "cpu":  # the gradient times the softmax, which CUDA's kernel reads
        tape.spike(sizes.scores_float)
    tape.release("exponentials")
    tape.free("g weights")
    tape.new("g q", sizes.x_float)
    tape.new("g k", sizes.x_float)
    tape.free("g scores")
    tape.release("q copy", "k copy")
    tape.spike(sizes.x_float)
    if upcast:
        for name in ("g q", "g k", "g v"):
            tape.free(name)
            tape.new(name, sizes.x)
