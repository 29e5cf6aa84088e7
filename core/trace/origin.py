"""Rank and clock from the head of a chrome trace."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sysbench.core.trace.trace_json import EVENTS_KEY

GZIP_MAGIC = b"\x1f\x8b"
MAX_HEAD_BYTES = 2**22
"""Kineto writes all process groups with their ranks before the events."""
MAX_RANKS = 2**20


class TraceOrigin(NamedTuple):
    """Rank and size of the job, if known; ``group`` is the name of the only process group, else
    empty; ``clock_base_ns`` is the Unix time at which the file's times begin."""

    rank: int | None = None
    world_size: int | None = None
    group: str = ""
    clock_base_ns: int = 0


class _Head(msgspec.Struct):
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    base: Any = msgspec.field(name="baseTimeNanoseconds", default=0)


def read_origin(path: Path) -> TraceOrigin:
    """Read the origin from the text before the events; without facts if there are none.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        packed = file.peek()[:2] == GZIP_MAGIC
        head = gzip.GzipFile(fileobj=file).read(MAX_HEAD_BYTES) if packed else b""
        head = head or file.read(MAX_HEAD_BYTES)
    key = EVENTS_KEY.search(head)
    if key is None:
        return TraceOrigin()
    try:
        document = msgspec.json.decode(head[: key.end()] + b"]}", type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return TraceOrigin()  # whoever reads the events tells what is wrong with them
    facts = document.distributed if isinstance(document.distributed, dict) else {}
    groups = facts.get("pg_config")
    only = groups[0] if isinstance(groups, list) and len(groups) == 1 else {}
    name = only.get("pg_name") if isinstance(only, dict) else ""
    base = document.base
    return TraceOrigin(
        rank=_count(facts.get("rank")),
        world_size=_count(facts.get("world_size")),
        group=name[:256] if isinstance(name, str) else "",
        clock_base_ns=base if type(base) is int and 0 <= base < 2**62 else 0,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_RANKS else None
