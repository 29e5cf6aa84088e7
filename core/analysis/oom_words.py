"""A refusal in sentences: what was asked for, what held the memory, what would fit."""

from __future__ import annotations

from ..formatting import format_bytes
from ..record.memory import Oom

LARGEST_ROWS = 3


def refused(oom: Oom) -> str:
    """``128 MiB asked for in forward, 92.7 MiB free``."""
    asked = (
        "an unknown amount" if oom.requested_bytes is None else format_bytes(oom.requested_bytes)
    )
    told = f"{asked} asked for in {oom.phase}"
    if oom.free_bytes is not None:
        told += f", {format_bytes(oom.free_bytes)} free"
    if oom.largest_free_bytes:
        told += f", the allocator's largest free block {format_bytes(oom.largest_free_bytes)}"
    return told


def asked_by(oom: Oom) -> str:
    """``aten::div in blocks.0.attention``, as far as both are known."""
    return " in ".join(part for part in (oom.op, oom.module) if part)


def place(oom: Oom) -> str:
    """Our innermost frame."""
    return oom.stack[0] if oom.stack else ""


def held(oom: Oom) -> str:
    """``196 MiB of 300 MiB allocated``; empty where nobody counted."""
    if oom.allocated_bytes is None:
        return ""
    capacity = "" if oom.capacity_bytes is None else f" of {format_bytes(oom.capacity_bytes)}"
    return f"{format_bytes(oom.allocated_bytes)}{capacity} allocated"


def largest_rows(oom: Oom) -> str:
    """The largest rows of the ledger."""
    rows = sorted(oom.ledger, key=lambda row: -row.bytes)[:LARGEST_ROWS]
    return ", ".join(f"{row.name} {format_bytes(row.bytes)}" for row in rows)


def what_fits(oom: Oom) -> str:
    """What the closed form says would fit; empty where it says nothing."""
    if not oom.would_fit or oom.capacity_bytes is None:
        return ""
    capacity = format_bytes(oom.capacity_bytes)
    smaller = [one for one in oom.would_fit if one.largest < one.asked]
    if not smaller:
        return (
            f"by the closed form this spec fits into {capacity}: libraries, fragmentation or the "
            "recording took the rest"
        )
    fitting = [f"{one.key} {one.largest:,} (not {one.asked:,})" for one in smaller if one.largest]
    if not fitting:
        return f"by the closed form not even batch 1 or context 1 fits into {capacity}"
    return f"by the closed form {' or '.join(fitting)} fits into {capacity}"
