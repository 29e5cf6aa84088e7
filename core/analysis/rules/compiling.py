"""Rules on torch.compile: a compiled row must be compiled."""

from __future__ import annotations

from ...record import Finding, Record
from .rule import Rule


def fell_back(record: Record) -> Finding | None:
    """A run labelled compiled that ran eagerly, in whole or in part."""
    compilation = record.compile
    if compilation is None or not compilation.fell_back:
        return None
    return Finding(
        rule="fell-back-to-eager",
        severity="problem",
        verdict="Labelled compiled, but torch.compile fell back to eager.",
        why=f"{compilation.graphs} graphs, {compilation.recompiles} recompiles, "
        f"{sum(compilation.graph_breaks.values())} graph breaks.",
        next="Do not publish this row as compiled; see the Compile block.",
        numbers={"graphs": compilation.graphs, "recompiles": compilation.recompiles},
    )


RULES: tuple[Rule, ...] = (fell_back,)
