"""An answer in at most 4 KiB of JSON or 30 lines: its summary, findings, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sysbench.core.record.record import Finding, Record
from sysbench.core.tables.overview import overview
from sysbench.core.tables.table import Table

MAX_BYTES = 4096
ENVELOPE_BYTES = 256
"""Left for the keys of every document, and for escapes."""
MAX_LINES = 30
LIMITS = ((240, 8), (160, 6), (120, 4), (80, 3), (60, 2), (40, 1))
"""Characters of a text and entries of a list, tried in turn until the document fits."""
MIN_KEYS = 6
"""A finding has six."""
COMMAND = re.compile(r"`(sysbench-tui [^`]+)`")


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A summary; ``shortened`` if texts or lists were cut to fit.

    ``step``, ``modules``, ``kernels`` and ``memory`` are the largest parts of a run or file with
    their shares, ``tables`` the first rows of other answers, and ``next`` the commands that the
    findings name.
    """

    subject: str
    figures: list[str]
    numbers: dict[str, Any] = {}
    step: list[dict[str, Any]] = []
    modules: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    tables: dict[str, list[dict[str, Any]]] = {}
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
    parts = {
        name: [
            {"name": part.name, "amount": part.amount, "share": round(part.share, 4)}
            for part in listed
        ]
        for name, listed in rows.items()
    }
    return brief_of(subject, shown.figures, findings=findings, missing=record.missing, parts=parts)


def brief_of(
    subject: str,
    figures: Iterable[str],
    *,
    numbers: Mapping[str, Any] | None = None,
    tables: Iterable[Table] = (),
    findings: Sequence[Finding] = (),
    missing: Mapping[str, str] | None = None,
    following: Iterable[str] = (),
    parts: Mapping[str, Any] | None = None,
) -> Brief:
    """Sum up any answer within the limit.

    Args:
        numbers: Values of the answer; those that are unknown or not single are left out.
        following: Texts with commands in backquotes, beside those of the findings.
        parts: Rows by their key of the document.
    """
    texts = [*(one.next for one in findings), *following]
    whole: dict[str, Any] = {
        "subject": subject,
        "figures": [*filter(None, figures)],
        "numbers": {
            name: value
            for name, value in (numbers or {}).items()
            if isinstance(value, str | int | float) and value != ""
        },
        **(parts or {}),
        "tables": {table.name: _rows(table) for table in tables},
        "findings": [
            {
                "key": f"findings:{one.rule}",
                **{name: getattr(one, name) for name in ("severity", "verdict", "why", "next")},
                "numbers": one.numbers,
            }
            for one in findings
        ],
        "missing": {**(missing or {})},
        "next": [*dict.fromkeys(text for one in texts for text in COMMAND.findall(one))],
    }
    for characters, entries in LIMITS:
        cut = {name: shorten(value, characters, entries) for name, value in whole.items()}
        document = msgspec.convert({**cut, "shortened": cut != whole}, Brief)
        text = msgspec.json.format(msgspec.json.encode(document), indent=0)
        # Control characters are escaped when the document is printed.
        if len(ascii(text.decode())) <= MAX_BYTES - ENVELOPE_BYTES:
            break
    return document


def _rows(table: Table) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in table.shown if row[name] is not None}
        for row in table.mappings()
    ]


def shorten(value: Any, characters: int, entries: int) -> Any:
    """Cut texts to this many characters, and lists and objects to their first entries."""
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[: characters - 1]}…"
    if isinstance(value, list):
        return [shorten(one, characters, entries) for one in value[:entries]]
    if isinstance(value, dict):
        kept = [*value.items()][: max(entries, MIN_KEYS)]
        return {name[:characters]: shorten(one, characters, entries) for name, one in kept}
    return value


def brief_lines(lines: Sequence[str], missing: Mapping[str, str], width: int) -> list[str]:
    """Return the first lines of a report and what is missing, in at most 30 lines."""
    last = [f"missing {name}: {why}"[:width] for name, why in missing.items()][: MAX_LINES // 2]
    room = MAX_LINES - len(last)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines without --brief"]
    return [*lines, *last]
