"""`doctor --noise`: measure run-to-run variation and print it."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator

from sysbench.core.compare.noise_sources import NoiseSource
from sysbench.core.compare.verdict import headline
from sysbench.core.experiments.experiment_runner import (
    ExperimentEvent,
    RoundFinished,
    RoundStarting,
)
from sysbench.core.experiments.noise import NoiseFloor
from sysbench.core.experiments.noise_doctor import (
    ROUND_SECONDS,
    Examined,
    default_model,
    examine_noise,
)
from sysbench.core.formatting import counted, milliseconds, percent, signed_percent
from sysbench.core.machine.devices import resolve_device
from sysbench.core.record.events import Noticed
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import DIMENSION_NAMES, RunSpec, parse_spec
from sysbench.core.tables.cells import literal
from sysbench.tui.commands import text_lines
from sysbench.tui.commands.output import cancelled_by_signals, page_width, print_json, print_lines
from sysbench.tui.commands.progress import Fold, Progress
from sysbench.tui.commands.spec_arguments import parse_settings
from sysbench.tui.commands.text_lines import Line, blank, prose, titled
from sysbench.tui.text import interval

MINUTES = 3.0
_COLUMN = 19
_GLUE = "\N{NO-BREAK SPACE}%"
_CHANGES = ("drift", "order", "clock", "neighbours", "first touch")


def measure_noise(arguments: argparse.Namespace) -> int:
    """Measure and print; return 0, 130 if cancelled, or 1 without a result."""
    spec = _spec(arguments.settings)
    minutes = arguments.minutes or MINUTES
    cancel = Cancellation()
    result: Examined | None = None
    with cancelled_by_signals(cancel), Progress(NoiseFold(), json=arguments.json) as progress:
        progress.say(
            f"{spec.model} on {spec.device} against itself for {minutes:g} minutes; "
            "Ctrl+C stops it; 8 rounds are enough to save a result"
        )
        for item in examine_noise(spec, minutes=minutes, cancel=cancel):
            if isinstance(item, Examined):
                result = item
            else:
                progress.show(item)
    assert result is not None  # always the last item
    if arguments.json:
        print_json(result)
    else:
        print_lines(examined_lines(result, page_width()))
    if result.ending == "cancelled":
        return 130
    return 0 if result.floor is not None else 1


def _spec(settings: list[str]) -> RunSpec:
    changes = parse_settings(settings)
    asked = parse_spec({key: changes[key] for key in ("device",) if key in changes})
    defaults: dict[str, object] = {"max_seconds": ROUND_SECONDS}
    if not changes.keys() >= set(DIMENSION_NAMES) and "workload" not in changes:
        defaults["model"] = default_model(resolve_device(asked.device))
    return resolve(parse_spec(defaults | changes))


class NoiseFold(Fold[ExperimentEvent]):
    def __init__(self) -> None:
        self._medians: list[float] = []

    def take(self, event: ExperimentEvent) -> str:
        match event:
            case RoundStarting(again=again) if again:
                return f"again: {again}"
            case RoundFinished():
                return self._round(event)
            case Noticed():
                return event.message
            case _:
                return ""

    def _round(self, finished: RoundFinished) -> str:
        row, medians = finished.round, self._medians
        if not row.counts or row.median_ms is None:
            return f"round of {finished.side} does not count: {row.disturbed or row.outcome}"
        medians.append(row.median_ms)
        text = f"round {len(medians):>3} {finished.side}  {milliseconds(row.median_ms)}"
        text += f"  {interval(row.half_width)} inside" if row.half_width else ""
        if len(medians) < 3:
            return text
        spread = statistics.stdev(medians) / statistics.fmean(medians)
        return f"{text}, {interval(spread)} between {len(medians)}"


def examined_lines(result: Examined, width: int) -> Iterator[Line]:
    """Yield all lines; never break between a number and its percent sign."""
    for line in _lines(result, width):
        yield [(text.replace(_GLUE, " %"), style) for text, style in line]


def _lines(result: Examined, width: int) -> Iterator[Line]:
    floor = result.floor
    if floor is None:
        yield from prose(result.detail, width)
        if result.ending == "out-of-time":
            yield from prose("measure longer: --minutes", width, style="dim")
        return
    text = f"{literal(floor.device)}: processes of one spec differ by ±{_share(floor.between)}"
    yield from prose(text, width, style="bold")
    yield from prose(_summary(floor, result), width)
    yield from titled("What this machine can detect", _finds(result, floor, width))
    yield from titled("Where the noise comes from", _sources(floor, width))
    yield from titled("What to do", _remedies(floor, width))
    yield blank()
    saved = "saved for compare, ab and gate on this device; docs/noise.md explains each line"
    yield from prose(saved, width, style="dim")


def _summary(floor: NoiseFloor, result: Examined) -> str:
    left = f", {counted(floor.left_out, 'disturbed round')} excluded" if floor.left_out else ""
    step = f", {milliseconds(floor.step_ms)} per step" if floor.step_ms is not None else ""
    ended = " (stopped on request)" if result.ending == "cancelled" else ""
    return (
        f"{literal(floor.subject)}, {floor.rounds} fresh processes in "
        f"{floor.seconds / 60:.1f} minutes{ended}{step}{left}; torch {floor.torch or 'unknown'}"
    )


def _finds(result: Examined, floor: NoiseFloor, width: int) -> Iterator[Line]:
    if floor.pair is not None:
        text = f"95 % of all pairs of these processes differ by at most {_share(floor.pair)}: with "
        text += "one process per side, smaller differences are noise"
        yield from _labelled("one against one", text, width)
    if result.finds:
        differences = ", ".join(
            f"{_share(row.difference)} in {row.rounds} rounds" for row in result.finds
        )
        text = f"detects a slowdown of {differences} with 80 % power"
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
    return text_lines.labelled(
        label,
        text.replace(" %", _GLUE),
        width,
        column=column,
        style=style,
        label_style=label_style,
    )


def _figure(source: NoiseSource) -> str:
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
    """Format a percentage with three digits; values span five orders of magnitude."""
    return percent(share, _decimals(share))


def _change(change: float) -> str:
    return signed_percent(change, _decimals(change))


def _decimals(share: float) -> int:
    size = math.floor(math.log10(abs(100 * share))) if share else 0
    return min(5, max(0, 2 - size))


def _remedies(floor: NoiseFloor, width: int) -> Iterator[Line]:
    for remedy in floor.remedies:
        yield from _labelled(remedy.name, "", width, label_style="bold")
        yield from _labelled("", literal(remedy.detail), width, column=2)
    if not floor.remedies:
        yield from prose("  nothing to fix", width)
