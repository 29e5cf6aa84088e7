"""Numbers as the screens write them. Unknown is ``n/a``, never zero."""

from __future__ import annotations

import time

from ..core import formatting as quantities
from ..core.formatting import format_bytes, format_count

UNKNOWN = "n/a"


def milliseconds(value: float | None) -> str:
    """Four significant digits with the unit: ``184.2 ms``."""
    return UNKNOWN if value is None else f"{significant(value)} ms"


def significant(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never in exponent form."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, digits - max(whole, 1))}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one as ``31.2 %``."""
    return UNKNOWN if share is None else quantities.percent(share, digits)


def signed_percent(share: float | None, digits: int = 1) -> str:
    """A change as ``+3.7 %``; the sign is always there."""
    return UNKNOWN if share is None else quantities.signed_percent(share, digits)


def plural(count: int, noun: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def interval(half_width: float | None) -> str:
    """The half-width of a median's interval as ``±0.42 %``."""
    return "" if half_width is None else f"±{half_width * 100:.2g} %"


def amount(count: float | None) -> str:
    """Bytes in the largest binary unit."""
    return UNKNOWN if count is None else format_bytes(count)


def operations(count: float | None) -> str:
    """Floating-point operations: ``4.11 TFLOP``."""
    return UNKNOWN if count is None else f"{format_count(count)}FLOP"


def short_count(count: float) -> str:
    """A count with a metric suffix: ``969 M``."""
    return format_count(count).strip()


def elapsed(seconds: float) -> str:
    """A duration as a clock shows it: ``0:14``, ``1:02:03``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_of_day(t_ns: int) -> str:
    """Local time of an event: ``12:04:11``."""
    return time.strftime("%H:%M:%S", time.localtime(t_ns / 1e9))


def day_and_time(t_ns: int) -> str:
    """Local date and time of a run: ``11-21 12:04``."""
    return time.strftime("%m-%d %H:%M", time.localtime(t_ns / 1e9))
