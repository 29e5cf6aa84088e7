"""Rules on torch.compile: a compiled row must be compiled."""

from __future__ import annotations

from sysbench.core.findings.rule_rules import Rule
from sysbench.core.record.record import Finding, Record

VERDICTS = {
    "none": "Labelled compiled, but nothing ran compiled: this is an eager row.",
    "part": "Labelled compiled, but torch.compile fell back to eager in part.",
}
CURES = {
    "disabled": "Unset the variable and run again.",
    "recompile-limit": "Set compile_dynamic=on, or keep the shapes that the guard names constant.",
    "graph-break": "Set compile_fullgraph=true to make a break an error; mend the line named.",
    "unsupported": "Move what the line does out of the compiled module, or compile blocks only.",
    "failed": "Read the timing pass's log; the other backends narrow down where it fails.",
    "nothing-compiled": "Read the timing pass's log.",
}


def fell_back(record: Record) -> Finding | None:
    """A run labelled compiled that ran eagerly, in whole or in part."""
    block = record.compile
    if block is None or not block.fell_back:
        return None
    first = block.eager_parts[0] if block.eager_parts else None
    more = f" ({len(block.eager_parts) - 1} more)" if len(block.eager_parts) > 1 else ""
    why = f"{block.graphs} graphs, {block.recompiles} recompiles, "
    why += f"{sum(block.graph_breaks.values())} graph breaks."
    if first is not None:
        place = f" at {first.place}" if first.place else ""
        why = f"{first.cause}{place}: {first.reason}{more}; {why}"
    return Finding(
        rule="fell-back-to-eager",
        severity="problem",
        verdict=VERDICTS["part" if block.graphs else "none"],
        why=why,
        next="Do not publish this row as compiled."
        + (f" {CURES[first.cause]}" if first is not None else ""),
        numbers={"graphs": block.graphs, "recompiles": block.recompiles},
    )


def recompiled(record: Record) -> Finding | None:
    """Shapes or values changed during the run, and each change caused a recompilation."""
    block = record.compile
    if block is None or not block.recompiled:
        return None
    first = block.recompiled[0]
    return Finding(
        rule="recompiled",
        severity="note",
        verdict=f"Compiled again {block.recompiles} times after the first.",
        why=f"In {first.place} a guard did not hold: {first.guard}",
        next="Keep what the guard names constant, or set compile_dynamic=on.",
        numbers={"recompiles": block.recompiles},
    )


RULES: tuple[Rule, ...] = (fell_back, recompiled)
"""All rules on compilation."""
