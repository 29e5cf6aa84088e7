"""Texts of Live: passes with the remaining time, stages, steps, memory, the cursor."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import get_args

from textual.content import Content

from sysbench.core.formatting import counted
from sysbench.core.machine.telemetry_summary import mean_power
from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.record.compile import Compile
from sysbench.core.record.events import RankReading, Stage
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.compile_tables import caches_in_words
from sysbench.core.tables.timing_tables import ending_words
from sysbench.tui.live.run_watch import Earlier, LiveView, left_seconds
from sysbench.tui.live.sensors import device_of, readings
from sysbench.tui.text import (
    STAGE_WORDS,
    amount,
    elapsed,
    ending_part,
    interval,
    milliseconds,
    outcome_glyph,
    outcome_text,
    percent,
    significant,
    time_of_day,
)
from sysbench.tui.theme import swatch_of
from sysbench.tui.widgets.drawing import first_fitting
from sysbench.tui.widgets.stack_bar import bar_shares
from sysbench.tui.widgets.telemetry_rows import place_at
from sysbench.tui.widgets.traces import gauge

BAR = 16
NO_EARLIER = "no earlier run of this spec"
WIDE = 999
STAGE_BAR = 20
ROOMY = 60
"""From this width on a stage has a bar and its earlier duration in words."""
WIDE_ROW = 90
"""From this width on the row of a rank has its peak of memory."""
NAME_WIDTH = 20
SECONDS_WIDTH = 8
STAGES: tuple[Stage, ...] = get_args(Stage)
RESIDENT = "memory of the process including the recorder; the prediction covers torch only"
ALLOCATED = "bytes in torch's allocator at the end of each phase"
UNCOUNTED = "the profiler returns its events after the last step"
SILENT_SECONDS = 5.0
SILENT_STEPS = 20
"""Durations without a step event, in steps and in seconds, before Live warns."""


def duration(seconds: float) -> str:
    """Format seconds: ``0.4 s``, ``12 s``, ``1:40``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 99.5 else elapsed(seconds)


def doing_words(view: LiveView) -> str:
    if view.status != "running":
        return outcome_text(view.status)
    doing = STAGE_WORDS.get(view.stage, "starting")
    if view.progress:
        what, done, total = view.progress
        doing = f"{what} {done:,}/{total:,}"
    return ", ".join(filter(None, (view.round_text, doing)))


def passes_lines(
    view: LiveView, earlier: Earlier | None, now_ns: int, width: int, height: int
) -> Content:
    """A line for each pass with its bar and remaining time; one line for all if space is short."""
    since = elapsed((now_ns - view.began_ns) / 1e9 if view.began_ns else 0.0)
    if height < len(view.passes) or width < 60:
        return _one_line(view, earlier, now_ns, since, width)
    lines = [_pass_line(view, earlier, name, now_ns) for name in view.passes]
    left = None if earlier is None else left_seconds(view, earlier, now_ns)
    if view.status == "running" and left is not None:
        since = f"{since} · about {duration(left)} left in total"
    if lines:
        lines[0] = _with_right(lines[0], since, width)
    return Content("\n").join(lines)


def _with_right(line: Content, right: str, width: int) -> Content:
    """Put a text at the right end of a line; drop facts of the line if both do not fit."""
    room = max(width - len(right) - 1, 0)
    if len(line) > room:
        whole = str(line).rfind(" · ", 0, room + 1)
        line = line[:whole] if whole > 0 else line.truncate(room, ellipsis=True)
    return line.pad_right(max(0, width - len(right) - len(line))) + Content(right)


def _pass_line(view: LiveView, earlier: Earlier | None, name: str, now_ns: int) -> Content:
    state = view.passes[name]
    style = {"running": "bold $accent", "waiting": "$foreground 50%"}.get(state, "$foreground")
    head = Content.styled(f"{outcome_glyph(state)} {name:<9}", style)
    expected = earlier.expected(name) if earlier else None
    if state == "running":
        share, words = _progress(view, earlier, now_ns)
        drawn = (
            Content(" " * BAR) if share is None else Content.styled(gauge(share, BAR), "$accent")
        )
        doing = Content(f"{doing_words(view):<24} ")
        return head + doing + drawn + Content.styled(f" {words}", "$foreground 70%")
    if state == "waiting":
        words = NO_EARLIER if expected is None else f"about {duration(expected)}"
        return head + Content.styled(words if earlier else "", "$foreground 50%")
    if name in view.left_out:
        words = f"{outcome_text(state)}: {view.left_out[name]}"
        return head + Content.styled(words, "$warning")
    took = view.pass_seconds.get(name)
    words = outcome_text(state) + ("" if took is None else f" in {duration(took)}")
    return head + Content.styled(words, "$foreground 70%")


