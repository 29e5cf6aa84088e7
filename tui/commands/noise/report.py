"""The noise floor as lines: figures, sources, what comparisons can find, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....core.analysis.verdict.noise import Source
from ....core.analysis.verdict.text import headline
from ....core.formatting import counted, milliseconds, percent, signed_percent
from ....core.runs.ab.noise import NoiseFloor, Remedy
from ....core.runs.ab.noise_doctor import Examined
from ....core.tables.cells import literal
from ..report import layout
from ..report.layout import Line, blank, prose, titled

_COLUMN = 19
_GLUE = "\N{NO-BREAK SPACE}%"
_CHANGES = ("drift", "order", "clock", "neighbours", "first touch")


def examined_lines(result: Examined, width: int, *, tried: bool) -> Iterator[Line]:
    """All lines of a result; no line ends between a number and its percent sign.

    Args:
        result: What was measured.
        width: Columns to fill.
        tried: Whether remedies were tried.
    """
    for line in _lines(result, width, tried=tried):
        yield [(text.replace(_GLUE, " %"), style) for text, style in line]


def _lines(result: Examined, width: int, *, tried: bool) -> Iterator[Line]:
    floor = result.floor
    if floor is None:
        yield from prose(result.detail, width)
        if result.ending == "out-of-time":
            yield from prose("a longer measurement has them: --minutes", width, style="dim")
        return
    text = f"{literal(floor.device)}: processes of one spec differ by ±{_share(floor.between)}"
    yield from prose(text, width, style="bold")
    yield from prose(_summary(floor, result), width)
    yield from titled("What this machine can tell", _finds(result, floor, width))
    yield from titled("Where the noise comes from", _sources(floor, width))
    yield from titled("What to do", _remedies(floor, width, tried=tried))
    yield blank()
    kept = "kept for this device: compare, ab and gate use it; docs/noise.md explains each line"
    yield from prose(kept, width, style="dim")


def _summary(floor: NoiseFloor, result: Examined) -> str:
    left = f", {counted(floor.left_out, 'disturbed round')} left out" if floor.left_out else ""
    step = f", {milliseconds(floor.step_ms)} a step" if floor.step_ms is not None else ""
    ended = " (stopped on request)" if result.ending == "cancelled" else ""
    return (
        f"{literal(floor.subject)}, {floor.rounds} fresh processes in "
        f"{floor.seconds / 60:.1f} minutes{ended}{step}{left}; torch {floor.torch or 'unknown'}"
    )


def _finds(result: Examined, floor: NoiseFloor, width: int) -> Iterator[Line]:
    if floor.pair is not None:
        text = f"95 % of all pairs of these processes differ by at most {_share(floor.pair)}: from "
        text += "one process a side, nothing smaller means anything"
        yield from _labelled("one against one", text, width)
    if result.finds:
        found = ", ".join(
            f"{_share(row.difference)} in {row.rounds} rounds" for row in result.finds
        )
        text = f"a slowdown of {found} is found with a chance of 80 %"
        yield from _labelled("ab", text, width)
    if result.verdict is not None:
        text = headline(result.verdict)
        if result.verdict.differs:
            text += "; both sides are the same spec: 5 % of such comparisons end like this"
        yield from _labelled("A against A", text, width)


def _sources(floor: NoiseFloor, width: int) -> Iterator[Line]:
    for source in floor.sources:
        style = "yellow" if source.found else ""
        text = f"{_figure(source)}{literal(source.how)}"
        yield from _labelled(source.name, text, width, style=style)


def _labelled(
    label: str,
    text: str,
    width: int,
    *,
    column: int = _COLUMN,
    style: str = "",
    label_style: str = "dim",
) -> list[Line]:
    return layout.labelled(
        label,
        text.replace(" %", _GLUE),
        width,
        column=column,
        style=style,
        label_style=label_style,
    )


def _figure(source: Source) -> str:
    """``±1.21 % (0.95 % to 1.66 %): ``, or ``found: +3.1 % (+1.2 % to +5.0 %): ``."""
    if source.share is None:
        return ""
    is_change = source.name in _CHANGES
    word = {True: "found, ", False: "none found, ", None: "not tested, " if is_change else ""}
    shown = _change if is_change else _share
    sign = "±" if source.name in ("between processes", "inside a process") else ""
    text = f"{word[source.found]}{sign}{shown(source.share)}"
    if source.low is not None and source.high is not None:
        text += f" ({shown(source.low)} to {shown(source.high)})"
    return f"{text}: "


def _share(share: float) -> str:
    """A percentage with three digits, since a clock's granularity and a busy machine's spread are
    five orders of magnitude apart."""
    return percent(share, _decimals(share))


def _change(change: float) -> str:
    return signed_percent(change, _decimals(change))


def _decimals(share: float) -> int:
    size = math.floor(math.log10(abs(100 * share))) if share else 0
    return min(5, max(0, 2 - size))


def _remedies(floor: NoiseFloor, width: int, *, tried: bool) -> Iterator[Line]:
    for remedy in floor.remedies:
        yield from _labelled(remedy.name, "", width, label_style="bold")
        text = f"{_effect(remedy)}{literal(remedy.detail)}"
        yield from _labelled("", text, width, column=2)
    if not floor.remedies:
        yield from prose("  nothing stands out", width)
    if not tried:
        text = "`doctor --noise --remedies` tries others, each with its measured effect"
        yield from prose(f"  {text}", width, hang=2, style="dim")


def _effect(remedy: Remedy) -> str:
    if remedy.before is None or remedy.after is None:
        return ""
    text = f"spread {_share(remedy.before)} without, {_share(remedy.after)} with it"
    if remedy.ratio is not None and remedy.low is not None and remedy.high is not None:
        text += f", × {remedy.ratio:.2f} ({remedy.low:.2f} to {remedy.high:.2f})"
    return f"{text}; "
