"""What is known of a pass that ran out of memory."""

from __future__ import annotations

import msgspec

from .record.memory import Allocation, LedgerRow, Origin, Timeline


class Alive(msgspec.Struct, frozen=True, kw_only=True):
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


class Oom(Alive, frozen=True, kw_only=True, tag_field="event", tag="OutOfMemory"):
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