def _progress(view: LiveView, earlier: Earlier | None, now_ns: int) -> tuple[float | None, str]:
    """Share of the current pass that is done, estimated from earlier runs, and in words."""
    took = (now_ns - view.pass_began_ns) / 1e9
    if earlier is None:
        return None, duration(took)
    expected = earlier.expected(view.current)
    if expected is None:
        return None, f"{duration(took)} · {NO_EARLIER}"
    count = counted(earlier.count(view.current), "earlier run")
    if took > expected:
        return 1.0, f"{duration(took)}, longer than {count}: {duration(expected)}"
    left = f"about {duration(expected - took)} left"
    return took / expected, f"{left} · {count}: {duration(expected)}"


def _one_line(
    view: LiveView, earlier: Earlier | None, now_ns: int, since: str, width: int
) -> Content:
    """``timing ● ── trace ○ ── memory ○``, the current stage, and the time since the start."""
    pieces = []
    for name, state in view.passes.items():
        style = {"running": "bold $accent", "waiting": "$foreground 50%"}.get(state, "$foreground")
        pieces.append(Content.styled(f"{name} {outcome_glyph(state)}", style))
    line = Content.styled(" ── " if width >= 60 else " ", "$foreground 40%").join(pieces)
    line += Content.styled(f"   {doing_words(view)}", "$foreground 70%")
    share, words = (None, "")
    if view.status == "running" and earlier is not None:
        share, words = _progress(view, earlier, now_ns)
        words = words.partition(" · ")[0] if share is not None else "no earlier run"
    for text in (f"{words}   {since}", since):
        if len(line) + len(text) + 1 <= width:
            return _with_right(line, text, width)
    return _with_right(line, since, width)


def median_line(view: LiveView, now_ns: int, width: int = WIDE) -> Content:
    """The median with its interval, step count, target and end reason; drops what does not fit."""
    if view.median_ms is None:
        first = view.first_step_ms
        return Content(f"first step {milliseconds(first)}" if first else "waiting for a step…")
    until, fixed = float(view.spec.get("until") or 0.0), int(view.spec.get("steps") or 0)
    endings = list(ending_words(view.stop_reason, view.half_width, until=until, steps=fixed))
    aim = f" of {fixed}" if fixed and not view.stop_reason else ""
    if until and not fixed and not endings:
        aim = f", target {interval(until)}"
    silent = (now_ns - view.stepped_ns) / 1e9
    is_timed = view.current == "timing" and view.stage == "measure" and view.status == "running"
    if is_timed and silent > max(SILENT_SECONDS, SILENT_STEPS * view.median_ms / 1e3):
        endings.insert(0, f"! no step for {silent:.0f} s")
    elif view.settled is False:
        endings.append("! warm-up did not settle")
    median = Content.styled(milliseconds(view.median_ms), "bold $accent")
    line = median + Content(f" {interval(view.half_width)}")
    count = Content(f"  n {view.step_count}{aim}")
    parts = [Content("  ") + Content.styled(*ending_part(words)) for words in endings]
    fewer = (parts[:many] for many in range(len(parts), 0, -1))
    choices = ([count, *parts], *fewer, [count], [])
    return first_fitting((Content("").join([line, *shown]) for shown in choices), width)


