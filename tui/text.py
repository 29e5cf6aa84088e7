"""Format numbers, specs and states for screens and commands. Unknown is ``n/a``, never zero."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from sysbench.core.formatting import UNKNOWN, counted, format_bytes, format_count
from sysbench.core.formatting import milliseconds as milliseconds
from sysbench.core.formatting import percent as percent
from sysbench.core.formatting import signed_percent as signed_percent
from sysbench.core.formatting import significant as significant
from sysbench.core.spec.command_line import job_command
from sysbench.core.spec.own_model import JOB, argument_words
from sysbench.core.spec.spec import NUMERIC_WORKLOADS, RunSpec

if TYPE_CHECKING:
    from sysbench.core.inspection.inspection import Inspection, Progressed
    from sysbench.core.predict.closed_form import Prediction
    from sysbench.core.predict.fit_grid import Fit
    from sysbench.core.predict.layout_plan import Layout
    from sysbench.core.ranks.rank_rows import Ranks


def truncate(text: str, width: int) -> str:
    """Cut the end of a text that is wider than ``width`` cells."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def truncate_distinct(
    texts: Sequence[str], width: int, cut: Callable[[str, int], str] = truncate
) -> list[str]:
    """Truncate the cells of a column so that different texts still look different if possible.

    Names of C++ templates are alike for hundreds of characters at both ends. Names that would look
    the same are cut around the place where each differs from the others.
    """
    short = {text: cut(text, width) for text in texts}
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for text, shown in short.items():
        alike[shown].append(text)
    for group in alike.values():
        if len(group) > 1:
            short |= _cut_where_they_differ(sorted(group), width)
    return [short[text] for text in texts]


def _cut_where_they_differ(group: Sequence[str], width: int) -> dict[str, str]:
    # The texts are sorted, so the most similar ones are adjacent.
    alike = [_same_begin(*pair) for pair in itertools.pairwise(group)]
    head = (width - 1) // 2
    result = {}
    for text, before, after in zip(group, [0, *alike], [*alike, 0], strict=True):
        # Continue after the first dots with the first character that is unique, or with as many
        # characters before it as there is room for.
        differs = max(before, after, head + 2)
        begin = max(head, min(differs - 2, len(text) - (width - head - 1)))
        result[text] = truncate(f"{set_cell_size(text, head)}…{text[begin:]}", width)
    return result


def _same_begin(a: str, b: str) -> int:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in same)


def interval(half_width: float | None) -> str:
    """Format the half-width of an interval: ``±0.42 %``; empty if unknown."""
    if half_width is None:
        return ""
    percents = half_width * 100
    return f"±{percents:.2g} %" if percents < 99.5 else f"±{percents:.0f} %"


def ending_part(words: str) -> tuple[str, str]:
    """Return a part of the stop reason, with a colour by its first character."""
    return words, {"✓": "$success", "!": "$warning"}.get(words[:1], "$foreground 60%")


def amount(count: float | None) -> str:
    return UNKNOWN if count is None else format_bytes(count)


def operations(count: float | None) -> str:
    return UNKNOWN if count is None else f"{format_count(count)}FLOP"


def short_count(count: float) -> str:
    return format_count(count).strip()


VERDICT_WORDS = {"fits": "fits", "close": "may not fit", "over": "does not fit"}


def layout_facts(layout: Layout) -> Iterator[str]:
    """Yield whether a layout fits, its fullest rank, and what a step of all ranks does."""
    headroom = amount(abs(layout.headroom_bytes))
    if layout.verdict == "fits" and layout.headroom_bytes < 0:
        yield f"fits, the allocator releases {headroom} of its cache"
    else:
        sign = "-" if layout.headroom_bytes < 0 else ""
        yield f"{VERDICT_WORDS[layout.verdict]}, headroom {sign}{headroom}"
    place = f" ({layout.place})" if layout.place else ""
    yield f"fullest rank {layout.rank}{place}, in {layout.peak_phase}"
    yield f"{layout.samples:,} samples a step"


def elapsed(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def forecast_text(seconds: float | None, *, is_least: bool = False) -> str:
    """Format a forecast: ``about 0:24``, or ``at least 0:24``."""
    if seconds is None:
        return "time unknown"
    return f"{'at least' if is_least else 'about'} {elapsed(seconds)}"


def time_of_day(t_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(t_ns / 1e9))


def minute_of(t_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(t_ns / 1e9))


def day_and_time(t_ns: int) -> str:
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
    "perfetto-trace": "Perfetto trace",
    "profiled-allocations": "chrome trace with allocations",
    "memory-snapshot": "memory snapshot",
    "nsys-export": "nsys export",
    "bundle": "bundle",
}

DECODING_WORDS = {
    "decode": "decoding",
    "rows": "reading rows",
    "analyse": "making the tables",
    "merge": "merging",
    "layouts": "playing layouts",
}

SIZES = ("batch", "context")
"""Keys that the headline keeps even at their defaults."""

STAGE_MARKS = {"compile": "compile", "warmup": "warm", "measure": "measure"}
"""Labels of the stages that are marked under a time axis."""


