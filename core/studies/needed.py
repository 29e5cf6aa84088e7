"""What a study shows of a record: the rest need not stay in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..record.memory import Timeline
from ..record.record import Record
from .file.study import Layout, Study
from .paths import parse_path
from .values.formula import paths_in

BLOCKS = ("timing", "kernels", "memory", "nsys", "numerics", "compile", "distributed")
"""Any of them may be read by a measure, or by a table that every cell has of its own."""

FACTS = ("measures.hardware", "measures.status")
"""Measures that read none of them."""

_UNSHOWN: dict[str, Any] = {"findings": [], "prediction": None, "telemetry": None}
_LONG: dict[str, dict[str, Any]] = {
    "timing": {"samples_ms": [], "warmup_ms": [], "phase_samples_ms": {}},
    "memory": {"timeline": Timeline([], [], {}, [])},
}
"""Parts that are long, and that only a formula of their own asks for."""


def keeper(study: Study) -> Callable[[Record], Record]:
    """A function that leaves out of a record what no table or figure of the study reads."""
    paths = [path for layout in study.tables for path in _paths(layout)]
    named = {step.name for path in paths for step in parse_path(path)[:2]}
    has_more = any(layout.each for layout in study.tables) or any(
        path.startswith("measures.") and path not in FACTS for path in paths
    )
    empty = {name: value for name, value in _UNSHOWN.items() if name not in named}
    if not has_more:
        empty |= {name: None for name in BLOCKS if name not in {*named, "compile"}}
    if study.timelines:
        named.add("timeline")

    def keep(record: Record) -> Record:
        shorter = {
            block: msgspec.structs.replace(held, **_without(parts, named))
            for block, parts in _LONG.items()
            if block not in empty and (held := getattr(record, block)) is not None
        }
        passes = [msgspec.structs.replace(one, log_tail=[]) for one in record.passes]
        return msgspec.structs.replace(record, passes=passes, **(empty | shorter))

    return keep


def _without(parts: dict[str, Any], named: set[str]) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if name not in named}


def _paths(layout: Layout) -> Iterator[str]:
    """Those of every formula of a table."""
    formulas = [*(one.value for one in layout.columns), *(one.value for one in layout.lines)]
    for formula in filter(None, formulas):
        yield from paths_in(formula)
