"""A record in at most 4 KiB of JSON or 30 lines: the overview, findings, and what is missing."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sysbench.core.record.record import Record
from sysbench.core.tables.overview import overview, overview_text

MAX_BYTES = 4096
ENVELOPE_BYTES = 256
"""Left for the keys of every document, and for escapes."""
MAX_LINES = 30
LIMITS = ((240, 8), (160, 6), (120, 4), (80, 3), (60, 2), (40, 1))
"""Characters of a text and entries of a list, tried in turn until the document fits."""
COMMAND = re.compile(r"`(sysbench-tui [^`]+)`")


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A summary; ``shortened`` if texts or lists were cut to fit.

    ``step``, ``modules``, ``kernels`` and ``memory`` are the largest parts with their shares, and
    ``next`` the commands that the findings name.
    """

    subject: str
    figures: list[str]
    step: list[dict[str, Any]] = []
    modules: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    next: list[str] = []
    shortened: bool = False


def brief(record: Record, subject: str) -> Brief:
    """Sum up a run or an imported file within the limit."""
    shown = overview(record)
    named = [shown.finding] if shown.finding else []
    findings = [*shown.health, *named, *shown.further, *shown.warnings]
    rows = {
        "step": shown.phases,
        "modules": shown.modules,
        "kernels": shown.kernels,
        "memory": shown.memory,
    }
    whole: dict[str, Any] = {
        "subject": subject,
        "figures": [*shown.figures],
        **{
            name: [
                {"name": part.name, "amount": part.amount, "share": round(part.share, 4)}
                for part in parts
            ]
            for name, parts in rows.items()
        },
        "findings": [
            {
                "key": f"findings:{one.rule}",
                **{name: getattr(one, name) for name in ("severity", "verdict", "why", "next")},
                "numbers": one.numbers,
            }
            for one in findings
        ],
        "missing": record.missing,
        "next": [*dict.fromkeys(text for one in findings for text in COMMAND.findall(one.next))],
    }
    for characters, entries in LIMITS:
        cut = {name: _cut(value, characters, entries) for name, value in whole.items()}
        document = msgspec.convert({**cut, "shortened": cut != whole}, Brief)
        text = msgspec.json.format(msgspec.json.encode(document), indent=0)
        # Control characters are escaped when the document is printed.
        if len(ascii(text.decode())) <= MAX_BYTES - ENVELOPE_BYTES:
            break
    return document


def _cut(value: Any, characters: int, entries: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[: characters - 1]}…"
    if isinstance(value, list):
        return [_cut(one, characters, entries) for one in value[:entries]]
    if isinstance(value, dict):
        kept = [*value.items()][: max(entries, 6)]  # a finding has six keys
        return {name[:characters]: _cut(one, characters, entries) for name, one in kept}
    return value


def brief_lines(record: Record, subject: str, width: int) -> list[str]:
    """Return the overview and what is missing in at most 30 lines."""
    lines = [subject, *overview_text(record, width).splitlines()]
    lines += [f"missing {name}: {why}"[:width] for name, why in record.missing.items()]
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[: MAX_LINES - 1], f"… {len(lines) - MAX_LINES + 1} more lines without --brief"]