def phases_line(view: LiveView, width: int) -> Content:
    """Median milliseconds and share of each phase; drops shares, then short phases, to fit.

    Of a watched command it is the legend of its bars: means of the slowest rank, else of the first.
    """
    times, head = view.phase_medians(), Content("")
    if view.is_job:
        ranks = view.ranks.ranks if view.ranks else []
        slowest = [rank for rank in ranks if view.ranks and rank.rank == view.ranks.slowest]
        times = next((rank.phases_ms for rank in [*slowest, *ranks]), {})
        if len(ranks) > 1:
            head = Content.styled(f"rank {[*slowest, *ranks][0].rank}: ", "$foreground 60%")
    total = sum(times.values())

    def phases(*, has_share: bool) -> list[Content]:
        return [
            Content.assemble(
                (f"{swatch_of(name).glyph} " if view.is_job else "", swatch_of(name).colour),
                (f"{name} ", "$foreground 60%"),
                significant(time_ms, 3),
                (f" {percent(time_ms / total, 0)}" if has_share else "", "$foreground 60%"),
            )
            for name, time_ms in times.items()
        ]

    full, brief = phases(has_share=True), phases(has_share=False)
    lines = [Content("   ").join(full), Content("  ").join(full), Content("  ").join(brief)]
    longest = sorted(range(len(brief)), key=lambda number: -[*times.values()][number])
    for count in range(len(brief) - 1, 0, -1):
        kept = [brief[number] for number in sorted(longest[:count])]
        lines.append(Content("  ").join([*kept, Content("…")]))
    return first_fitting([*(head + line for line in lines), lines[-1]], width)


def job_line(view: LiveView, now_ns: int, width: int) -> Content:
    since = elapsed((now_ns - view.began_ns) / 1e9 if view.began_ns else 0.0)
    is_running = view.status == "running"
    words = "running" if is_running else outcome_text(view.status)
    line = Content.styled(f"{outcome_glyph(view.status)} {words}", "bold $accent")
    steps = max((rank.steps for rank in view.ranks.ranks), default=0) if view.ranks else 0
    doing = f"step {steps:,}" if steps else "no step yet"
    parts = [doing, *([counted(view.windows, "window")] if view.windows else [])]
    return _with_right(line + Content(f"   {' · '.join(parts)}"), since, width)


def rank_lines(view: LiveView, width: int, height: int) -> Content:
    """A row for each rank of a watched command: step, its parts as a bar, memory, if slowest."""
    if view.ranks is None or not view.ranks.ranks:
        return Content("")
    read, ranks = view.ranks, view.ranks.ranks
    if len(ranks) > height:
        # The slowest one is shown whatever its number.
        chosen = sorted(ranks, key=lambda rank: rank.rank != read.slowest)[: max(height - 1, 1)]
        ranks = sorted(chosen, key=lambda rank: rank.rank)
    names = [f"rank {rank.rank}" if len(read.ranks) > 1 else "step" for rank in ranks]
    steps = [milliseconds(rank.step_ms) for rank in ranks]
    held = [_memory_words(rank, width) for rank in ranks]
    late = f"slowest by {milliseconds(read.late_ms)}" if read.late_ms else ""
    late = late if width >= ROOMY else "slowest" if late else ""
    columns = [max(map(len, texts)) for texts in (names, steps, held)]
    bar = width - sum(columns) - 2 * len(columns) - (len(late) + 2 if late else 0)
    longest = max(rank.step_ms for rank in ranks)
    lines = []
    for rank, name, step, memory in zip(ranks, names, steps, held, strict=True):
        cells = bar_shares([*rank.phases_ms.values()], round(bar * rank.step_ms / longest))
        line = Content(f"{name:<{columns[0]}}  {step:>{columns[1]}}  ")
        line += Content("").join(
            Content.styled((look := swatch_of(phase)).glyph * count, look.colour)
            for phase, count in zip(rank.phases_ms, cells, strict=True)
        )
        line = line.pad_right(max(0, columns[0] + columns[1] + 4 + bar - len(line)))
        line += Content(f"  {memory:>{columns[2]}}")
        is_slowest = rank.rank == read.slowest and bool(late)
        lines.append(line + Content.styled(f"  {late}" if is_slowest else "", "bold $warning"))
    if len(ranks) < len(read.ranks):
        lines.append(Content.styled(f"+{len(read.ranks) - len(ranks)} more", "$foreground 60%"))
    return Content("\n").join(lines[:height])


def _memory_words(rank: RankReading, width: int) -> str:
    if rank.held_bytes is None:
        return ""
    peak = f", peak {amount(rank.peak_bytes)}" if rank.peak_bytes and width >= WIDE_ROW else ""
    return f"{amount(rank.held_bytes)}{peak}"


def index_at(instants_ns: Sequence[int], t_ns: int) -> int | None:
    """Index of the last instant at or before ``t_ns``; None if there is none."""
    return bisect_right(instants_ns, t_ns) - 1 if instants_ns and t_ns >= instants_ns[0] else None


