"""The Memory tab's sentences: the peak, and what lives at the cursor."""

from __future__ import annotations

from textual.content import Content

from ...core.analysis.memory.oom import held, refused
from ...core.record.memory import Oom
from ...core.record.record import Memory
from ...core.tables.memory import recording_notes
from ..numerals import amount, signed_percent, significant
from ..widgets.timeline import TimelineView

SWATCH_WIDTH, AMOUNT_WIDTH = 2, 10


def peak_line(memory: Memory) -> Content:
    """The peak and the totals that are not the peak, each under its own name."""
    line = Content.assemble(
        "peak ",
        (amount(memory.peak_allocated_bytes), "bold $accent"),
        f" allocated at {significant(memory.peak_ms, 3)} ms",
        f", in {memory.peak_phase}" if memory.peak_phase else "",
    )
    pieces = recording_notes(memory)
    if memory.predicted_peak_bytes:
        off = memory.peak_allocated_bytes / memory.predicted_peak_bytes - 1
        pieces.append(f"predicted {amount(memory.predicted_peak_bytes)} ({signed_percent(off)})")
    if memory.resident_set:
        pieces.append(f"resident {memory.resident_set}")
    pieces.append(f"reserved {amount(memory.peak_reserved_bytes)}")
    whose = "driver" if memory.source == "cuda-snapshot" else "process"
    pieces.append(f"{whose} {amount(memory.driver_used_bytes)}")
    return line + Content.styled("".join(f" · {piece}" for piece in pieces), "$foreground 70%")


def refusal_line(oom: Oom) -> Content:
    """What was asked for and what there was, when memory ran out."""
    line = Content.assemble(("out of memory", "bold $error"), f": {refused(oom)}")
    pieces = [held(oom)]
    if oom.predicted_peak_bytes is not None:
        pieces.append(f"predicted peak {amount(oom.predicted_peak_bytes)}")
    return line + Content.styled(
        "".join(f" · {piece}" for piece in pieces if piece), "$foreground 70%"
    )


def cursor_text(view: TimelineView, sample: int, width: int) -> Content:
    """Time, phase, live bytes, and the categories that make them up, largest first."""
    timeline = view.timeline
    t_ms = timeline.t_ms[sample]
    phase = next((name for name, low, high in timeline.phases if low <= t_ms <= high), "")
    lines = [
        Content.assemble((amount(timeline.live_bytes[sample]), "bold"), " live"),
        Content.styled(f"{significant(t_ms, 4)} ms {phase}", "$foreground 60%"),
    ]
    held = [(timeline.categories[name][sample], name) for name in view.order]
    room = max(width - SWATCH_WIDTH - AMOUNT_WIDTH, 8)
    for count, name in sorted(held, reverse=True):
        if count:
            look = view.looks[name]
            text = f"{_cut(name, room):<{room}}{amount(count):>{AMOUNT_WIDTH}}"
            lines.append(Content.assemble((f"{look.glyph} ", look.colour), text))
    return Content("\n").join(lines)


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"
