"""The memory that the public write-ups' own code needs, by its closed forms.

Their code keeps more for backward than ours: a hand-written RMSNorm, silu and softmax. A peak
of theirs means little without what was resident when it was read, so that is an argument.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import SpecError
from ..spec import RunSpec

Resident = Literal["P", "P+A", "P+2A", "3P+A", "max(4P, P+A)", "max(4P, 3P+A)"]
"""What was live at the peak, in parameter sets P and saved graphs A.

``P``: forward without a graph, a few attention temporaries apart. ``P+A``: forward in grad mode.
``P+2A``: the same with the graph of the forward before still alive. ``3P+A``: that forward with
AdamW's state resident. ``max(4P, P+A)``: the first training step, before AdamW's state is made.
``max(4P, 3P+A)``: every training step after it.
"""

# Of each: the sums of (P, A) of which the largest is the peak.
_SUMS: dict[str, tuple[tuple[int, int], ...]] = {
    "P": ((1, 0),),
    "P+A": ((1, 1),),
    "P+2A": ((1, 2),),
    "3P+A": ((3, 1),),
    "max(4P, P+A)": ((4, 0), (1, 1)),
    "max(4P, 3P+A)": ((4, 0), (3, 1)),
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


def writeup_peak_bytes(spec: RunSpec, resident: Resident) -> int:
    """The peak that a write-up's code reaches in float32 with that resident.

    Raises:
        SpecError: ``resident`` is none of the known.
    """
    if resident not in _SUMS:
        raise SpecError("resident", resident, "one of " + "; ".join(get_args(Resident)))
    parameters, saved = 4 * spec.dimensions.parameters, writeup_saved_bytes(spec)
    return max(p * parameters + a * saved for p, a in _SUMS[resident])
