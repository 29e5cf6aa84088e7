"""Numbers and sentences as every screen and command writes them. Unknown is ``n/a``, never zero."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from sysbench.core import formatting as quantities
from sysbench.core.formatting import UNKNOWN, format_bytes, format_count
from sysbench.core.spec.own_model import argument_words
from sysbench.core.spec.spec import NUMERIC_WORKLOADS, RunSpec

if TYPE_CHECKING:
    from sysbench.core.inspection.inspection import Inspection, Progressed
    from sysbench.core.ranks.rank_rows import Ranks


def cut_off(text: str, width: int) -> str:
    """A text of at most so many cells, its end given up."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def told_apart(
    texts: Sequence[str], width: int, cut: Callable[[str, int], str] = cut_off
) -> list[str]:
    """Texts cut to a width so that those that differ look different, where there is room.

    Names of C++ templates are alike for hundreds of characters at both ends: those that would look
    the same are cut around the place where each differs from the others.

    Args:
        texts: The cells of a column.
        width: Cells for each, at least 3.
        cut: How a text is cut that looks like no other.
    """
    short = {text: cut(text, width) for text in texts}
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for text, seen in short.items():
        alike[seen].append(text)
    for group in alike.values():
        if len(group) > 1:
            short |= _cut_where_they_differ(sorted(group), width)
    return [short[text] for text in texts]


def _cut_where_they_differ(group: Sequence[str], width: int) -> dict[str, str]:
    """Of texts in alphabetic order, so that the most alike are neighbours."""
    alike = [_same_begin(*pair) for pair in itertools.pairwise(group)]
    head = (width - 1) // 2
    result = {}
    for text, before, after in zip(group, [0, *alike], [*alike, 0], strict=True):
        # The first character that no neighbour has stands behind the first dots.
        differs = max(before, after, head + 2)
        result[text] = cut_off(f"{set_cell_size(text, head)}…{text[differs - 2 :]}", width)
    return result


def _same_begin(a: str, b: str) -> int:
    """Number of characters with which both begin."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in same)


significant = quantities.significant


def milliseconds(value: float | None) -> str:
    """Four significant digits with the unit: ``184.2 ms``."""
    return UNKNOWN if value is None else quantities.milliseconds(value)


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one as ``31.2 %``."""
    return UNKNOWN if share is None else quantities.percent(share, digits)


def signed_percent(share: float | None, digits: int = 1) -> str:
    """A change as ``+3.7 %``; the sign is always there."""
    return UNKNOWN if share is None else quantities.signed_percent(share, digits)


def interval(half_width: float | None) -> str:
    """The half-width of a median's interval as ``±0.42 %``."""
    if half_width is None:
        return ""
    percents = half_width * 100
    return f"±{percents:.2g} %" if percents < 99.5 else f"±{percents:.0f} %"


def ending_part(words: str) -> tuple[str, str]:
    """A part of what ended a timing, with its colour by the mark that it begins with."""
    return words, {"✓": "$success", "!": "$warning"}.get(words[:1], "$foreground 60%")


def amount(count: float | None) -> str:
    """Bytes in the largest binary unit."""
    return UNKNOWN if count is None else format_bytes(count)


def operations(count: float | None) -> str:
    """Floating-point operations: ``4.11 TFLOP``."""
    return UNKNOWN if count is None else f"{format_count(count)}FLOP"


def short_count(count: float) -> str:
    """A count with a metric suffix: ``969 M``."""
    return format_count(count).strip()


def elapsed(seconds: float) -> str:
    """A duration as a clock shows it: ``0:14``, ``1:02:03``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def forecast_text(seconds: float | None, *, is_least: bool = False) -> str:
    """A forecast: ``about 0:24``, or ``at least 0:24`` where more is to come."""
    if seconds is None:
        return "time unknown"
    return f"{'at least' if is_least else 'about'} {elapsed(seconds)}"


def time_of_day(t_ns: int) -> str:
    """Local time of an event: ``12:04:11``."""
    return time.strftime("%H:%M:%S", time.localtime(t_ns / 1e9))


def day_and_time(t_ns: int) -> str:
    """Local date and time of a run: ``11-21 12:04``."""
    return time.strftime("%m-%d %H:%M", time.localtime(t_ns / 1e9))


STATE_GLYPHS = {"waiting": "○", "running": "●", "finished": "✓", "left-out": "–"}
FAILED_GLYPH = "✗"

OUTCOME_WORDS = {
    "running": "running",
    "finished": "finished",
    "oom": "out of memory",
    "cuda-error": "CUDA error",
    "failed": "failed",
    "killed": "killed",
    "hung": "hung",
    "cancelled": "stopped",
    "disk-full": "disk full",
    "lost": "supervisor died",
    "left-out": "left out",
}

STAGE_WORDS = {
    "import": "loading torch",
    "build": "building the model",
    "compile": "compiling",
    "warmup": "warming up",
    "measure": "measuring",
    "export": "writing artifacts",
    "analyse": "reading the results",
}

KIND_WORDS = {
    "chrome-trace": "chrome trace",
    "profiled-allocations": "chrome trace with allocations",
    "memory-snapshot": "memory snapshot",
    "nsys-export": "nsys export",
}

DECODING_WORDS = {
    "decode": "decoding",
    "rows": "reading rows",
    "analyse": "making the tables",
    "merge": "merging",
}

SIZES = ("batch", "context")
"""Sizes are read with the subject, whatever most runs have."""

STAGE_MARKS = {"compile": "compile", "warmup": "warm", "measure": "measure"}
"""The stages worth a mark under a time axis; each pass is marked by its name."""


def run_headline(spec: Mapping[str, Any]) -> str:
    """The settings that decide a number: ``tiny · B4 · ctx 128 · fp32 · naive · train``."""
    return " · ".join(text for _, text in _settings(spec))


def _settings(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a spec's key and its words, the subject first."""
    from sysbench.core.tables.context import (  # lazy: not for the first screen
        bare_attention,
        ranks_words,
    )

    workload = spec.get("workload", "transformer")
    if workload in NUMERIC_WORKLOADS:
        return [("workload", str(workload)), ("device", str(spec.get("device", "?")))]
    parts = [
        ("model", bare_attention(spec) if workload == "attention" else str(spec.get("model", "?"))),
        *([] if spec.get("batch") == 0 else [("batch", f"B{spec.get('batch', '?')}")]),
        *([] if spec.get("context") == 0 else [("context", f"ctx {spec.get('context', '?')}")]),
        *((key, str(spec.get(key, "?"))) for key in ("precision", "attention", "step")),
    ]
    if spec.get("step") == "train":
        parts.append(("optimizer", str(spec.get("optimizer", "?"))))
    if spec.get("compile", "off") != "off":
        parts.append(("compile", f"compile {spec['compile']}"))
    if spec.get("memory_limit"):
        parts.append(("memory_limit", f"limit {amount(spec['memory_limit'])}"))
    if spec.get("checkpoint"):
        parts.append(("checkpoint", f"checkpoint {spec['checkpoint']}"))
    return [*parts, *(("ranks", text) for text in ranks_words(spec))]


