"""Closed forms of the memory that the code of the public write-ups needs.

Their code keeps more for backward than ours: a hand-written RMSNorm, silu and softmax. A peak
of theirs depends on what was resident when it was read, so that is an argument.
"""

from __future__ import annotations

from typing import Literal, get_args

from sysbench.core.errors import SpecError
from sysbench.core.spec.spec import RunSpec

Resident = Literal["P", "P+t", "P+C+t", "P+A", "P+2A", "3P+A", "max(4P, P+A)", "max(4P, 3P+A)"]
"""Tensors live at the peak, in parameter sets P, saved graphs A, autocast's copies C = P/2 and
a block's temporaries t.

``P``: the weights alone. ``P+t``: forward without a graph; ``P+C+t``: the same under autocast
to 16 bits. ``P+A``: forward in grad mode.
``P+2A``: the same with the graph of the forward before still alive. ``3P+A``: that forward with
AdamW's state resident. ``max(4P, P+A)``: the first training step, before AdamW's state is made.
``max(4P, 3P+A)``: every training step after it.
"""

# For each, factors of (P, A, t): the peak is the largest of the sums.
_SUMS: dict[str, tuple[tuple[float, int, float], ...]] = {
    "P": ((1, 0, 0),),
    "P+t": ((1, 0, 1),),
    "P+C+t": ((1.5, 0, 0.5),),  # what 16 bits compute is half as wide
    "P+A": ((1, 1, 0),),
    "P+2A": ((1, 2, 0),),
    "3P+A": ((3, 1, 0),),
    "max(4P, P+A)": ((4, 0, 0), (1, 1, 0)),
    "max(4P, 3P+A)": ((4, 0, 0), (3, 1, 0)),
}


def writeup_saved_bytes(spec: RunSpec) -> int:
    """A = 4 [L (2BhT² + 10BTd + 5BTf) + 2BTV + 3BTd], float32, eager, naive attention.

    The coefficients were fitted to what autograd saves of the code of both handout years,
    storages counted once, parameters and buffers apart; that of BhT² lies between 2 and 2.07.
    """
    size, tokens = spec.dimensions, spec.tokens_per_step
    scores = tokens * size.heads * spec.context
    block = 2 * scores + 10 * tokens * size.d_model + 5 * tokens * size.d_ff
    rest = 2 * tokens * size.vocab + 3 * tokens * size.d_model
    return 4 * (size.layers * block + rest)


def writeup_temporary_bytes(spec: RunSpec) -> int:
    """t = 4 · 5 · max(BTf, BhT²): what a block holds at its worst without a graph, float32.

    In the feed-forward w1 x, its sigmoid, their product, w3 x and the product of all; in
    attention the scores, scaled, masked, shifted by their maximum, and their exponentials.
    """
    size, tokens = spec.dimensions, spec.tokens_per_step
    return 4 * 5 * tokens * max(size.d_ff, size.heads * spec.context)


def writeup_peak_bytes(spec: RunSpec, resident: Resident) -> int:
    """The peak that a write-up's code reaches with that resident; float32 but for ``P+C+t``.

    Raises:
        SpecError: ``resident`` is not one of `Resident`.
    """
    if resident not in _SUMS:
        raise SpecError("resident", resident, "one of " + "; ".join(get_args(Resident)))
    parameters, saved = 4 * spec.dimensions.parameters, writeup_saved_bytes(spec)
    temporary = writeup_temporary_bytes(spec)
    return round(max(p * parameters + a * saved + t * temporary for p, a, t in _SUMS[resident]))
