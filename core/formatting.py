"""Convert text to quantities and back: bytes in binary units, ratios, counts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from decimal import Decimal

UNKNOWN = "n/a"
"""Text of an unknown quantity, which is never shown as zero."""

MAX_NAME_CHARS = 60

BINARY_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

DECIMAL_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Units in which GPUs are sold."""


def parse_bytes(text: str) -> int:
    """Convert ``"24GiB"`` to bytes; ValueError for ``GB``, which is often confused with GiB."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): factor for unit, factor in BINARY_UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ValueError("bytes in binary units, such as 24GiB or 512MiB")
    return round(Decimal(match[1]) * units[match[2].lower()])


def parse_size(text: str) -> int:
    """Convert text to bytes, also decimal units: ``"80GB"`` is 80e9 bytes; raises ValueError."""
    if match := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(MB|GB|TB)\s*", text, re.IGNORECASE):
        return round(Decimal(match[1]) * DECIMAL_UNITS[match[2].upper()])
    try:
        return parse_bytes(text)
    except ValueError:
        raise ValueError("bytes, such as 24GiB, 512MiB or 80GB") from None


def format_bytes(count: float) -> str:
    """Format bytes with three significant digits: ``1.92 GiB``, ``0 B``, ``-35.5 MiB``."""
    magnitude, unit = float(abs(count)), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # From here on, three digits would round up to 1024 of the smaller unit.
        if magnitude >= BINARY_UNITS[larger] * (1 - 1 / 2048):
            unit = larger
    scaled = magnitude / BINARY_UNITS[unit]
    is_integer = unit == "B" or scaled >= 999.5  # rounds to four digits
    number = f"{scaled:.0f}" if is_integer else f"{scaled:#.3g}".rstrip(".")
    return f"{'-' if count < 0 else ''}{number} {unit}"


def parse_ratio(text: str) -> float:
    """Convert ``"0.5%"`` or ``"0.005"`` to 0.005; raises ValueError."""
    stripped = text.strip()
    if stripped.endswith("%"):
        return float(stripped[:-1]) / 100
    return float(stripped)


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share of one: ``31.2 %``."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f} %"


def percent_of(part: float, whole: float) -> str:
    """Format a part of a whole: ``31.2 %``; ``0.0 %`` if the whole is zero."""
    return percent(part / whole if whole else 0.0)


def signed_percent(change: float | None, digits: int = 1) -> str:
    """Format a change with its sign: ``+3.7 %``; zero after rounding is ``+0.0 %``."""
    if change is None:
        return UNKNOWN
    # + 0.0 turns -0.0 into 0.0.
    return f"{round(100 * change, digits) + 0.0:+.{digits}f} %"


def significant(value: float, digits: int = 4) -> str:
    """Format a number with N significant digits, never in exponent form."""
    integer_digits = len(str(int(abs(value)))) if abs(value) >= 1 else 1
    return f"{value:,.{max(0, digits - integer_digits)}f}"


def milliseconds(value: float | None) -> str:
    """Four significant digits with the unit: ``184.2 ms``."""
    return UNKNOWN if value is None else f"{significant(value)} ms"


def format_duration(ns: float) -> str:
    """Format nanoseconds with three digits and a unit: ``14 ns``, ``8.86 ms``, ``4 min 16 s``.

    From two hours, days or years on it is their number.
    """
    for long_unit, seconds_of in (("years", 31_557_600), ("days", 86_400), ("hours", 3600)):
        if ns >= 2e9 * seconds_of:
            return f"{significant(ns / 1e9 / seconds_of, 3)} {long_unit}"
    if ns >= 120e9:
        minutes, seconds = divmod(round(ns / 1e9), 60)
        return f"{minutes:,} min {seconds} s"
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= 0.9995 * factor:
            return f"{significant(ns / factor, 3)} {unit}"
    return f"{ns:.0f} ns"


def shortened(name: str, most: int = MAX_NAME_CHARS) -> str:
    """Shorten a name to ``most`` characters, cut in the middle: both ends identify it."""
    if len(name) <= most:
        return name
    tail = most // 3
    return f"{name[: most - tail - 1]}…{name[-tail:]}"


WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\")
HOMES = ("home", "users", "documents and settings")
"""Lower-case names of folders whose subfolders are named after people."""


def slashed(path: str) -> str:
    return path.replace("\\", "/") if WINDOWS_PATH.match(path) else path


def short_path(path: str) -> str:
    """Return a file with its folder only, without the folder if it is a home directory.

    Records get published, and the paths of homes are private.
    """
    *outer, folder, file = ["", "", *slashed(path).split("/")]
    is_home = bool(outer) and outer[-1].lower() in HOMES
    return f"{folder}/{file}" if folder and not is_home else file


def first_line(text: str) -> str:
    """Return the first line that is not blank, without blanks around it; empty if all are."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'batch'? `` for a name close to a known one, else an empty text."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? " if close else ""


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, for nouns with a plural in s: ``1 thread``, ``3 threads``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_count(count: float) -> str:
    """Format a large count with a metric suffix and three digits: ``4.11 T``, ``969 M``."""
    rounded = float(f"{count:.3g}")
    for suffix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= factor:
            return f"{rounded / factor:.7g} {suffix}"
    return f"{rounded:.3g} "