def fitted_headline(spec: Mapping[str, Any], room: int, told: Collection[str] = ()) -> str:
    """The headline in so many cells: what says least is given up first, and marked by ``…``.

    Args:
        spec: The settings.
        room: Cells.
        told: Keys whose values stand elsewhere on the line; they go first. Then those go that are
            as every run has them, then the others from the end. The subject stays to the last.
    """
    parts = _settings(spec)
    usual = RunSpec()

    def says(place: int) -> tuple[int, int]:
        key, _ = parts[place]
        is_usual = key not in SIZES and spec.get(key) == getattr(usual, key, object())
        return (0 if key in told else 1 if is_usual else 2, -place)

    left_out: set[int] = set()
    for place in [*sorted(range(1, len(parts)), key=says), 0]:
        kept = [text for at, (_, text) in enumerate(parts) if at not in left_out]
        line = " · ".join([*kept, "…"] if left_out else kept)
        if cell_len(line) <= room:
            return line
        left_out.add(place)
    return cut_off(line, room)


def shape(spec: RunSpec) -> list[str]:
    """The dimensions of a spec's model: ``d 1280``, ``ff 5120``, ``36 layers`` …

    Of a model of the user's its arguments."""
    if spec.is_own:
        return [argument_words(spec.model_args)] if spec.model_args else []
    return [
        f"d {spec.d_model}",
        f"ff {spec.d_ff}",
        f"{spec.layers} layers",
        f"{spec.heads} heads",
        f"vocab {spec.vocab:,}",
    ]


def outcome_text(outcome: str) -> str:
    """The outcome of a pass or a run, in plain words."""
    return OUTCOME_WORDS.get(outcome, outcome)


def outcome_glyph(outcome: str) -> str:
    """The mark of an outcome or a state."""
    return STATE_GLYPHS.get(outcome, FAILED_GLYPH)


def file_text(inspection: Inspection) -> str:
    """Kind and size of a foreign file: ``chrome trace · 434 KiB``."""
    return f"{KIND_WORDS[inspection.kind]} · {amount(inspection.file_bytes)}"


def folder_text(ranks: Ranks) -> str:
    """What a folder holds: ``4 ranks of 8 · chrome traces``."""
    count = len(ranks.rows) or len(ranks.memory)
    of = f" of {ranks.world_size}" if ranks.world_size else ""
    kinds = [
        *([f"{KIND_WORDS[ranks.kind]}s"] if ranks.kind else []),
        *(["memory"] if ranks.memory else []),
    ]
    return f"{quantities.counted(count, 'rank')}{of} · {' and '.join(kinds)}"


def decoding_text(step: Progressed) -> str:
    """Progress of decoding: ``decoding 12.0 MiB of 320 MiB``, ``reading rows 2,000 of 9,000``."""
    words = DECODING_WORDS.get(step.stage, step.stage)
    if not step.total:
        return words
    done, total = (f"{n:,}" if step.stage == "rows" else amount(n) for n in (step.done, step.total))
    return f"{words} {done} of {total}"


def round_words(number: int, repeat: int) -> str:
    """``round 2 of 5``, or ``round 7`` beyond what was asked for; empty for a single process."""
    if number > repeat:
        return f"round {number}"
    return f"round {number} of {repeat}" if repeat > 1 else ""


def median_text(median_ms: float, half_width: float | None) -> str:
    """A median and, once there are enough steps to know it, how well it is known."""
    interval = "" if half_width is None else f" ±{percent(half_width)}"
    return f"median {milliseconds(median_ms)}{interval}"
