"""What the forward pass and the loss allocate, save and free, operation by operation."""

from __future__ import annotations

from collections.abc import Callable

from ..sizes import Sizes
from .tape import Tape

COPIES, LOGITS = "autocast weight copies", "logits and loss"


def play_forward(tape: Tape, sizes: Sizes) -> None:
    """From token ids to logits."""
    tape.enter("forward", "embedding")
    tape.new("x", sizes.x_residual)
    if sizes.width.autocast:
        tape.new("rotary", sizes.rotary)
        tape.save("rotary")

    def block(index: int) -> None:
        play_block(tape, sizes, index)

    def segment(index: int) -> None:
        tape.save("x")
        tape.keeps = False
        play_each(tape, block, blocks_of(sizes, index))
        tape.keeps = True

    if sizes.spec.checkpoint:
        for indices in segments_of(sizes):
            tape.repeat(segment, indices)
    else:
        tape.repeat(block, range(1, sizes.size.layers + 1))
    tape.place = "head"
    _norm(tape, sizes, "x", "final")
    _linear(tape, sizes, "logits", sizes.logits, sizes.table, LOGITS)
    tape.free("x", "final normed", "rotary")


def segments_of(sizes: Sizes) -> list[range]:
    """Indices of the segments that are recomputed: the whole ones, and a shorter last one."""
    whole, rest = divmod(sizes.size.layers, sizes.spec.checkpoint)
    return [range(whole), *([range(whole, whole + 1)] if rest else [])]


def blocks_of(sizes: Sizes, segment: int) -> range:
    """Indices of a segment's blocks, from 1."""
    first = segment * sizes.spec.checkpoint + 1
    return range(first, min(first + sizes.spec.checkpoint, sizes.size.layers + 1))


def play_each(tape: Tape, block: Callable[[int], None], blocks: range) -> None:
    """Blocks of a segment: the first one's input is kept, so that it is not like the others."""
    block(blocks[0])
    if len(blocks) > 1:
        tape.repeat(block, blocks[1:])


def play_block(tape: Tape, sizes: Sizes, index: int, *, until_saved: bool = False) -> None:
    """One block, from x to x.

    Args:
        until_saved: End with the last tensor that the graph saves: there is no new x then.
    """
    tape.place = f"block {index}, attention"
    _attention(tape, sizes)
    tape.place = f"block {index}, feed-forward"
    _feed_forward(tape, sizes, until_saved=until_saved)


def play_loss(tape: Tape, sizes: Sizes) -> None:
    """From logits to the loss; then the logits are dropped."""
    width = sizes.width
    tape.enter("loss", "loss")
    tape.new("log-probabilities", sizes.logits_loss, LOGITS)
    if width.loss > width.compute:
        tape.spike(sizes.logits_loss, LOGITS)
    tape.save("log-probabilities")
    tape.new("loss copy", sizes.logits_copy, LOGITS)
    tape.save("loss copy")
    tape.free("logits")
    if sizes.spec.checkpoint and width.autocast:  # with autocast ends its cache of copies
        block = (4 * sizes.square + 3 * sizes.wide) * width.compute
        tape.add(COPIES, -sizes.size.layers * block)


def _norm(tape: Tape, sizes: Sizes, source: str, name: str) -> None:
    """From the residual stream to ``NAME normed`` in the compute width."""
    width = sizes.width
    tape.new(f"{name} rstd", sizes.rstd)
    if width.fused_norm:
        tape.save(source)
    else:
        if width.residual == 4:
            tape.save(source)
        else:
            tape.new(f"{name} float", sizes.x_float)
            tape.save(f"{name} float")
        tape.new(f"{name} normalised", sizes.x_float)
        tape.save(f"{name} normalised")
    tape.new(f"{name} normed", sizes.x)
    result = sizes.x_residual if width.fused_norm else sizes.x_float
    if result != sizes.x:
        tape.spike(result)
    tape.save(f"{name} rstd", f"{name} normed")
    tape.free(f"{name} rstd", f"{name} float", f"{name} normalised")


def _linear(
    tape: Tape, sizes: Sizes, result: str, count: int, weights: int, kind: str = "temporaries"
) -> None:
    """A projection. Autocast keeps the copy of its weights until the forward is over.

    In inference mode it makes the copy for one use (releases before 2026 kept it there too).
    """
    copy = weights * sizes.width.compute if sizes.width.autocast else 0
    tape.add(COPIES, copy)
    tape.new(result, count, kind)
    if not tape.graph:
        tape.add(COPIES, -copy)


