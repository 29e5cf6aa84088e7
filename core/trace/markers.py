"""Steps marked in a trace by torch's profiler, a serving engine, or by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sysbench.core.trace.intervals import Times
from sysbench.core.trace.trace_events import Kind, Trace, occurring

SERVING = ("SGLang", "ATOM", "vLLM")
MAX_DIGITS = 9
"""Digits; a longer number counts no steps or tokens."""
DIGITS = rf"(\d{{1,{MAX_DIGITS}}})"


class Marker(NamedTuple):
    """Facts in the name of a marker; None or empty if absent."""

    number: int | None = None
    kind: str = ""
    tokens: int | None = None
    requests: int | None = None


def _numbered(match: re.Match[str]) -> Marker:
    return Marker(number=int(match[1]))


def _of_batch(match: re.Match[str]) -> Marker:
    """``step[EXTEND bs=15 toks=15360]``; a decode request has one token."""
    kind, requests = MODES.get(match[1].upper(), match[1].lower()), int(match[2])
    facts = dict(re.findall(rf"(\w+)={DIGITS}(?!\w)", match[0]))
    told = facts.get("toks", facts.get("tok"))
    tokens = int(told) if told is not None else requests if kind == "decode" else None
    return Marker(kind=kind, tokens=tokens, requests=requests)


def _of_two_sums(match: re.Match[str]) -> Marker:
    """``execute_context_2(1024)_generation_3(3)``: requests(tokens)."""
    context, context_tokens, generation, generation_tokens = map(int, match.groups())
    return Marker(
        kind=_mixture(context, generation),
        tokens=context_tokens + generation_tokens,
        requests=context + generation,
    )


def _of_one_sum(match: re.Match[str]) -> Marker:
    """``execute_8192_context_9(…)_generation_37(…)``: all tokens, then requests."""
    tokens, context, generation = map(int, match.groups())
    return Marker(kind=_mixture(context, generation), tokens=tokens, requests=context + generation)


def _mixture(context: int, generation: int) -> str:
    if context and generation:
        return "mixed"
    return "prefill" if context else "decode" if generation else ""


MODES = {"EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "MIXED": "mixed"}


class Family(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Marker]


def _family(name: str, pattern: str, read: Callable[[re.Match[str]], Marker]) -> Family:
    return Family(name, re.compile(pattern, re.IGNORECASE), read)


FAMILIES = (
    _family("SGLang", rf"step\[(\w{{1,40}}) bs={DIGITS}(?: [^\]\n]*)?\]", _of_batch),
    _family("ATOM", rf"(prefill|decode)\[bs={DIGITS}(?: [^\]\n]*)?\]", _of_batch),
    _family(
        "vLLM",
        rf"execute_context_{DIGITS}\({DIGITS}\)_generation_{DIGITS}\({DIGITS}\)",
        _of_two_sums,
    ),
    _family(
        "vLLM",
        rf"execute_{DIGITS}_context_{DIGITS}\([^)\n]*\)_generation_{DIGITS}\([^)\n]*\)",
        _of_one_sum,
    ),
    _family("torch.profiler", rf"ProfilerStep#{DIGITS}", _numbered),
    _family(
        "ranges",
        rf"(?:train(?:ing)?[ _]?)?(?:step|iteration|iter)[ _#:=-]{{0,3}}{DIGITS}",
        _numbered,
    ),
)
"""By preference among families with equally many steps. Formats of torch (``ProfilerStep#``),
SGLang (``build_step_span_name``), vLLM (``annotate_profile``), ATOM, and any numbered step or
iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Disjoint marked steps in time order; times are on the host.

    ``left_out`` counts markers of the family that began inside another.
    """

    family: str
    names: list[str]
    markers: list[Marker]
    numbers: list[int]
    start: Times
    end: Times
    left_out: int


def read_marker(name: str) -> tuple[str, Marker] | None:
    """Return the family and the facts of a step marker; None for any other name."""
    for family in FAMILIES:
        if match := family.pattern.fullmatch(name):
            return family.name, family.read(match)
    return None


def is_served_step(name: str) -> bool:
    """Return whether a range is a step of a serving engine, which runs inference only."""
    found = read_marker(name)
    return found is not None and found[0] in SERVING


def find_steps(trace: Trace) -> Steps | None:
    """Return the steps of the family with the most steps, or None.

    Steps without unique numbers are numbered from 1.
    """
    host = trace.host
    is_range = (host.kind == Kind.ANNOTATION) | (host.kind == Kind.OPERATOR)
    used = occurring(host.name[is_range]).tolist()
    read = {name: marker for name in used if (marker := read_marker(trace.names[name]))}
    order = [family.name for family in FAMILIES]
    found: list[Steps] = []
    for family in sorted({family for family, _ in read.values()}, key=order.index):
        wanted = np.isin(host.name, [name for name, (of, _) in read.items() if of == family])
        events = host.take(wanted & is_range & (host.end > host.start))
        events = events.take(np.lexsort((-events.end, events.start)))
        kept: list[int] = []
        free_from = None
        for index, (start, end) in enumerate(
            zip(events.start.tolist(), events.end.tolist(), strict=True)
        ):
            if free_from is None or start >= free_from:
                kept.append(index)
                free_from = end
        if not kept:
            continue
        steps = events.take(np.array(kept))
        markers = [read[name][1] for name in steps.name.tolist()]
        found.append(
            Steps(
                family=family,
                names=[trace.names[name] for name in steps.name.tolist()],
                markers=markers,
                numbers=_numbers(markers),
                start=steps.start,
                end=steps.end,
                left_out=len(events) - len(kept),
            )
        )
    return max(found, key=lambda steps: len(steps.numbers), default=None)


def _numbers(markers: list[Marker]) -> list[int]:
    given = [marker.number for marker in markers if marker.number is not None]
    if len(set(given)) == len(markers):
        return given
    return list(range(1, len(markers) + 1))
