"""Words of the Live screen: its passes with the time that is left, the step, the cursor."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from textual.content import Content

from sysbench.core.formatting import counted
from sysbench.core.record.timing import limiting_reasons
from sysbench.core.tables.timing_tables import ending_words
from sysbench.tui.live.earlier import Earlier, left_seconds
from sysbench.tui.live.run_watch import LiveView
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
from sysbench.tui.widgets.telemetry_rows import place_at
from sysbench.tui.widgets.traces import gauge

BAR = 16
NO_EARLIER = "no earlier run of this spec"
WIDE = 999
SILENT_SECONDS = 5.0
SILENT_STEPS = 20
"""Steps without a word, and at least so many seconds, from which on silence is told."""


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, then as a clock shows it."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 99.5 else elapsed(seconds)


def doing_words(view: LiveView) -> str:
    """The present stage, with its count where the worker tells one."""
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
    """A line for each pass with its bar and what is left, or where there is no room one for all."""
    since = elapsed((now_ns - view.began_ns) / 1e9 if view.began_ns else 0.0)
    if height < len(view.passes) or width < 60:
        return _one_line(view, earlier, now_ns, since, width)
    lines = [_pass_line(view, earlier, name, now_ns) for name in view.passes]
    left = None if earlier is None else left_seconds(view, earlier, now_ns)
    if view.status == "running" and left is not None:
        since = f"{since} · about {duration(left)} left in all"
    if lines:
        lines[0] = _with_right(lines[0], since, width)
    return Content("\n").join(lines)


def _with_right(line: Content, right: str, width: int) -> Content:
    """The line with a text at its right end; where both do not fit, facts of the line go."""
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
    """The share of the present pass that is over by the time it took before, and that in words."""
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
    """``timing ● ── trace ○ ── memory ○``, the present stage, and the time since the start."""
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
    """The median with its interval settling towards the goal, and what ended it.

    Where not all of it fits, the number of steps goes, then what says least.
    """
    if view.median_ms is None:
        first = view.first_step_ms
        return Content(f"first step {milliseconds(first)}" if first else "waiting for a step …")
    until, fixed = float(view.spec.get("until") or 0.0), int(view.spec.get("steps") or 0)
    endings = list(ending_words(view.stop_reason, view.half_width, until=until, steps=fixed))
    aim = f" of {fixed}" if fixed and not view.stop_reason else ""
    if until and not fixed and not endings:
        aim = f", goal {interval(until)}"
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
    for shown in ([count, *parts], *(parts[:many] for many in range(len(parts), 0, -1)), [count]):
        whole = Content("").join([line, *shown])
        if len(whole) <= width:
            return whole
    return line


def phases_line(view: LiveView, width: int) -> Content:
    """Median milliseconds of each phase, with its share of their sum.

    Where not all of it fits, the shares go, then whole phases from the last on.
    """
    medians = view.phase_medians()
    total = sum(medians.values())
    line = Content("")
    for gap, has_share in (("   ", True), ("  ", True), ("  ", False)):
        phases = [
            Content.assemble(
                (f"{name} ", "$foreground 60%"),
                significant(median, 3),
                (f" {percent(median / total, 0)}" if has_share else "", "$foreground 60%"),
            )
            for name, median in medians.items()
        ]
        line = Content(gap).join(phases)
        if len(line) <= width:
            return line
    while len(phases) > 1 and len(line) > width:
        phases.pop()
        line = Content("  ").join([*phases, Content("…")])
    return line


def index_at(instants_ns: Sequence[int], t_ns: int) -> int | None:
    """Index of the last of these instants that is not after another one; None before them all."""
    return bisect_right(instants_ns, t_ns) - 1 if instants_ns and t_ns >= instants_ns[0] else None


def sensor_words(view: LiveView, cursor_ns: int | None) -> str:
    """Energy of a step by the GPU's counter, and what holds its clock; empty on a CPU."""
    device = str(view.spec.get("device", "auto"))
    if not view.samples or (gpu := device_of(view.samples[-1], device)) is None:
        return ""
    if cursor_ns is not None:
        gpu = device_of(view.samples[place_at(view.samples, cursor_ns)], device) or gpu
    held = limiting_reasons(gpu.clock_reasons or ())
    words = [f"clock held by {', '.join(held)}"] if held else []
    joules = joules_a_step(view, device)
    if joules is not None:
        words.insert(0, f"{significant(joules, 3)} J a step")
        tokens = int(view.spec.get("batch") or 0) * int(view.spec.get("context") or 0)
        words[:1] += [f"{significant(joules / tokens * 1e3, 3)} mJ a token"] if tokens else []
    return " · ".join(words)


def joules_a_step(view: LiveView, device: str) -> float | None:
    """Energy between the first and the last sample within the measured steps, over the steps that
    ended between them, others' work on the GPU included; None where that is no whole step."""
    ends_ns = view.step_ends_ns
    if not ends_ns:
        return None
    known = [
        (sample.t_ns, gpu.energy_joules)
        for sample in view.samples
        if ends_ns[0] <= sample.t_ns <= ends_ns[-1]
        and (gpu := device_of(sample, device)) is not None
        and gpu.energy_joules is not None
    ]
    if len(known) < 2:
        return None
    (first_ns, before), (last_ns, after) = known[0], known[-1]
    steps = bisect_right(ends_ns, last_ns) - bisect_right(ends_ns, first_ns)
    return (after - before) / steps if steps and after >= before else None


def cursor_line(view: LiveView, t_ns: int) -> Content:
    """The instant under the cursor and all that is known of it: step, bytes, sensors."""
    parts = []
    began_ns = view.pass_began_ns
    step = index_at(view.step_ends_ns, t_ns)
    warm = index_at(view.warmup_ends_ns, t_ns)
    if step is not None:
        number = view.step_count - len(view.step_ends_ns) + step + 1
        parts.append(f"step {number} {milliseconds(view.steps_ms[step])}")
    elif warm is not None:
        parts.append(f"warm-up step {warm + 1} {milliseconds(view.warmup_ms[warm])}")
    reading = index_at([one.t_ns for one in view.readings], t_ns)
    if reading is not None and view.current == "memory" and t_ns >= began_ns:
        parts.append(f"{amount(view.readings[reading].held_bytes)} held")
    if view.samples:
        sample = view.samples[place_at(view.samples, t_ns)]
        device = str(view.spec.get("device", "auto"))
        parts += [f"{one.name} {one.text}" for one in readings(sample, device)]
    since = f"{(t_ns - view.began_ns) / 1e9:.1f} s" if view.began_ns else ""
    return Content.assemble(
        ("▲ ", "bold"),
        f"{time_of_day(t_ns)}, {since}",
        (" · ".join(["", *parts]), "$foreground 80%"),
    )