def run_headline(spec: Mapping[str, Any]) -> str:
    """Summarise a spec: ``tiny · B4 · ctx 128 · fp32 · naive · train``."""
    return " · ".join(text for _, text in _settings(spec))


def _settings(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of key and words, the most important first."""
    from sysbench.core.tables.context import (  # lazy: not for the first screen
        bare_attention,
        ranks_words,
    )

    workload = spec.get("workload", "transformer")
    if workload in NUMERIC_WORKLOADS:
        return [("workload", str(workload)), ("device", str(spec.get("device", "?")))]
    if workload == JOB:
        return [("model", str(spec.get("model", "?"))), ("command", job_command(spec))]
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


def fitted_headline(spec: Mapping[str, Any], width: int, shown: Collection[str] = ()) -> str:
    """Shorten the headline to a width, least important settings first, marked by ``…``.

    The keys in ``shown``, which are shown elsewhere, are dropped first, then settings at their
    defaults, then the others from the end. The subject is dropped last.
    """
    parts = _settings(spec)
    default = RunSpec()

    def importance(index: int) -> tuple[int, int]:
        key, _ = parts[index]
        is_default = key not in SIZES and spec.get(key) == getattr(default, key, object())
        return (0 if key in shown else 1 if is_default else 2, -index)

    if spec.get("workload") == JOB:  # the begin of a command says more than nothing of it
        return truncate(" · ".join(text for _, text in parts), width)
    dropped: set[int] = set()
    for index in [*sorted(range(1, len(parts)), key=importance), 0]:
        texts = [text for place, (_, text) in enumerate(parts) if place not in dropped]
        line = " · ".join([*texts, "…"] if dropped else texts)
        if cell_len(line) <= width:
            return line
        dropped.add(index)
    return truncate(line, width)


def shape(spec: RunSpec) -> list[str]:
    """Return the dimensions, ``d 1280``, ``ff 5120`` …, or the arguments of a user model."""
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
    return OUTCOME_WORDS.get(outcome, outcome)


def outcome_glyph(outcome: str) -> str:
    return STATE_GLYPHS.get(outcome, FAILED_GLYPH)


MAX_DEVICES = 7
"""Other devices that the line about a file lists."""


def file_text(inspection: Inspection) -> str:
    """``chrome trace · 434 KiB · GPU 0 (others: 1, 2)``: the device that is shown."""
    kernels = inspection.kernels
    words = [KIND_WORDS[inspection.kind], amount(inspection.file_bytes)]
    if kernels and kernels.device is not None and kernels.other_devices:
        others = ", ".join(map(str, kernels.other_devices[:MAX_DEVICES]))
        more = " …" if len(kernels.other_devices) > MAX_DEVICES else ""
        words.append(f"GPU {kernels.device} (others: {others}{more})")
    return " · ".join(words)


def folder_text(ranks: Ranks) -> str:
    """Contents of a folder: ``4 ranks of 8 · chrome traces``."""
    count = len(ranks.rows) or len(ranks.memory)
    of = f" of {ranks.world_size}" if ranks.world_size else ""
    kinds = [
        *([f"{KIND_WORDS[ranks.kind]}s"] if ranks.kind else []),
        *(["memory"] if ranks.memory else []),
    ]
    return f"{counted(count, 'rank')}{of} · {' and '.join(kinds)}"


def decoding_text(step: Progressed) -> str:
    """Progress of decoding: ``decoding 12.0 MiB of 320 MiB``, ``reading rows 2,000 of 9,000``."""
    words = DECODING_WORDS.get(step.stage, step.stage)
    if not step.total:
        return words
    is_count = step.stage in ("rows", "layouts")
    done, total = (f"{n:,}" if is_count else amount(n) for n in (step.done, step.total))
    return f"{words} {done} of {total}"


def round_words(number: int, repeat: int) -> str:
    """``round 2 of 5``, or ``round 7`` beyond the requested number; empty for a single process."""
    if number > repeat:
        return f"round {number}"
    return f"round {number} of {repeat}" if repeat > 1 else ""


def median_text(median_ms: float, half_width: float | None) -> str:
    uncertainty = "" if half_width is None else f" ±{percent(half_width)}"
    return f"median {milliseconds(median_ms)}{uncertainty}"


def is_sure(fit: Fit) -> bool:
    """Whether every larger value certainly does not fit."""
    return fit.beyond == fit.next


def nothing_fits(fit: Fit) -> str:
    """Verb for a largest value of 0."""
    return "fits" if is_sure(fit) else "is guaranteed to fit"


def may_fit(fit: Fit) -> str:
    """``batch 27 to 29 might fit, 30 and more will not``; empty if none might fit."""
    if fit.beyond is None or fit.next is None or fit.beyond <= fit.next:
        return ""
    last = fit.beyond - 1
    values = f"{fit.key} {fit.next:,}" + (f" to {last:,}" if last > fit.next else "")
    return f"{values} might fit, {fit.beyond:,} and more will not"


def closed_form_error(closed: Prediction, exact: Prediction) -> str:
    """By how much the closed form's peak differs from the exact one: ``+1.2 %``."""
    over = round(closed.peak_bytes / exact.peak_bytes - 1, 3) + 0.0  # + 0.0 turns -0.0 into 0.0
    return signed_percent(over)
