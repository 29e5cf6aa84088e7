"""The overview of a run or file: the number, where its time and memory go, and the main finding.

One layout for reports, screens, the HTML page and Markdown, so that all of them say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import fsum
from operator import attrgetter
from textwrap import wrap
from typing import Literal, NamedTuple

from msgspec.structs import replace

from sysbench.core.colours import look_of
from sysbench.core.findings.findings_rules import DISTURBANCES
from sysbench.core.formatting import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    milliseconds,
    percent,
)
from sysbench.core.record.environment import capacity_bytes
from sysbench.core.record.memory import BEFORE_RECORDING, NO_OWNER
from sysbench.core.record.record import SEVERITIES, Finding, Kernels, LedgerRow, Memory, Record
from sysbench.core.tables.cells import category_words, literal
from sysbench.core.tables.memory_tables import devices_text, peak_place
from sysbench.core.tables.timing_tables import energy_words
from sysbench.core.tables.trust import is_perturbed, mark_perturbed
from sysbench.core.trace.kernel_names import short_kernel_names
from sysbench.core.trace.module_tree import place_outside_modules, sum_by
from sysbench.core.trace.roofline import memory_bound_share

MOST = 3
"""Modules and kernels that an overview names."""
MEMORY_ROWS = 5
MAX_PHASES = 6
GAP = 2
WIDE, NARROW = 120, 72
"""Widths from which all three lists, or two of them, are side by side."""
NUMBERED = re.compile(r"\d+|\*")
CLASS = re.compile(r"_(\d+|\*)$")
MODULE_LOOK = "gemm"
"""Modules have no colours of their own."""

FREE = "free"
OWNERLESS = (NO_OWNER, BEFORE_RECORDING)
MEMORY_CELLS, MIN_WIDTH = 24, 20

Role = Literal["", "strong", "quiet", "good", "note", "warning", "problem", "bar"]
_STRONG: Role = "strong"
_PLAIN: Role = ""
_QUIET: Role = "quiet"


class Span(NamedTuple):
    """Text with its role; ``look`` is the name whose colour a bar has."""

    text: str
    role: Role = ""
    look: str = ""


OverviewLine = list[Span]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the step or of the peak: ``amount`` is formatted, ``share`` of the whole.

    ``look`` is the category or phase whose colour a bar has.
    """

    name: str
    amount: str
    share: float
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a user wants to know first.

    Attributes:
        figures: The result in a few words, the main number first.
        phases: Phases of the step; without phases, what a device did in the span.
        modules, kernels: The heaviest ones.
        memory: Rows of the ledger at the peak, then what is free.
        finding: The one with the largest cost, or what takes the largest part.
        further: The other findings on the step, the most severe first.
        warnings: Findings on what disturbed the measurement.
        health: Findings on doubtful events of a file, or why a command failed. They come first; the
            reasons of one that is no problem follow the main finding.
    """

    figures: Sequence[str]
    phases: Sequence[Part] = ()
    modules: Sequence[Part] = ()
    kernels: Sequence[Part] = ()
    memory: Sequence[Part] = ()
    finding: Finding | None = None
    further: Sequence[Finding] = ()
    warnings: Sequence[Finding] = ()
    health: Sequence[Finding] = ()
    phases_title: str = "phase"
    kernel_title: str = "kernel"


def overview(record: Record) -> Overview:
    """Sum up a run, or an imported file, whose record has no spec."""
    kernels = record.kernels or (record.nsys.kernels if record.nsys else None)
    kernels = None if kernels is None or kernels.is_empty else kernels
    memory = record.memory
    main = main_finding(record, kernels)
    warnings = [found for found in record.findings if found.rule in DISTURBANCES]
    # In a command's run the steps come before doubts about the trace, which is a part of them.
    is_first = attrgetter("is_health") if record.job is None else _is_problem
    health = sorted(
        filter(is_first, record.findings), key=lambda found: SEVERITIES.index(found.severity)
    )
    return Overview(
        figures=[*_figures(record, kernels)],
        phases=[*_phases(record, kernels)],
        modules=_heaviest_modules(kernels) if kernels else (),
        kernels=_heaviest_kernels(kernels) if kernels else (),
        memory=[*_memory(memory, capacity_bytes(record.environment, record.spec))]
        if memory
        else (),
        finding=None if main in health else main,
        further=[found for found in record.findings if found not in (main, *warnings, *health)],
        warnings=warnings,
        health=health,
        phases_title=_phases_title(record),
        kernel_title="operator" if kernels and kernels.source == "operators" else "kernel",
    )


def _is_problem(finding: Finding) -> bool:
    return finding.severity == "problem"


def _figures(record: Record, kernels: Kernels | None) -> Iterator[str]:
    timing, memory = record.timing, record.memory
    if timing is not None:
        width = f" ±{percent(timing.step.half_width)}" if timing.step.half_width else ""
        yield f"{milliseconds(timing.step.median_ms)}{width} {timing.whole_words}"
        if timing.tokens_per_second is not None:
            yield f"{timing.tokens_per_second:,.0f} tokens/s"
        yield from energy_words(timing)
        if timing.tflops is not None:
            mfu = f" (MFU {percent(timing.mfu)})" if timing.mfu is not None else ""
            yield f"{format_count(timing.tflops * 1e12)}FLOP/s{mfu}"
    elif kernels is not None:
        of_what = f"traced {kernels.whole}"
        yield f"{format_duration(kernels.step_ms * 1e6)} {of_what}"
        if kernels.source == "kernels":
            calls = round(fsum(row.calls for row in kernels.rows))
            yield f"{calls:,} kernel{'' if calls == 1 else 's'}"
    if memory is not None:
        total = capacity_bytes(record.environment, record.spec)
        of_total = f" of {format_bytes(total)}" if total else ""
        what = "allocated" if memory.is_state else "held" if memory.is_counted else "peak"
        device, *others = devices_text(memory) or [""]
        yield (
            f"{format_bytes(memory.peak_allocated_bytes)} {what}{of_total}"
            f"{device and f' on {device}'}"
        )
        yield from others
        if memory.is_state and memory.peak_allocated_bytes:
            yield "the peak is unknown: nothing was recorded"


def _phases(record: Record, kernels: Kernels | None) -> Iterator[Part]:
    timing = record.timing
    if timing is not None and timing.phases:
        # Phases of a user's job vary from step to step: only their means sum to the step's.
        statistic = "median_ms" if record.job is None else "mean_ms"
        whole = getattr(timing.step, statistic)
        for name, spread in timing.phases.items():
            part = getattr(spread, statistic)
            yield Part(literal(name), milliseconds(part), part / whole if whole else 0.0, name)
    elif kernels is not None:
        yield from _activity(kernels)


def _phases_title(record: Record) -> str:
    if record.timing is None or not record.timing.phases:
        return "category"
    return "phase" if record.job is None else "phase, mean of the steps"


def _activity(kernels: Kernels) -> Iterator[Part]:
    """What the device did: computing by category, copies, communication, idle time."""
    totals = sum_by((row.category, row.exclusive_ns) for row in kernels.categories)
    for name, ns in islice(totals.items(), MAX_PHASES - 2):
        yield _time_part(category_words(name), ns, kernels, name)
    rest = fsum(islice(totals.values(), MAX_PHASES - 2, None))
    if rest:
        yield _time_part(f"{len(totals) - MAX_PHASES + 2} more", rest, kernels, "other")
    yield _time_part("idle", fsum(row.ns for row in kernels.idle), kernels)
    if kernels.unattributed_ns:
        yield _time_part("unattributed", kernels.unattributed_ns, kernels)


def _time_part(name: str, ns: float, kernels: Kernels, look: str = "") -> Part:
    whole_ns = kernels.step_ms * 1e6
    amount = format_duration(ns)
    if is_perturbed(kernels):
        amount = mark_perturbed(amount)
    return Part(literal(name), amount, ns / whole_ns if whole_ns else 0.0, look or name)


def _heaviest_modules(kernels: Kernels) -> list[Part]:
    """The modules one level below the layers, ``blocks.*.ffn``, with their submodules."""
    totals = sum_by(
        (module_group(row.module), row.exclusive_ns)
        for row in kernels.rows
        if row.module and not place_outside_modules(row)
    )
    largest = islice(totals.items(), MOST)
    return [_time_part(name, ns, kernels, MODULE_LOOK) for name, ns in largest]


def module_group(module: str) -> str:
    """Return ``blocks.*.ffn`` for ``blocks.*.ffn.w1``, ``head`` for ``head.weight``.

    Modules are cut below the first layer number. Names of a trace are classes, all of them with
    numbers: the third is a part of a layer.
    """
    names = module.split(".")
    numbered = [place for place, name in enumerate(names) if NUMBERED.fullmatch(name)]
    if numbered:
        return ".".join(names[: numbered[0] + 2])
    return ".".join(names[: 3 if CLASS.search(names[0]) else 1])


def _heaviest_kernels(kernels: Kernels) -> list[Part]:
    category = {row.name: row.category for row in kernels.rows}
    short = short_kernel_names(category)
    totals = sum_by((row.name, row.exclusive_ns) for row in kernels.rows)
    largest = islice(totals.items(), MOST)
    return [_time_part(short[name], ns, kernels, category[name]) for name, ns in largest]


def _memory(memory: Memory, total: int | None) -> Iterator[Part]:
    """The largest rows of the ledger as shares of the device, or of the peak without a device."""
    whole = total or memory.peak_allocated_bytes or 1
    rows = sorted(_rows_at_peak(memory), key=lambda row: -row.bytes)
    for row in rows[:MEMORY_ROWS]:
        if row.bytes > 0:
            yield Part(literal(row.name), format_bytes(row.bytes), row.bytes / whole, row.name)
    rest = sum(row.bytes for row in rows[MEMORY_ROWS:])
    if rest > 0:
        yield Part("other", format_bytes(rest), rest / whole, "other")
    if total and (free := total - memory.peak_allocated_bytes) > 0:
        yield Part(FREE, format_bytes(free), free / whole, FREE)


def _rows_at_peak(memory: Memory) -> list[LedgerRow]:
    """The ledger; without owners the lines of code that allocated, as in the timeline."""
    drawn = memory.timeline
    if not drawn.live_bytes or all(row.name not in OWNERLESS for row in memory.ledger):
        return memory.ledger
    peak = max(range(len(drawn.live_bytes)), key=drawn.live_bytes.__getitem__)
    return [LedgerRow(name, curve[peak]) for name, curve in drawn.categories.items()]


def main_finding(record: Record, kernels: Kernels | None) -> Finding | None:
    """The first problem, else the finding with the largest cost, else what takes the most."""
    findings = [found for found in record.findings if not found.is_health]
    problems = [found for found in findings if found.severity == SEVERITIES[0]]
    if problems:
        return problems[0]
    costly = [found for found in findings if found.cost > 0]
    if costly:
        return max(costly, key=lambda found: found.cost)
    return _largest_part(record, kernels)


def _largest_part(record: Record, kernels: Kernels | None) -> Finding | None:
    """Say in one sentence what takes the most, for a step of which no rule has a finding."""
    sentences = []
    phases = [*_phases(record, kernels)] if record.timing else []
    longest = max(phases, key=lambda part: part.share, default=None)
    if longest is not None and len(phases) > 1:
        step = f"{percent(longest.share, 0)} of the step"
        sentences.append(f"{longest.name.capitalize()} takes {step}.")
    if kernels is not None and kernels.categories and not kernels.lacks_kernels:
        sentences += _kernel_sentences(kernels)
    if not sentences:
        return _largest_memory(record.memory) if record.memory else None
    return Finding("largest-part", "note", " ".join(sentences), "", "")


def _kernel_sentences(kernels: Kernels) -> Iterator[str]:
    """How busy the device is and with what; of a host, what its operators do."""
    totals = sum_by((row.category, row.exclusive_ns) for row in kernels.categories)
    busy_ns, category = fsum(totals.values()) or 1.0, next(iter(totals))
    share = percent(totals[category] / busy_ns, 0)
    if kernels.source == "operators":
        yield f"{category_words(category).capitalize()} takes {share} of the operators' time."
    else:
        busy = percent(busy_ns / (kernels.step_ms * 1e6 or 1.0), 0)
        what = category_words(category)
        yield f"The GPU is busy {busy} of the {kernels.whole}, {share} of it with {what}."
    if by_memory := memory_bound_share(kernels):
        yield f"Memory bandwidth limits {percent(by_memory, 0)} of it."
    if fused_ns := fsum(row.exclusive_ns for row in kernels.rows if row.fused):
        yield f"Kernels by torch.compile take {percent(fused_ns / busy_ns, 0)}."


def _largest_memory(memory: Memory) -> Finding | None:
    row = max(memory.ledger, key=lambda row: row.bytes, default=None)
    if row is None or not memory.peak_allocated_bytes:
        return None
    name, size = row.name, float(row.bytes)
    if name in OWNERLESS:
        # Without owners, the line that holds the most.
        held = sum_by(
            (origin.stack[0] if origin.stack else NO_OWNER, origin.bytes)
            for origin in memory.origins
        )
        name, size = next(iter(held.items()), (name, size))
    share = percent(size / memory.peak_allocated_bytes, 0)
    of_what = "allocated bytes" if memory.is_state else "peak"
    # A run's figures have the phase of the peak.
    where = f", {peak_place(memory)}" if memory.device is not None and memory.peak_phase else ""
    verdict = f"{share} of the {of_what} is {literal(name)}: {format_bytes(size)}{where}."
    return Finding("largest-part", "note", verdict, "", "")


def overview_lines(shown: Overview, width: int, more: str = "") -> Iterator[OverviewLine]:
    """Lay out the overview in lines of at most ``width`` cells.

    Args:
        more: Key or command that shows the disturbances in full.
    """
    doubts = [found for found in shown.health if not _is_problem(found)]
    for finding in shown.health:
        brief = replace(finding, why="", next="") if finding in doubts else finding
        yield from _finding_lines(brief, width)
    if shown.health:
        yield []
    yield from _figure_lines(shown.figures, width)
    if shown.warnings:
        words = ", ".join(DISTURBANCES[found.rule] for found in shown.warnings)
        hint = f" ({more})" if more else ""
        text = f"! {counted(len(shown.warnings), 'warning')}: {words}{hint}"
        for line in wrap(text, max(width, MIN_WIDTH), subsequent_indent="  "):
            yield [Span(line, "warning")]
    kinds = ((shown.phases_title, shown.phases), ("module", shown.modules))
    lists = [pair for pair in (*kinds, (shown.kernel_title, shown.kernels)) if pair[1]]
    side = 3 if width >= WIDE else 2 if width >= NARROW else 1
    first = 1 if side < 3 else 3
    for group in (lists[:first], *(lists[n : n + side] for n in range(first, len(lists), side))):
        yield from _beside(group, width)
    if shown.memory:
        yield from _memory_lines(shown.memory, width)
    in_full = [found for found in doubts if found.why or found.next]
    for finding in filter(None, (shown.finding, *in_full)):
        yield []
        yield from _finding_lines(finding, width)


def _figure_lines(figures: Sequence[str], width: int) -> Iterator[OverviewLine]:
    """The first figure strong, the others after it, as many on a line as fit."""
    line: OverviewLine = []
    for number, text in enumerate(figures):
        if line and _cells(line) + len(text) + 3 > width:
            yield line
            line = []
        line += [Span(" · ", "quiet")] if line else []
        line.append(Span(text, "" if number else "strong"))
    if line:
        yield line


def _cells(line: OverviewLine) -> int:
    return sum(len(span.text) for span in line)


def _rows(title: str, parts: Sequence[Part], width: int) -> Iterator[OverviewLine]:
    """A heading, then one row a part: name, amount, share, and a bar in what is left."""
    yield [Span(title, "quiet")]
    names = max(len(part.name) for part in parts)
    amounts = max(len(part.amount) for part in parts)
    fixed = amounts + GAP + 6 + GAP
    names = min(names, max(8, width - fixed))
    bar = max(0, min(width - names - fixed - GAP, 40))
    largest = max((part.share for part in parts), default=0.0) or 1.0
    for part in parts:
        # The end of a module's path, and of a kernel's name, says more than the beginning.
        name = part.name if len(part.name) <= names else f"…{part.name[1 - names :]}"
        cells = round(part.share / largest * bar) if bar >= 6 else 0
        yield [
            Span(f"{name:<{names}}  {part.amount:>{amounts}}  {_share(part.share):>6}"),
            *(
                [Span("  "), Span(look_of(part.look).glyph * cells, "bar", part.look)]
                if cells
                else []
            ),
        ]


def _share(share: float) -> str:
    return percent(share, 0) if share >= 0.0995 or not share else percent(share, 1)


def _beside(lists: Sequence[tuple[str, Sequence[Part]]], width: int) -> Iterator[OverviewLine]:
    """Lists side by side, each in an equal part of the width."""
    each = (width - 2 * GAP * (len(lists) - 1)) // len(lists) if lists else width
    columns = [[*_rows(title, parts, each)] for title, parts in lists]
    for place in range(max(map(len, columns), default=0)):
        line: OverviewLine = []
        for number, column in enumerate(columns):
            if place < len(column):
                start = number * (each + 2 * GAP)
                line += [Span(" " * (start - _cells(line)))] if start > _cells(line) else []
                line += column[place]
        yield line


def _memory_lines(parts: Sequence[Part], width: int) -> Iterator[OverviewLine]:
    """Parts of the peak after each other, with bars as long as their shares of the whole."""
    title = "memory  "
    line: OverviewLine = [Span(title, "quiet")]
    for number, part in enumerate(parts):
        entry = Span(f"{part.name} {part.amount}")
        bar = round(part.share * MEMORY_CELLS) if part.name != FREE else 0
        drawn = [Span(" "), Span(look_of(part.look).glyph * bar, "bar", part.look)] if bar else []
        if number and _cells([*line, entry, *drawn]) + 3 > width:
            yield line
            line = [Span(" " * len(title))]
        elif number:
            line.append(Span(" · ", "quiet"))
        line += [entry, *drawn]
    yield line


def _finding_lines(finding: Finding, width: int) -> Iterator[OverviewLine]:
    """Verdict, why and next beside a bar in the colour of the severity, which is also a word."""
    is_alarm = finding.severity in ("problem", "warning")
    label = f"{finding.severity.capitalize()}: " if is_alarm else ""
    parts = ((f"{label}{finding.verdict}", _STRONG), (finding.why, _QUIET), (finding.next, _PLAIN))
    for text, role in parts:
        for line in wrap(literal(text), max(width - 2, MIN_WIDTH)):
            yield [Span("▌ ", finding.severity), Span(line, role)]


def overview_text(record: Record, width: int) -> str:
    """Return the overview as plain text, as for a comment of a pull request."""
    lines = overview_lines(overview(record), width)
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)
