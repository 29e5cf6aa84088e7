"""A refusal of the allocator as a record tells it, and what would have fitted."""

from __future__ import annotations

from typing import Any

import msgspec

from ...estimate.closed_form import predict, why_not_predicted
from ...estimate.grid import FitKey, fit
from ...record.events import OutOfMemory
from ...record.memory import Alive, Oom, WouldFit
from ...record.record import PassRecord, Record
from ...spec.spec import RunSpec

KEYS: tuple[FitKey, ...] = ("batch", "context")
NOT_RECORDED = "only the memory pass records allocations, and it did not run out of memory"


def describe_oom(event: OutOfMemory, alive: Alive | None, spec: RunSpec) -> Oom:
    """Everything that is known of the refusal.

    Args:
        alive: What the memory pass found; None in other passes.
    """
    facts: dict[str, Any] = msgspec.structs.asdict(event)
    missing = dict(event.missing)
    if alive is None:
        missing["ledger"] = NOT_RECORDED
    else:
        found = msgspec.structs.asdict(alive)
        facts |= {key: value for key, value in found.items() if value is not None}
        missing |= alive.missing
        if event.allocated_bytes is None:
            facts["allocated_bytes"] = sum(row.bytes for row in alive.ledger)
    why = why_not_predicted(spec)
    if why is None:
        facts["predicted_peak_bytes"] = predict(spec).peak_bytes
        facts["would_fit"] = _would_fit(spec, event.capacity_bytes)
    else:
        missing |= dict.fromkeys(("predicted_peak_bytes", "would_fit"), why)
    unknown = {key: why for key, why in missing.items() if facts.get(key) is None}
    return Oom(**facts | {"missing": unknown})


def _would_fit(spec: RunSpec, capacity_bytes: int | None) -> list[WouldFit]:
    if capacity_bytes is None:
        return []
    found = [fit(spec, key, capacity_bytes, predict) for key in KEYS]
    return [
        WouldFit(
            key=one.key,
            asked=getattr(spec, one.key),
            largest=one.largest,
            peak_bytes=one.peak_bytes,
        )
        for one in found
    ]


def out_of_memory(record: Record) -> tuple[PassRecord, Oom] | None:
    """The pass that tells most of how memory ran out, of those that did; None without any."""
    ended = [(one, one.oom) for one in record.passes if one.oom is not None]
    return max(ended, key=lambda each: bool(each[1].ledger), default=None)
