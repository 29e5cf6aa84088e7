"""The memory block of a record, and what was known when memory ran out."""

from __future__ import annotations

import msgspec

LIBRARY_WORKSPACE = "library workspace"
"""The row of what single matrix products took for themselves and gave back before they returned."""


def prediction_error(predicted_bytes: float | None, measured_bytes: float | None) -> float | None:
    """The error of a prediction as a share: predicted / measured − 1.

    Above zero the prediction was too high. None where one of the two is missing or zero.
    """
    if not predicted_bytes or not measured_bytes:
        return None
    return predicted_bytes / measured_bytes - 1


class LedgerRow(msgspec.Struct, frozen=True):
    """One named amount of memory."""

    name: str
    bytes: int


class Allocation(msgspec.Struct, frozen=True):
    """One allocation alive at the peak. Times are milliseconds since recording began.

    ``bytes`` were asked for; ``block_bytes`` are these in the allocator's granules, null where
    it has none.
    """

    bytes: int
    category: str
    phase: str
    module: str
    born_ms: float
    died_ms: float | None
    stack: list[str]
    block_bytes: int | None = None


class Timeline(msgspec.Struct, frozen=True):
    """Live bytes over time, thinned for drawing: maxima of equal parts are kept.

    ``t_ms`` are milliseconds since recording began; ``categories`` has one list per category,
    of the same length, that sum to ``live_bytes``. ``phases`` are (name, begin, end).
    """

    t_ms: list[float]
    live_bytes: list[int]
    categories: dict[str, list[int]]
    phases: list[tuple[str, float, float]]


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a snapshot that has several; ``is_described`` is the one of the block."""

    device: int
    events: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    baseline_bytes: int
    baseline_blocks: int
    is_described: bool


class Pool(msgspec.Struct, frozen=True):
    """What one pool of CUDA's caching allocator holds of the device at one instant.

    ``free_bytes`` are held and not handed out, ``largest_free_bytes`` the largest piece of
    them: a request for more must ask the driver, however much is free in all.
    """

    name: str
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int


class ReconciledRow(msgspec.Struct, frozen=True):
    """One row of the predicted ledger beside what was measured.

    ``error`` is predicted over measured, minus one; null where one of the two is zero.
    """

    name: str
    predicted_bytes: int
    measured_bytes: int
    error: float | None


class ClosedForm(msgspec.Struct, frozen=True):
    """The peak if just these were resident, and how far that is from the measured one.

    P parameters, A what one graph saves for backward, C autocast's copies of weights;
    ``error`` is the form over the measured peak, minus one.
    """

    name: str
    bytes: int
    error: float
    meaning: str


class Origin(msgspec.Struct, frozen=True):
    """What one place in the code holds at the peak: ``blocks`` allocations, ``bytes`` in all.

    ``stack`` is innermost first, empty where it is not known; the last origin of a list may
    be the sum of all smaller ones, with the category ``smaller``. ``block_bytes`` are as in an
    `Allocation`.
    """

    category: str
    phase: str
    bytes: int
    blocks: int
    stack: list[str]
    block_bytes: int | None = None


class OomSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was resident at the instant of the refusal, as the memory pass had recorded it.

    ``op`` is the innermost operator that was under way, ``module`` the module that computed.
    The rows of ``ledger`` sum to what was allocated; ``origins`` and ``largest`` are as in the
    memory block. ``timeline`` ends with the refusal, at ``refused_ms``.
    """

    op: str | None = None
    module: str | None = None
    free_bytes: int | None = None
    ledger: list[LedgerRow] = []
    origins: list[Origin] = []
    largest: list[Allocation] = []
    timeline: Timeline | None = None
    refused_ms: float | None = None
    missing: dict[str, str] = {}


class WouldFit(msgspec.Struct, frozen=True, kw_only=True):
    """The largest value of a key with which the predicted peak fits, all else as asked.

    ``largest`` is 0 where nothing does; ``peak_bytes`` is the predicted peak there.
    """

    key: str
    asked: int
    largest: int
    peak_bytes: int | None


class Oom(OomSnapshot, frozen=True, kw_only=True, tag_field="event", tag="OutOfMemory"):
    """An allocator refused: where, what it was asked for, and what it had.

    Attributes:
        t_ns: When, in nanoseconds since the Unix epoch.
        phase: ``build`` or the phase of the step.
        requested_bytes: What was asked for.
        free_bytes: What could still be had: of the device, or of the limit where there is one.
        allocated_bytes: What tensors held.
        reserved_bytes: What the caching allocator held of the device.
        largest_free_bytes: The largest piece that it held and had not handed out.
        limit_bytes: The spec's ``memory_limit``; null without one.
        capacity_bytes: What this process could have had in all.
        message: The allocator's own words.
        stack: Our frames, innermost first.
        expression: The code that the innermost of them was evaluating.
        rank: The rank that this happened to; null where there is only one.
        predicted_peak_bytes: Of a steady step of this spec, by the closed form.
        would_fit: What would fit into ``capacity_bytes``, by the closed form.
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
    predicted_peak_bytes: int | None = None
    would_fit: list[WouldFit] = []
