"""Runs of the same spec with another kind of step, from the library."""

from __future__ import annotations

import msgspec

from .analysis.kernels.questions import GEMM_STEPS
from .errors import SysbenchError
from .record.record import Record
from .runs.builder import settled_record
from .runs.library import Entry, Library
from .spec.spec import RunSpec

SAME = ("model", "batch", "context", "precision", "attention", "compile", "device")
FREE = (
    *("step", "optimizer", "clip", "warmup", "steps", "until", "max_steps", "max_seconds"),
    *("sync", "seed", "memory_limit"),
)
"""Keys of a spec that may differ: they do not change what a kernel of forward computes."""


def other_steps(record: Record, library: Library | None = None) -> list[Record]:
    """The newest traced run of each other kind of step, the specs alike otherwise.

    Runs that cannot be read any more are passed over; a foreign trace has no spec and so
    none of these.
    """
    if not record.spec:
        return []
    runs = library or Library()
    found: dict[str, Record] = {}
    for entry in runs.entries(str(record.spec["model"])):
        wanted = entry.step in GEMM_STEPS and entry.step not in (record.spec["step"], *found)
        if not wanted or entry.live or not _alike(entry, record):
            continue
        try:
            other = settled_record(runs.open(entry.id))
        except SysbenchError:
            continue
        if other.kernels is not None and _deciding(other) == _deciding(record):
            found[entry.step] = other
    return list(found.values())


def _alike(entry: Entry, record: Record) -> bool:
    return "trace" in entry.passes and all(getattr(entry, key) == record.spec[key] for key in SAME)


def _deciding(record: Record) -> dict[str, object]:
    """The rest of the spec; keys that came after the record was written at their defaults."""
    spec = msgspec.to_builtins(RunSpec()) | record.spec
    return {key: value for key, value in spec.items() if key not in FREE}