def sensor_words(view: LiveView, cursor_ns: int | None) -> str:
    """Energy of a step and throttle reasons of the GPU; empty on a CPU."""
    device = str(view.spec.get("device", "auto"))
    if not view.samples or (gpu := device_of(view.samples[-1], device)) is None:
        return ""
    if cursor_ns is not None:
        gpu = device_of(view.samples[place_at(view.samples, cursor_ns)], device) or gpu
    reasons = limiting_reasons(gpu.clock_reasons or ())
    words = [f"clock limited by {', '.join(reasons)}"] if reasons else []
    joules = joules_a_step(view, device)
    if joules is not None:
        words.insert(0, f"{significant(joules, 3)} J a step")
        tokens = int(view.spec.get("batch") or 0) * int(view.spec.get("context") or 0)
        words[:1] += [f"{significant(joules / tokens * 1e3, 3)} mJ a token"] if tokens else []
    return " · ".join(words)


def joules_a_step(view: LiveView, device: str) -> float | None:
    """Energy per step between the first and the last sample of the measured steps.

    Includes other processes on the GPU. None if these samples are too close together.
    """
    ends_ns = view.step_ends_ns
    gpu = device_of(view.samples[-1], device) if view.samples else None
    if len(ends_ns) < 2 or gpu is None:
        return None
    power = mean_power(view.samples, gpu.index, (ends_ns[0], ends_ns[-1]))
    return power and power.watts * (ends_ns[-1] - ends_ns[0]) / 1e9 / (len(ends_ns) - 1)


def cursor_line(view: LiveView, t_ns: int) -> Content:
    parts = []
    began_ns = view.pass_began_ns
    step = index_at(view.step_ends_ns, t_ns)
    warm = index_at(view.warmup_ends_ns, t_ns)
    if step is not None:
        number = view.step_count - len(view.step_ends_ns) + step + 1
        parts.append(f"step {number} {milliseconds(view.steps_ms[step])}")
    elif warm is not None:
        parts.append(f"warm-up step {warm + 1} {milliseconds(view.warmup_ms[warm])}")
    reading = index_at([reading.t_ns for reading in view.readings], t_ns)
    if reading is not None and view.current == "memory" and t_ns >= began_ns:
        parts.append(f"{amount(view.readings[reading].held_bytes)} allocated")
    if view.samples:
        sample = view.samples[place_at(view.samples, t_ns)]
        device = str(view.spec.get("device", "auto"))
        parts += [f"{sensor.name} {sensor.text}" for sensor in readings(sample, device)]
    since = f"{(t_ns - view.began_ns) / 1e9:.1f} s" if view.began_ns else ""
    return Content.assemble(
        ("▲ ", "bold"),
        f"{time_of_day(t_ns)}, {since}",
        (" · ".join(["", *parts]), "$foreground 80%"),
    )


def stage_lines(
    view: LiveView, name: str, earlier: Earlier | None, now_ns: int, width: int, height: int
) -> Content:
    """The stages of a pass: finished, current, and expected from earlier runs, if they are read."""
    is_running = name == view.current and view.passes.get(name) == "running"
    took = view.stages.get(name, {})
    before = earlier.stages.get(name, {}) if earlier else {}
    current = view.stage if is_running else ""
    rows = [stage for stage in STAGES if stage in took or stage in before or stage == current]
    lines = []
    for stage in rows:
        seconds = took.get(stage, 0.0)
        if stage == current:
            seconds += (now_ns - view.stage_began_ns) / 1e9
            lines.append(_current_stage(view, name, stage, seconds, before.get(stage), width))
        else:
            lines.append(
                _stage(stage, took.get(stage), before.get(stage) if is_running else None, width)
            )
    notes = [Content.styled(note, "$foreground 70%") for note in _notes(view, name, earlier)]
    if rows and len(lines) + 1 + len(notes) <= height:
        lines.append(Content(""))
    return Content("\n").join([*lines, *notes][:height])


def _stage(stage: str, took: float | None, before: float | None, width: int) -> Content:
    glyph, style = ("✓", "") if took is not None else ("○", "$foreground 50%")
    seconds = duration(took) if took is not None else ""
    line = Content.styled(f"{glyph} {STAGE_WORDS[stage]:<{NAME_WIDTH}}", style)
    return line + Content(f"{seconds:>{SECONDS_WIDTH}}") + _last_time(before, width)


