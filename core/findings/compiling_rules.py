"""Rules on torch.compile: fallbacks to eager code, recompilations."""

from __future__ import annotations

from sysbench.core.findings.rule_rules import Rule
from sysbench.core.formatting import counted
from sysbench.core.record.record import Finding, Record

VERDICTS = {
    "none": "compile is on, but the whole step ran eagerly.",
    "part": "compile is on, but part of the step ran eagerly.",
}
REMEDIES = {
    "disabled": "Unset the variable and rerun.",
    "recompile-limit": "Set compile_dynamic=on, or keep the shapes in the guard constant.",
    "graph-break": "Set compile_fullgraph=true to make graph breaks errors; fix the line shown.",
    "unsupported": "Move this line out of the compiled module, or compile only the blocks.",
    "failed": "Read the log of the timing pass; try another backend to locate the failure.",
    "nothing-compiled": "Read the log of the timing pass.",
}


def fell_back(record: Record) -> Finding | None:
    """The spec asks for compiled code, but eager code ran."""
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
        next="Do not report this run as compiled."
        + (f" {REMEDIES[first.cause]}" if first is not None else ""),
        numbers={"graphs": block.graphs, "recompiles": block.recompiles},
    )


def recompiled(record: Record) -> Finding | None:
    """Shapes or values changed during the run and caused recompilations."""
    block = record.compile
    if block is None or not block.recompiled:
        return None
    first = block.recompiled[0]
    return Finding(
        rule="recompiled",
        severity="note",
        verdict=f"torch.compile recompiled {counted(block.recompiles, 'time')}.",
        why=f"A guard failed in {first.place}: {first.guard}",
        next="Keep the values in the guard constant, or set compile_dynamic=on.",
        numbers={"recompiles": block.recompiles},
    )


RULES: tuple[Rule, ...] = (fell_back, recompiled)
