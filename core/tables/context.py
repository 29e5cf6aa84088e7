"""What was measured, where, and how the passes went, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..record.record import Record
from .table import Cell, Table, facts, is_number


def spec_table(record: Record) -> Table:
    """Every key of the spec, with the run's id, identity and exact parameter count."""
    values = {
        "run": record.id,
        "identity": record.identity,
        "status": record.status,
        "parameters": record.parameters,
        **{key: value if _is_cell(value) else str(value) for key, value in record.spec.items()},
    }
    return facts("spec", "What was measured", values)


def passes_table(record: Record) -> Table:
    """How each pass went; ``over_bare`` is its step over the timing pass's, minus one."""
    bare = record.timing.step.median_ms if record.timing else None
    return Table(
        name="passes",
        title="Passes: what watching the step costs it",
        columns=("name", "outcome", "step_ms", "over_bare", "seconds", "detail"),
        rows=tuple(
            (
                *(one.name, one.outcome, one.step_ms),
                one.step_ms / bare - 1 if bare and one.step_ms else None,
                *(one.seconds, one.detail),
            )
            for one in record.passes
        ),
    )


def findings_table(record: Record) -> Table:
    """Verdict / Why / Next of each rule that fired."""
    return Table(
        name="findings",
        title="Findings",
        columns=("severity", "verdict", "why", "next", "rule"),
        rows=tuple(
            (one.severity, one.verdict, one.why, one.next, one.rule) for one in record.findings
        ),
    )


def environment_table(record: Record) -> Table:
    """Hardware, software and settings, nested keys joined with dots."""
    missing = record.environment.get("missing")
    values = dict(_flat({k: v for k, v in record.environment.items() if k != "missing"}))
    return facts("environment", "Environment", values, missing if _is_map(missing) else None)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Cell]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if _is_map(value):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value))
        else:
            yield name, value if _is_cell(value) else str(value)


def _is_cell(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


def _is_map(value: object) -> bool:
    return isinstance(value, dict)
