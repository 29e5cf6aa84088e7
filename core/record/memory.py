"""Parts of the record's memory block, and the state of memory at a failed allocation."""

from __future__ import annotations

import msgspec

LIBRARY_WORKSPACE = "library workspace"
"""Row of memory that matrix products allocated and freed again before they returned."""
WORKSPACES = "workspaces"
"""Row of memory that cuBLAS keeps from one product to the next."""
KEPT = "kept between steps"
"""Row of memory without another owner that outlives the step that allocated it."""
NO_OWNER = "not attributed"
"""Row of the ledger for allocations without a known owner."""
BEFORE_RECORDING = "there before the recording"
"""Row of the ledger for allocations that are older than an imported recording."""
RESIDUAL = "residual"
"""Row of what a counter has and no other row explains: computed, and 0 if all is right."""
SMALLER = "smaller"
"""Category of the last origin of a list: the sum of all smaller ones."""

LARGER_BLOCKS = ("blocks larger than asked for", "rounding to ")
"""Prefixes of rows that no request contains, only the allocator's blocks."""


def prediction_error(predicted_bytes: float | None, measured_bytes: float | None) -> float | None:
    """Return the relative error of a prediction: predicted / measured − 1.

    None if one of the two is missing or zero.
    """
    if not predicted_bytes or not measured_bytes:
        return None
    return predicted_bytes / measured_bytes - 1


class LedgerRow(msgspec.Struct, frozen=True):
    name: str
    bytes: int


class Allocation(msgspec.Struct, frozen=True):
    """One allocation alive at the peak. Times are milliseconds since recording began.

    ``bytes`` were requested; ``block_bytes`` are these rounded up to the allocator's granules, null
    if it has none. In an imported snapshot ``phase`` is the innermost annotation around the
    request, and ``metadata`` the text that the user attached to it.
    """

    bytes: int
    category: str
    phase: str
    module: str
    born_ms: float
    died_ms: float | None
    stack: list[str]
    block_bytes: int | None = None
    metadata: str = ""


class Timeline(msgspec.Struct, frozen=True):
    """Live bytes over time, thinned for drawing: maxima of equal parts are kept.

    ``t_ms`` are milliseconds since recording began; ``categories`` has one list per category, of
    the same length, that sum to ``live_bytes``. ``phases`` are (name, begin, end).
    """

    t_ms: list[float]
    live_bytes: list[int]
    categories: dict[str, list[int]]
    phases: list[tuple[str, float, float]]


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One of several devices in a snapshot; ``is_described`` is the one of the block."""

    device: int
    events: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    baseline_bytes: int
    baseline_blocks: int
    is_described: bool


class Pool(msgspec.Struct, frozen=True):
    """One pool of CUDA's caching allocator at one instant.

    ``free_bytes`` are reserved and not allocated, ``largest_free_bytes`` the largest contiguous
    piece: a larger request must go to the driver, whatever the sum.
    """

    name: str
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int


class ReconciledRow(msgspec.Struct, frozen=True):
    """One row of the predicted ledger with its measured counterpart.

    ``error`` is predicted over measured, minus one; null if one of the two is zero.
    """

    name: str
    predicted_bytes: int
    measured_bytes: int
    error: float | None


class ClosedForm(msgspec.Struct, frozen=True):
    """The peak if only these were resident, with its error against the measured one.

    P parameters, A what one graph saves for backward, C autocast's copies of weights; ``error`` is
    the formula over the measured peak, minus one.
    """

    name: str
    bytes: int
    error: float
    meaning: str


class StepMemory(msgspec.Struct, frozen=True):
    """Memory of one recorded step, counted from 1: live bytes at its peak and at its end, and the
    dtypes and shapes of what the model was called with."""

    step: int
    peak_bytes: int
    end_bytes: int
    inputs: str = ""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one place in the code that every step since ``since_step`` leaves more of.

    ``bytes`` are the median growth a step; ``module`` computed there, ``stack`` is as in an
    `Origin`.
    """

    bytes: int
    since_step: int
    category: str
    phase: str
    module: str
    stack: list[str]

    @property
    def stack_words(self) -> str:
        """The innermost line of Python and the operator that it called; empty if unknown."""
        line = next((frame for frame in self.stack if ":" in frame.replace("::", "")), "")
        return f"{line} ({self.stack[0]})" if line and line != self.stack[0] else line


