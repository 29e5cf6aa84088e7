"""Describe an out-of-memory failure: the failed request, and the sizes that would fit."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec

from sysbench.core.formatting import BINARY_UNITS, format_bytes
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.predict.fit_grid import AvailableMemory, FitKey, fit
from sysbench.core.record.events import OutOfMemory
from sysbench.core.record.memory import Oom, OomSnapshot, WouldFit
from sysbench.core.record.record import PassRecord, Record
from sysbench.core.spec.spec import RunSpec

CPU_REFUSAL = re.compile(r"tried to allocate (\d+) bytes")
OTHER_REFUSAL = re.compile(r"(?:Tried|Unable) to allocate ([0-9.]+) ([KMGT]iB)")
"""Of CUDA's allocator, and of numpy."""
KEYS: tuple[FitKey, ...] = ("batch", "context")
NOT_RECORDED = "only the memory pass records allocations, and it did not run out of memory"


def describe_oom(
    event: OutOfMemory, alive: OomSnapshot | None, spec: RunSpec, capability: str | None = None
) -> Oom:
    facts: dict[str, Any] = msgspec.structs.asdict(event)
    missing = dict(event.missing)
    if alive is None:
        missing["ledger"] = NOT_RECORDED
    else:
        recorded = msgspec.structs.asdict(alive)
        facts |= {key: value for key, value in recorded.items() if value is not None}
        missing |= alive.missing
        if event.allocated_bytes is None:
            facts["allocated_bytes"] = sum(row.bytes for row in alive.ledger)
    why = why_not_predicted(spec)
    if why is None:
        facts["predicted_peak_bytes"] = predict(spec, capability).peak_bytes
        facts["would_fit"] = _would_fit(spec, event.capacity_bytes, capability)
    else:
        missing |= dict.fromkeys(("predicted_peak_bytes", "would_fit"), why)
    unknown = {key: why for key, why in missing.items() if facts.get(key) is None}
    return Oom(**facts | {"missing": unknown})


def _would_fit(spec: RunSpec, capacity_bytes: int | None, capability: str | None) -> list[WouldFit]:
    if capacity_bytes is None:
        return []
    # The capacity is the process's own, without driver and context.
    room = AvailableMemory(
        least=capacity_bytes, most=capacity_bytes, is_cuda=spec.on_cuda, capability=capability
    )
    predict_here = partial(predict, capability=capability)
    fits = [fit(spec, key, capacity_bytes, predict_here, room=room) for key in KEYS]
    return [
        WouldFit(
            key=row.key,
            asked=getattr(spec, row.key),
            largest=row.largest,
            peak_bytes=row.peak_bytes,
        )
        for row in fits
    ]


def out_of_memory(record: Record) -> tuple[PassRecord, Oom] | None:
    """The out-of-memory pass with the most detail, or None."""
    ended = [
        (pass_record, pass_record.oom)
        for pass_record in record.passes
        if pass_record.oom is not None
    ]
    return max(ended, key=lambda pass_and_oom: bool(pass_and_oom[1].ledger), default=None)


def requested_bytes(message: str) -> int | None:
    """Requested bytes in the allocator's message; None if it has no size."""
    if match := CPU_REFUSAL.search(message):
        return int(match[1])
    if match := OTHER_REFUSAL.search(message):
        return round(float(match[1]) * BINARY_UNITS[match[2]])
    return None


LARGEST_ROWS = 3


def refused(oom: Oom) -> str:
    """``tried to allocate 128 MiB in forward, 92.7 MiB free``."""
    requested = (
        "an unknown amount" if oom.requested_bytes is None else format_bytes(oom.requested_bytes)
    )
    text = f"tried to allocate {requested} in {oom.phase}"
    if oom.free_bytes is not None:
        text += f", {format_bytes(oom.free_bytes)} free"
    if oom.largest_free_bytes:
        text += f", the allocator's largest free block {format_bytes(oom.largest_free_bytes)}"
    return text


DECIDED_BY_BATCH = ("inputs", "activations", "outputs", "kv cache")
"""Rows of a ledger that shrink with batch and context, with temporaries of the model's phases."""
WEIGHT_PHASES = ("build", "clip", "optimizer", "zero-grad")
"""Phases whose requests do not depend on batch and context."""


def remedy(oom: Oom, *, is_trained: bool = True) -> str:
    """Say what would help, as a sentence: it depends on what holds the memory."""
    fits = what_fits(oom) or "lower batch or context"
    by_batch = sum(row.bytes for row in oom.ledger if _is_decided_by_batch(row.name))
    missing_bytes = (oom.requested_bytes or 0) - (oom.free_bytes or 0)
    if oom.ledger:
        # What backward requests for activations is no larger than all of them.
        is_of_weights = oom.phase in (*WEIGHT_PHASES, "backward") and by_batch < missing_bytes
    else:
        is_of_weights = oom.phase in WEIGHT_PHASES
    if not is_of_weights or any(row.largest for row in oom.would_fit):
        return f"{fits[0].upper()}{fits[1:]}."
    what = "another optimizer, a lower precision or shards" if is_trained else "a lower precision"
    why = "requests of this phase do not depend on batch and context"
    if oom.ledger:
        whole = oom.allocated_bytes or sum(row.bytes for row in oom.ledger)
        why = (
            f"batch and context cannot help, they decide {format_bytes(by_batch)} of the "
            f"{format_bytes(whole)}"
        )
    return f"Use {what}: {why}. `estimate --savings` predicts what each change saves."


def _is_decided_by_batch(row: str) -> bool:
    of_weights = {f"temporaries ({phase})" for phase in WEIGHT_PHASES}
    return row in DECIDED_BY_BATCH or (row.startswith("temporaries") and row not in of_weights)


def asked_by(oom: Oom) -> str:
    """``aten::div in blocks.0.attention``, or whichever of both is known."""
    return " in ".join(part for part in (oom.op, oom.module) if part)


def place(oom: Oom) -> str:
    """The innermost frame of the product's code."""
    return oom.stack[0] if oom.stack else ""


def held(oom: Oom) -> str:
    """``196 MiB of 300 MiB allocated, 40.0 MiB reserved and free``; empty without a count."""
    if oom.allocated_bytes is None:
        return ""
    capacity = "" if oom.capacity_bytes is None else f" of {format_bytes(oom.capacity_bytes)}"
    unused = (oom.reserved_bytes or 0) - oom.allocated_bytes
    reserved = f", {format_bytes(unused)} reserved and free" if unused > 0 else ""
    return f"{format_bytes(oom.allocated_bytes)}{capacity} allocated{reserved}"


def largest_rows(oom: Oom) -> str:
    rows = sorted(oom.ledger, key=lambda row: -row.bytes)[:LARGEST_ROWS]
    return ", ".join(f"{row.name} {format_bytes(row.bytes)}" for row in rows)


def what_fits(oom: Oom) -> str:
    """Name the sizes that would fit by the closed form, as a clause; empty without a prediction."""
    if not oom.would_fit or oom.capacity_bytes is None:
        return ""
    capacity = format_bytes(oom.capacity_bytes)
    smaller = [row for row in oom.would_fit if row.largest < row.asked]
    if not smaller:
        return (
            f"by the closed form this spec fits into {capacity}: libraries, fragmentation or the "
            "recording used the rest"
        )
    fitting = [f"{row.key} {row.largest:,} (not {row.asked:,})" for row in smaller if row.largest]
    if not fitting:
        return f"by the closed form not even batch 1 or context 1 fits into {capacity}"
    return f"by the closed form {' or '.join(fitting)} fits into {capacity}"
