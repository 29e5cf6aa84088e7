"""Format what the timeline says: times, names, gaps, and letters for categories."""

from __future__ import annotations

import re
import textwrap

from sysbench.core.formatting import format_duration
from sysbench.core.tables.cells import literal
from sysbench.core.trace.classify import (
    BETWEEN,
    HOST_LATE,
    LAUNCHING,
    ON_SYNC,
    OUTSIDE_OPERATORS,
    UNKNOWN,
    idle_label,
)
from sysbench.core.trace.lane_drawing import Gap
from sysbench.core.trace.lanes import UNATTRIBUTED
from sysbench.tui.text import truncate
from sysbench.tui.widgets.traces import Span

STATUS_ROWS = 4


def tick_step(span: int, most: int) -> int:
    """Return the smallest step of 1, 2 or 5 times a power of ten with at most ``most`` ticks."""
    step = 1
    while span // step > most:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def format_instant(ns: int, step: int) -> str:
    unit, scale = ("s", 10**9) if step >= 10**8 else ("ms", 10**6)
    decimals = len(str((scale - 1) // step)) if step < scale else 0
    return f"{ns / scale:.{decimals}f} {unit}"


CATEGORY_LETTERS = {
    **{"softmax": "X", "embedding": "B", "communication": "M", "convolution": "V"},
    **{"random": "D", "reduce": "R", "other": "Z", "optimizer": "O", "zero-grad": "0"},
    **{"CUDA call": "U", "synchronizing call": "Y", "step": "T", "range": "J"},
    **{HOST_LATE: "L", ON_SYNC: "W", LAUNCHING: "I", BETWEEN: "K", UNKNOWN: "Q"},
    **{OUTSIDE_OPERATORS: "P", UNATTRIBUTED: "?"},
}
"""Where the first letter of a category is taken."""


def status_rows(title: str, facts: str, why: str, width: int) -> list[list[Span]]:
    """A title, then facts and causes; together at most `STATUS_ROWS` rows."""
    lines = textwrap.wrap(facts, width)[:2]
    lines += textwrap.wrap(why, width)
    if len(lines) > STATUS_ROWS - 1:
        lines = [truncate(facts, width), *textwrap.wrap(why, width)]
    if len(lines) > STATUS_ROWS - 1:
        rest = " ".join(lines[STATUS_ROWS - 2 :])
        lines = [*lines[: STATUS_ROWS - 2], truncate(rest, width)]
    lines += [""] * (STATUS_ROWS - 1 - len(lines))
    return [[(truncate(title, width), "point")], *([(line, "")] for line in lines)]


def gap_text(head: str, gap: Gap) -> str:
    """``idle 1.2 ms before it: waiting for the CPU … 1.1 ms, … · longest on the CPU: aten::to …``.

    ``head`` is the text before the causes, with ``{}`` for the gap's length.
    """
    pieces = [(idle_label(piece.cause), piece.end - piece.start) for piece in gap.pieces]
    pieces.sort(key=lambda piece: -piece[1])
    causes = [
        label if len(pieces) == 1 else f"{label} {format_duration(ns)}" for label, ns in pieces
    ]
    text = f"{head.format(format_duration(gap.ns))}: {', '.join(causes)}"
    host = ", ".join(f"{literal(name)} {format_duration(ns)}" for name, ns in gap.host.items())
    return f"{text} · longest on the CPU: {host}" if host else text


def letter_of(category: str) -> str:
    """Return the capital that stands for a category without colours."""
    return CATEGORY_LETTERS.get(category, category[:1].upper() or "?")


TEMPLATE = re.compile(r"<.*|\(.*", re.DOTALL)
QUALIFIERS = re.compile(r"^(void )?([a-z_]\w*::|\(anonymous namespace\)::)*")


def plain_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces and template arguments."""
    if not name.startswith("void ") and "<" not in name:
        return name
    return TEMPLATE.sub("", QUALIFIERS.sub("", name)) or name
