"""Replay the forward pass and loss: the bytes that each operation allocates, saves and frees.

Follows `Transformer.forward` and `Block.forward` of the worker's models line by line: change them
together. A name stands for the tensor that the model's code holds at that line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sysbench.core.predict.sizes import Sizes

TEMPORARIES, ACTIVATIONS = "temporaries", "activations"


@dataclass(frozen=True, slots=True)
class TapeMoment:
    """Live bytes at one moment, by kind, with its phase and place."""

    phase: str
    place: str
    total: int
    live: Counter[str]


class Tape:
    """Live tensors by name; a tensor that the graph saves outlives its name.

    A new tensor under a name in use replaces the entry and not the bytes: free the old one first.

    Attributes:
        keeps: Whether the graph keeps saved tensors; false in a segment that is recomputed.
        kept_as: Kind that temporaries get when the graph saves them.
        peaks: The peak so far of each phase.
    """

    def __init__(self, resident: Mapping[str, int], *, graph: bool) -> None:
        self.live = Counter(resident)
        self.total = sum(resident.values())
        self.graph = graph
        self.keeps = True
        self.kept_as = ACTIVATIONS
        self.phase = self.place = ""
        self.peaks: dict[str, TapeMoment] = {}
        self._named: dict[str, tuple[str, int]] = {}
        self._saved: dict[str, tuple[str, int]] = {}

    def enter(self, phase: str, place: str) -> None:
        """Begin a phase; the live bytes now are its first moment."""
        self.phase, self.place = phase, place
        self._note(0, TEMPORARIES)

    def add(self, kind: str, count: int) -> None:
        """Add bytes without a name; negative when they are freed."""
        self.live[kind] += count
        self.total += count
        if count > 0:
            self._note(0, kind)

    def new(self, name: str, count: int, kind: str = TEMPORARIES) -> None:
        """Allocate a tensor that the program holds under a name."""
        self._named[name] = kind, count
        self.add(kind, count)

    def rename(self, name: str, count: int, kind: str) -> None:
        self._named[name] = kind, count

    def save(self, *names: str) -> None:
        """Let the graph keep tensors for backward, until `release`."""
        if not (self.graph and self.keeps):
            return
        for name in names:
            # Popped: a later `free` of the name changes nothing, the graph holds the tensor.
            kind, count = self._named.pop(name)
            if kind == TEMPORARIES:
                kind = self.kept_as
                self.live[TEMPORARIES] -= count
                self.live[kind] += count
            self._saved[name] = kind, count

    def free(self, *names: str) -> None:
        """Drop names; unknown names and tensors saved by the graph are unaffected."""
        for name in names:
            kind, count = self._named.pop(name, (TEMPORARIES, 0))
            self.add(kind, -count)

    def release(self, *names: str) -> None:
        """Drop saved tensors, at the end of their operation's backward."""
        for name in names:
            # Not popped: `repeat` releases the same names once for every block.
            kind, count = self._saved[name]
            self.add(kind, -count)

    def spike(self, count: int, kind: str = TEMPORARIES) -> None:
        self._note(count, kind)

    def repeat(self, part: Callable[[int], None], indices: range) -> None:
        """Replay a part for every index.

        Each repetition adds or frees the same bytes, so live bytes are affine in the index at every
        place of the part and peak in the first or the last: only these two are replayed.
        """
        before = Counter(self.live)
        part(indices[0])
        if len(indices) == 1:
            return
        # The first is replayed and the last will be: extrapolate the len - 2 between them.
        for kind, count in self.live.items():
            self.live[kind] += (count - before[kind]) * (len(indices) - 2)
        self.total = sum(self.live.values())
        part(indices[-1])

    def _note(self, count: int, kind: str) -> None:
        total = self.total + count
        if self.phase not in self.peaks or total > self.peaks[self.phase].total:
            live = self.live.copy()
            live[kind] += count
            self.peaks[self.phase] = TapeMoment(self.phase, self.place, total, live)


COPIES, LOGITS = "autocast weight copies", "logits and loss"


def replay_forward(tape: Tape, sizes: Sizes) -> None:
    """Replay from token ids to logits."""
    tape.enter("forward", "embedding")
    tape.new("x", sizes.x_residual)
    if sizes.width.autocast:
        tape.new("rotary", sizes.rotary)
        tape.save("rotary")

    def block(index: int) -> None:
        replay_block(tape, sizes, index)

    def segment(index: int) -> None:
        # checkpoint() saves the segment's input alone and runs its blocks without a graph.
        tape.save("x")
        tape.keeps = False
        replay_each(tape, block, saved_blocks(sizes, index))
        tape.keeps = True

    if sizes.spec.checkpoint:
        for indices in checkpoint_segments(sizes):
            tape.repeat(segment, indices)
    else:
        tape.repeat(block, range(1, sizes.size.layers + 1))
    tape.place = "head"
    # With a cache the head sees the last token of each sequence alone.
    last = Sizes(sizes.spec.changed(step="decode")) if sizes.cache else sizes
    _norm(tape, last, "x", "final")
    _linear(tape, last, "logits", last.logits, last.table, LOGITS)
    tape.free("x", "final normed", "rotary")


def checkpoint_segments(sizes: Sizes) -> list[range]:
    """Group the recomputed segments by length: the full ones, then a shorter last one.

    Each range has segments of one length, so that a tape can repeat them.
    """
    full, rest = divmod(sizes.size.layers, sizes.spec.checkpoint)
    return [range(full), *([range(full, full + 1)] if rest else [])]


def saved_blocks(sizes: Sizes, segment: int) -> range:
    """Indices of a segment's blocks, from 1."""
    first = segment * sizes.spec.checkpoint + 1
    return range(first, min(first + sizes.spec.checkpoint, sizes.size.layers + 1))


