"""The event with which a recorded allocator said no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import DamagedFileError
from .memory.history import Frame, Stack

OOM = "oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What was asked for, when, and by whom.

    Attributes:
        time_ns: Nanoseconds since the Unix epoch.
        bytes: What was asked for.
        stack: Of the request, innermost frame first.
        op: The innermost operator under way; None where operators were not recorded.
    """

    time_ns: int
    bytes: int
    stack: Stack = ()
    op: str | None = None


class _Frame(msgspec.Struct, gc=False):
    filename: str = ""
    line: int = 0
    name: str = ""


class _Event(msgspec.Struct, gc=False):
    size: int
    time_us: int
    frames: list[_Frame] = []


def refusal_in(snapshot: Mapping[str, Any], device: int) -> Refusal | None:
    """The last refusal of one device in a snapshot that this process took; None without any.

    Raises:
        DamagedFileError: torch changed the form of its snapshots.
    """
    traces = snapshot.get("device_traces", [])
    events = traces[device] if device < len(traces) else []
    last = next((one for one in reversed(events) if one.get("action") == OOM), None)
    if last is None:
        return None
    try:
        event = msgspec.convert(last, _Event)
    except msgspec.ValidationError as error:
        raise DamagedFileError(f"not a memory snapshot: {error}") from error
    return Refusal(
        # The middle of the microsecond that the allocator wrote down, as in a history.
        time_ns=event.time_us * 1000 + 500,
        bytes=event.size,
        stack=tuple(Frame(one.filename, one.line, one.name) for one in event.frames),
    )