def _current_stage(
    view: LiveView, name: str, stage: str, seconds: float, before: float | None, width: int
) -> Content:
    """The current stage with a bar from the worker's count, else from its earlier duration."""
    is_recording = stage == "measure" and name != "timing"
    words = "recording" if is_recording else STAGE_WORDS[stage]
    line = Content.styled(f"● {words:<{NAME_WIDTH}}", "bold $accent")
    line += Content(f"{duration(seconds):>{SECONDS_WIDTH}}")
    if view.progress and view.progress[2]:
        what, done, total = view.progress
        if width < ROOMY:
            return line + Content(f"  {done:,}/{total:,}")
        line += Content.styled(f"  {gauge(done / total, STAGE_BAR)}", "$accent")
        return line + Content(f" {what} {done:,} of {total:,}")
    if before and width >= ROOMY:
        line += Content.styled(f"  {gauge(min(seconds / before, 1.0), STAGE_BAR)}", "$accent")
    return line + _last_time(before, width)


def _last_time(before: float | None, width: int) -> Content:
    """``last time 3.0 s``, or ``(3.0 s)`` if space is short."""
    if before is None:
        return Content("")
    text = f"  last time {duration(before)}" if width >= ROOMY else f" ({duration(before)})"
    return Content.styled(text, "$foreground 60%")


def _notes(view: LiveView, name: str, earlier: Earlier | None) -> Iterator[str]:
    is_compiled = view.spec.get("compile", "off") != "off"
    if is_compiled and earlier and name in ("timing", "trace", "memory"):
        yield from _compile_notes(earlier.compile)
        is_cold = view.spec.get("compile_cache") == "cold" and "timing" in view.passes
        if is_cold and name != "timing":
            yield "this pass uses the caches that the timing pass filled"
    if name == "trace":
        what = "operators" if view.spec.get("device") == "cpu" else "operators, kernels and copies"
        yield f"records {what}, each with its phase and module"
        events, size = view.counts.get("trace events"), view.counts.get("compress")
        if events is not None:
            yield f"{events:,} events in the trace, {amount(size)}"
        elif size is not None:
            yield f"trace: {amount(size)}; counting its events"
        elif view.stage == "measure":
            yield UNCOUNTED


def _compile_notes(block: Compile | None) -> Iterator[str]:
    if block is None:
        yield f"compiling: {NO_EARLIER}"
        return
    took = f"{significant(block.compile_seconds, 3)} s {caches_in_words(block)}"
    yield f"last time compiling took {took}, in the timing pass"
    for part, seconds in block.parts_seconds.items():
        share = seconds / block.compile_seconds if block.compile_seconds else 0.0
        line = f"  {part:<{NAME_WIDTH}}{duration(seconds):>{SECONDS_WIDTH}}"
        yield f"{line}  {gauge(share, STAGE_BAR)}"


def predicted_peak(spec: RunSpec) -> int | None:
    return None if why_not_predicted(spec) else predict(spec).peak_bytes


def peak_label(view: LiveView, predicted: int) -> str:
    """Label of the predicted peak, which excludes the recorder's memory."""
    is_resident = view.readings[-1].kind == "resident"
    return f"predicted peak{' of torch' if is_resident else ''} {amount(predicted)}"


def memory_line(view: LiveView, predicted: int | None) -> Content:
    newest = view.readings[-1]
    where = "after the build" if newest.step is None else f"{newest.phase}, step {newest.step + 1}"
    highest = max(max(reading.held_bytes, reading.peak_bytes or 0) for reading in view.readings)
    line = Content.assemble(
        (amount(newest.held_bytes), "bold $accent"),
        f" {where}  highest {amount(highest)}",
    )
    text = f"  predicted {amount(predicted)}" if predicted else "  no prediction"
    return line + Content.styled(text, "$warning" if predicted else "$foreground 60%")


def memory_note(view: LiveView) -> Content:
    is_resident = view.readings[-1].kind == "resident"
    return Content.styled(RESIDENT if is_resident else ALLOCATED, "$foreground 60%")


def reading_marks(view: LiveView) -> list[tuple[int, str]]:
    """Axis labels: the phase before each reading, with the number of the step that it starts."""
    marks = []
    for index, (before, reading) in enumerate(pairwise(view.readings)):
        starts_step = reading.step is not None and reading.step != before.step
        number = f"{(reading.step or 0) + 1}·" if starts_step else ""
        marks.append((index, f"{number}{reading.phase}"))
    return marks