def replay_each(tape: Tape, block: Callable[[int], None], blocks: range) -> None:
    """Replay the blocks of a segment; the first differs, since its input is kept."""
    block(blocks[0])
    if len(blocks) > 1:
        tape.repeat(block, blocks[1:])


def replay_block(tape: Tape, sizes: Sizes, index: int, *, until_saved: bool = False) -> None:
    """Replay one block, from x to x.

    ``until_saved`` stops after the last tensor that the graph saves, without a new x, where
    checkpoint ends its recomputation early.
    """
    tape.place = f"block {index}, attention"
    _attention(tape, sizes)
    tape.place = f"block {index}, feed-forward"
    _feed_forward(tape, sizes, until_saved=until_saved)


def replay_loss(tape: Tape, sizes: Sizes) -> None:
    """Replay from the logits to the loss; the logits are dropped after it."""
    width = sizes.width
    tape.enter("loss", "loss")
    tape.new("log-probabilities", sizes.logits_loss, LOGITS)
    if width.loss > width.compute:
        tape.spike(sizes.logits_loss, LOGITS)
    tape.save("log-probabilities")
    tape.new("loss copy", sizes.logits_copy, LOGITS)
    tape.save("loss copy")
    tape.free("logits")
    # Autocast's cache ends with its context. Without checkpoint the graph holds the blocks'
    # copies anyway; the recomputation makes new ones. The head is outside the segments.
    if sizes.spec.checkpoint and width.autocast:
        block = (4 * sizes.square + 3 * sizes.wide) * width.compute
        tape.add(COPIES, -sizes.size.layers * block)


def _norm(tape: Tape, sizes: Sizes, source: str, name: str) -> None:
    """Replay a norm, from the residual stream to ``NAME normed`` in the compute width."""
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
    if result != sizes.x:  # the uncast result lives until its cast is done
        tape.spike(result)
    tape.save(f"{name} rstd", f"{name} normed")
    tape.free(f"{name} rstd", f"{name} float", f"{name} normalised")


def _linear(
    tape: Tape, sizes: Sizes, result: str, count: int, weights: int, kind: str = "temporaries"
) -> None:
    """Replay a projection. Autocast keeps the copy of its weights until the forward is over.

    In inference mode it makes the copy for one use (torch before 2026 kept it there too).
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
        tape.spike(3 * sizes.x)  # the rotation: rolled, scaled, and their sum
    _linear(tape, sizes, "v", sizes.x, sizes.square)
    if sizes.cache:  # written into it, and read from it
        tape.free("k", "v")
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
    cast = sizes.scores_soft != sizes.scores
    tape.new("exponentials", sizes.scores_soft)
    # Masked scores and their distance to the maximum are still alive, and a float32 copy of the
    # distance where autocast widens ``exp``.
    tape.spike(2 * sizes.scores + (sizes.scores_soft if cast else 0))
    tape.new("row sums", sizes.rows_soft)
    tape.save("exponentials", "row sums")
    tape.new("quotients", sizes.scores_soft)
    if cast:
        tape.new("quotients cast", sizes.scores)
    tape.save("quotients cast" if cast else "quotients")


def _naive(tape: Tape, sizes: Sizes) -> None:
    """Replay naive attention; its batched products copy q, k and v with the heads in front.

    A cache has them in front, and so has a single token.
    """
    several, cached = sizes.spec.new_tokens > 1, bool(sizes.cache)
    tape.new("q copy", sizes.x * several)
    tape.new("k copy", sizes.x * (not cached))
    tape.save("q copy", "k copy")
    tape.spike(2 * sizes.scores)
    tape.free("q copy", "k copy")
    softmax_of_scores(tape, sizes)
    tape.new("v copy", sizes.x * (not cached))
    tape.save("v copy")
    tape.new("mixed", sizes.x)
    tape.free("quotients", "quotients cast", "exponentials", "v copy")
    tape.new("flat", sizes.x * (several or not cached))
    tape.save("flat")


def _math(tape: Tape, sizes: Sizes) -> None:
    """Replay torch's math attention: float32 inside; the graph keeps one matrix of scores."""
    upcast = sizes.width.compute != 4
    several, cached = sizes.spec.new_tokens > 1, bool(sizes.cache)
    keys = sizes.cache // 2 // sizes.width.compute * 4 if cached else sizes.x_float
    if upcast:
        tape.new("floats", sizes.x_float + 2 * keys)
    tape.new("bias", 4 * sizes.spec.context**2 * several)
    tape.new("q scaled", sizes.x_float)
    tape.new("k scaled", keys)
    tape.new("q copy", sizes.x_float * several)
    tape.new("k copy", keys * (not cached))
    tape.save("q copy", "k copy")
    tape.spike(sizes.scores_float)
    tape.free("k scaled", "q copy", "k copy")
    tape.new("exponentials", sizes.scores_float)
    # The scores, and a byte for each element and each row that is minus infinity: sizes in
    # float32, hence a quarter.
    tape.spike(sizes.scores_float + (sizes.scores_float + sizes.rows_float) // 4)
    tape.save("exponentials")
    tape.new("v copy", keys * (not cached))
    tape.save("v copy")
    tape.new("mixed", sizes.x)
    if upcast:
        tape.spike(sizes.scores + sizes.x_float)
    tape.free("floats", "bias", "q scaled", "exponentials", "v copy")
    tape.new("flat", sizes.x * (several or not cached))
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
    # "next" becomes the following block's x. Freed first, so that the sum counts it once.
    tape.free("w2", "middle", "x", "next")
    tape.new("x", sizes.x_residual)
