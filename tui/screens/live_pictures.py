"""Pictures of what a pass does: its stages with their seconds, and the bytes of the memory pass."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

from textual.content import Content

from sysbench.core.predict.closed_form import predict, why_not_predicted
from sysbench.core.record.compile import Compile
from sysbench.core.record.events import Stage
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.compile_tables import caches_in_words
from sysbench.tui.live.earlier import Earlier
from sysbench.tui.live.run_watch import LiveView
from sysbench.tui.screens.live_text import NO_EARLIER, duration
from sysbench.tui.text import STAGE_WORDS, amount, significant
from sysbench.tui.widgets.traces import gauge

BAR = 20
ROOMY = 60
"""From this width on a stage has its bar, and words for what it took before."""
NAME_WIDTH = 20
SECONDS_WIDTH = 8
STAGES: tuple[Stage, ...] = get_args(Stage)
RESIDENT = "bytes of the whole process, the recording included; the prediction is of torch's alone"
ALLOCATED = "bytes of torch's allocator, read at the end of each phase"
UNCOUNTED = "the profiler hands over its events after the last step: none is counted before"


def stage_lines(
    view: LiveView, name: str, earlier: Earlier | None, now_ns: int, width: int, height: int
) -> Content:
    """The stages of a pass that were, are, and as an earlier run had them will be.

    Args:
        view: The run.
        name: One of its passes.
        earlier: What passes of this spec took before; None while that is being read.
        now_ns: This instant, nanoseconds since the epoch.
        width: Cells of a line.
        height: Lines there are.
    """
    is_running = name == view.current and view.passes.get(name) == "running"
    took = view.stages.get(name, {})
    before = earlier.stages.get(name, {}) if earlier else {}
    present = view.stage if is_running else ""
    rows = [stage for stage in STAGES if stage in took or stage in before or stage == present]
    lines = []
    for stage in rows:
        seconds = took.get(stage, 0.0)
        if stage == present:
            seconds += (now_ns - view.stage_began_ns) / 1e9
            lines.append(_present(view, name, stage, seconds, before.get(stage), width))
        else:
            lines.append(
                _stage(stage, took.get(stage), before.get(stage) if is_running else None, width)
            )
    notes = [Content.styled(note, "$foreground 70%") for note in _notes(view, name, earlier)]
    if rows and len(lines) + 1 + len(notes) <= height:
        lines.append(Content(""))
    return Content("\n").join([*lines, *notes][:height])


def _words(name: str, stage: str) -> str:
    return "recording" if stage == "measure" and name != "timing" else STAGE_WORDS[stage]


def _stage(stage: str, took: float | None, before: float | None, width: int) -> Content:
    """A stage that is over, or that is still to come."""
    glyph, style = ("✓", "") if took is not None else ("○", "$foreground 50%")
    told = duration(took) if took is not None else ""
    line = Content.styled(f"{glyph} {STAGE_WORDS[stage]:<{NAME_WIDTH}}", style)
    return line + Content(f"{told:>{SECONDS_WIDTH}}") + _last_time(before, width)


def _present(
    view: LiveView, name: str, stage: str, seconds: float, before: float | None, width: int
) -> Content:
    """The stage under way, its bar by what the worker counts, else by the time it took before."""
    line = Content.styled(f"● {_words(name, stage):<{NAME_WIDTH}}", "bold $accent")
    line += Content(f"{duration(seconds):>{SECONDS_WIDTH}}")
    if view.progress and view.progress[2]:
        what, done, total = view.progress
        if width < ROOMY:
            return line + Content(f"  {done:,}/{total:,}")
        line += Content.styled(f"  {gauge(done / total, BAR)}", "$accent")
        return line + Content(f" {what} {done:,} of {total:,}")
    if before and width >= ROOMY:
        line += Content.styled(f"  {gauge(min(seconds / before, 1.0), BAR)}", "$accent")
    return line + _last_time(before, width)


def _last_time(before: float | None, width: int) -> Content:
    """``last time 3.0 s``, in brackets where there is no room."""
    if before is None:
        return Content("")
    text = f"  last time {duration(before)}" if width >= ROOMY else f" ({duration(before)})"
    return Content.styled(text, "$foreground 60%")


def _notes(view: LiveView, name: str, earlier: Earlier | None) -> Iterator[str]:
    """What the pass records, and what is known of it by now."""
    is_compiled = view.spec.get("compile", "off") != "off"
    if is_compiled and earlier and name in ("timing", "trace", "memory"):
        yield from _compile_notes(earlier.compile)
        is_cold = view.spec.get("compile_cache") == "cold" and "timing" in view.passes
        if is_cold and name != "timing":
            yield "this pass has the caches that the timing pass filled"
    if name == "trace":
        what = "operators" if view.spec.get("device") == "cpu" else "operators, kernels and copies"
        yield f"records {what}, each with its phase and module"
        events, size = view.counts.get("trace events"), view.counts.get("compress")
        if events is not None:
            yield f"{events:,} events in the trace, {amount(size)}"
        elif size is not None:
            yield f"a trace of {amount(size)}; its events are counted as it is read"
        elif view.stage == "measure":
            yield UNCOUNTED


def _compile_notes(block: Compile | None) -> Iterator[str]:
    """What compiling took in the newest earlier run, whole and in its parts."""
    if block is None:
        yield f"compiling: {NO_EARLIER}"
        return
    took = f"{significant(block.compile_seconds, 3)} s {caches_in_words(block)}"
    yield f"last time compiling took {took}, in the timing pass"
    for part, seconds in block.parts_seconds.items():
        share = seconds / block.compile_seconds if block.compile_seconds else 0.0
        yield f"  {part:<{NAME_WIDTH}}{duration(seconds):>{SECONDS_WIDTH}}  {gauge(share, BAR)}"


def predicted_peak(spec: RunSpec) -> int | None:
    """Predicted live bytes at the worst moment; None where the closed form does not hold."""
    return None if why_not_predicted(spec) else predict(spec).peak_bytes


def peak_label(view: LiveView, predicted: int) -> str:
    """What the predicted peak is of: it has no part in what a recording takes."""
    is_resident = view.readings[-1].kind == "resident"
    return f"predicted peak{' of torch alone' if is_resident else ''} {amount(predicted)}"


def memory_line(view: LiveView, predicted: int | None) -> Content:
    """The bytes held now, the highest so far, and the predicted peak; there has been a reading."""
    newest = view.readings[-1]
    where = "after the build" if newest.step is None else f"{newest.phase}, step {newest.step + 1}"
    highest = max(max(one.held_bytes, one.peak_bytes or 0) for one in view.readings)
    line = Content.assemble(
        (amount(newest.held_bytes), "bold $accent"),
        f" {where}  highest {amount(highest)}",
    )
    text = f"  predicted {amount(predicted)}" if predicted else "  no prediction of it"
    return line + Content.styled(text, "$warning" if predicted else "$foreground 60%")


def memory_note(view: LiveView) -> Content:
    """Whose bytes they are."""
    is_resident = view.readings[-1].kind == "resident"
    return Content.styled(RESIDENT if is_resident else ALLOCATED, "$foreground 60%")


def reading_marks(view: LiveView) -> list[tuple[int, str]]:
    """The phases between the readings, for the axis under them; the first one is after the build.

    A step's first phase has its number.
    """
    marks = []
    for index, (before, one) in enumerate(pairwise(view.readings)):
        number = "" if one.step is None or one.step == before.step else f"{one.step + 1}·"
        marks.append((index, f"{number}{one.phase}"))
    return marks