def _attention(tape: Tape, sizes: Sizes) -> None:
    _norm(tape, sizes, "x", "attention")
    for name in ("q", "k"):
        _linear(tape, sizes, name, sizes.x, sizes.square)
        tape.spike(3 * sizes.x)  # rolled, scaled, and their sum
    _linear(tape, sizes, "v", sizes.x, sizes.square)
    scores = sizes.spec.attention_row.scores
    if scores == "model":
        _naive(tape, sizes)
    elif scores == "torch":
        _math(tape, sizes)
    else:
        tape.new("mixed", sizes.x)
        tape.new("row sums", sizes.rows_float)
        tape.save("q", "k", "v", "mixed", "row sums")
    _linear(tape, sizes, "projected", sizes.x, sizes.square)
    tape.free("q", "k", "v", "mixed", "row sums", "flat", "attention normed")
    tape.new("middle", sizes.x_residual)
    tape.free("projected")


def softmax_of_scores(tape: Tape, sizes: Sizes) -> None:
    """Scores in memory to the weights of the values, as exponentials over their row sums."""
    cast = sizes.scores_soft != sizes.scores
    tape.new("exponentials", sizes.scores_soft)
    # Masked scores and their distance to the maximum are still there, and where autocast
    # wants float32 a copy of it.
    tape.spike(2 * sizes.scores + (sizes.scores_soft if cast else 0))
    tape.new("row sums", sizes.rows_soft)
    tape.save("exponentials", "row sums")
    tape.new("quotients", sizes.scores_soft)
    if cast:
        tape.new("quotients cast", sizes.scores)
    tape.save("quotients cast" if cast else "quotients")


def _naive(tape: Tape, sizes: Sizes) -> None:
    """Scores in memory; the batched products need q, k and v with the heads in front."""
    tape.new("q copy", sizes.x)
    tape.new("k copy", sizes.x)
    tape.save("q copy", "k copy")
    tape.spike(2 * sizes.scores)
    tape.free("q copy", "k copy")
    softmax_of_scores(tape, sizes)
    tape.new("v copy", sizes.x)
    tape.save("v copy")
    tape.new("mixed", sizes.x)
    tape.free("quotients", "quotients cast", "exponentials", "v copy")
    tape.new("flat", sizes.x)
    tape.save("flat")


def _math(tape: Tape, sizes: Sizes) -> None:
    """Torch's own written-out attention: float32 inside; keeps one matrix of scores."""
    upcast = sizes.width.compute != 4
    if upcast:
        tape.new("floats", 3 * sizes.x_float)
    tape.new("bias", 4 * sizes.spec.context**2)
    for name in ("q scaled", "k scaled", "q copy", "k copy"):
        tape.new(name, sizes.x_float)
    tape.save("q copy", "k copy")
    tape.spike(sizes.scores_float)
    tape.free("k scaled", "q copy", "k copy")
    tape.new("exponentials", sizes.scores_float)
    # The scores themselves, what of them is minus infinity, and which rows are nothing else.
    tape.spike(sizes.scores_float + (sizes.scores_float + sizes.rows_float) // 4)
    tape.save("exponentials")
    tape.new("v copy", sizes.x_float)
    tape.save("v copy")
    tape.new("mixed", sizes.x)
    if upcast:
        tape.spike(sizes.scores + sizes.x_float)
    tape.free("floats", "bias", "q scaled", "exponentials", "v copy")
    tape.new("flat", sizes.x)
    tape.save("flat")


def _feed_forward(tape: Tape, sizes: Sizes, *, until_saved: bool) -> None:
    _norm(tape, sizes, "middle", "ffn")
    _linear(tape, sizes, "w1", sizes.f, sizes.wide)
    tape.new("silu", sizes.f)
    tape.save("w1", "silu")
    tape.free("w1")
    _linear(tape, sizes, "w3", sizes.f, sizes.wide)
    tape.new("product", sizes.f)
    tape.save("w3", "product")
    tape.free("silu", "w3")
    if until_saved:
        tape.add(COPIES, sizes.wide * sizes.width.compute if sizes.width.autocast else 0)
        tape.free("ffn normed", "middle", "x")
        return
    _linear(tape, sizes, "w2", sizes.x, sizes.wide)
    tape.free("product", "ffn normed")
    tape.new("next", sizes.x_residual)
    tape.free("w2", "middle", "x", "next")
    tape.new("x", sizes.x_residual)