class Origin(msgspec.Struct, frozen=True):
    """Memory that one place in the code holds at the peak: ``blocks`` allocations, ``bytes`` in
    all.

    ``stack`` is innermost first, empty if unknown; the last origin of a list may be the sum of all
    smaller ones, with the category ``smaller``. ``block_bytes``, ``phase`` and ``metadata`` are as
    in an `Allocation`.
    """

    category: str
    phase: str
    bytes: int
    blocks: int
    stack: list[str]
    block_bytes: int | None = None
    metadata: str = ""


class HeldMemory(msgspec.Struct, frozen=True):
    """What is alive at one instant, in three groupings as in the memory block."""

    origins: list[Origin] = []
    largest: list[Allocation] = []
    alike: list[Origin] = []


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one of several ranks at the peak of its steady step.

    ``ledger`` rows sum to ``peak_bytes``, which are blocks of the allocator on CUDA.
    ``predicted_peak_bytes`` and ``predicted_reserved_bytes`` are of the dry run of this rank;
    ``missing`` has the reason where they are null.
    """

    rank: int
    peak_bytes: int
    peak_phase: str
    reserved_bytes: int | None
    ledger: list[LedgerRow]
    predicted_peak_bytes: int | None = None
    predicted_reserved_bytes: int | None = None
    missing: dict[str, str] = {}

    @property
    def error(self) -> float | None:
        """See `prediction_error`."""
        return prediction_error(self.predicted_peak_bytes, self.peak_bytes)


class OomSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The memory pass's recording at the failed allocation.

    ``requested_bytes`` is the request itself on CUDA, where the allocator's message and its
    observers have the size of the segment; else null. ``op`` is the innermost operator that was
    running, ``module`` the module that computed. The rows of ``ledger`` sum to what was allocated;
    ``origins`` and ``largest`` are as in the memory block. ``timeline`` ends with the failure, at
    ``refused_ms``. ``predicted_peak_bytes`` is the peak of a steady step: of a user's model by a
    dry run, else by the closed form.
    """

    requested_bytes: int | None = None
    op: str | None = None
    module: str | None = None
    free_bytes: int | None = None
    ledger: list[LedgerRow] = []
    origins: list[Origin] = []
    largest: list[Allocation] = []
    timeline: Timeline | None = None
    refused_ms: float | None = None
    predicted_peak_bytes: int | None = None
    missing: dict[str, str] = {}


class WouldFit(msgspec.Struct, frozen=True, kw_only=True):
    """Largest value of a key with which the predicted peak fits, all other keys unchanged.

    ``largest`` is 0 if nothing fits; ``peak_bytes`` is the predicted peak there.
    """

    key: str
    asked: int
    largest: int
    peak_bytes: int | None


class Oom(OomSnapshot, frozen=True, kw_only=True, tag_field="event", tag="OutOfMemory"):
    """A failed allocation: the place, the request and the allocator's state.

    Attributes:
        phase: ``build`` or the phase of the step.
        requested_bytes: Size of the request. On CUDA, outside the memory pass, the size of its
            segment: 2 MiB for up to 1 MiB and 20 MiB for up to 10.
        free_bytes: Bytes still available on the device, or under the limit.
        reserved_bytes: Bytes that the caching allocator had of the device.
        largest_free_bytes: The largest piece that was reserved and not allocated.
        limit_bytes: The spec's ``memory_limit``; null without one.
        capacity_bytes: Bytes available to this process in all.
        expression: The code that the innermost frame was evaluating.
        rank: The rank that ran out of memory; null if there is only one.
        would_fit: Values that would fit into ``capacity_bytes``, by the closed form.
    """

    t_ns: int = 0
    phase: str
    requested_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    limit_bytes: int | None = None
    capacity_bytes: int | None = None
    message: str
    stack: list[str]
    expression: str | None = None
    rank: int | None = None
    would_fit: list[WouldFit] = []
