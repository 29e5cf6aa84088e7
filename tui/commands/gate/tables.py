"""Baselines and judgements as tables, lines and Markdown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ....core.analysis.compare import Factor
from ....core.analysis.verdict.gate import gate_line
from ....core.export.text_formats import escaped, table_as_markdown
from ....core.formatting import percent
from ....core.runs.ab.baseline import Baseline, Listed
from ....core.runs.ab.gating import Judgement
from ....core.tables.cells import literal
from ....core.tables.context import settings_line
from ....core.tables.table import Table
from ..report.layout import Line, blank, labelled, prose, table_lines, titled

_SIDE_COLUMNS = ("side", "run", "median_ms", "ci_low_ms", "ci_high_ms", "interval_of", "rounds")
_LABEL_CELLS = 10


def listed_rows(rows: Sequence[Listed]) -> list[dict[str, object]]:
    """The list as JSON has it: without the records."""
    return [
        {
            "name": row.name,
            "path": row.path,
            "problem": row.problem,
            **({} if row.baseline is None else _facts(row.baseline)),
        }
        for row in rows
    ]


def _facts(baseline: Baseline) -> dict[str, object]:
    timing = baseline.record.timing
    return {
        "saved_ns": baseline.saved_ns,
        "run": baseline.run,
        "identity": baseline.record.identity,
        "machine": baseline.machine,
        "median_ms": timing.step.median_ms if timing else None,
        "rounds": len(baseline.rounds_ms),
    }


def listed_table(rows: Sequence[Listed]) -> Table:
    """A row for each baseline; a damaged one has its problem in place of the spec."""
    cells = tuple(
        (
            row.name,
            _day(row.baseline.saved_ns) if row.baseline else None,
            row.baseline.record.timing.step.median_ms
            if row.baseline and row.baseline.record.timing
            else None,
            len(row.baseline.rounds_ms) if row.baseline else None,
            row.baseline.machine.get("device_name") if row.baseline else None,
            _measured(row.baseline) if row.baseline else row.problem,
        )
        for row in rows
    )
    columns = ("name", "saved", "median_ms", "rounds", "device_name", "spec")
    return Table(name="baselines", title="Baselines", columns=columns, rows=cells)


def baseline_lines(baseline: Baseline, width: int) -> Iterator[Line]:
    """When and where it was measured, and its rounds."""
    facts = {
        "baseline": f"{baseline.name}, saved {_day(baseline.saved_ns)}",
        "run": baseline.run,
        "spec": _measured(baseline),
        "machine": ", ".join(f"{name} {value}" for name, value in baseline.machine.items()),
    }
    for label, text in facts.items():
        yield from labelled(label, literal(text), width, column=_LABEL_CELLS)
    timing = baseline.record.timing
    if timing is None:
        return
    rows = tuple(
        (row.index, row.outcome, row.median_ms, row.steps, row.disturbed) for row in timing.rounds
    ) or ((1, "finished", timing.step.median_ms, timing.step.n, ""),)
    columns = ("round", "outcome", "median_ms", "steps", "left_out")
    table = Table(name="rounds", title="Rounds", columns=columns, rows=rows)
    yield from titled("Rounds", table_lines(table, width))


def judgement_lines(judgement: Judgement, command: str, width: int) -> Iterator[Line]:
    """Verdict, both sides, what differs, and the gate's line last but the command."""
    yield from prose(f"The run is {literal(judgement.headline)}", width, style="bold")
    if judgement.verdict is not None:
        yield from prose(literal(judgement.verdict.why), width, style="dim")
    yield from titled("Step time", table_lines(_sides(judgement), width))
    for title, rows in _differences(judgement):
        yield from titled(title, table_lines(_factors(title, rows), width))
    if judgement.note:
        yield blank()
        yield from prose(judgement.note, width, style="dim")
    yield blank()
    # Never wrapped: a script may look for this line, a person copies the next.
    yield [(literal(gate_line(judgement.gate)), "bold")]
    yield [("again: ", "dim"), (command, "")]


def judgement_markdown(judgement: Judgement, command: str) -> str:
    """A block for a pull request."""
    lines = [
        f"### Step time against baseline {escaped(judgement.baseline)}: "
        f"{escaped(judgement.headline)}",
        "",
        f"**{escaped(gate_line(judgement.gate))}**",
        "",
        table_as_markdown(_sides(judgement)),
        "",
    ]
    for title, rows in _differences(judgement):
        lines += [f"{title}:", "", table_as_markdown(_factors(title, rows)), ""]
    if not judgement.obstacles and not judgement.differs:
        lines += ["No recorded fact of the two machines differs.", ""]
    if judgement.verdict is not None:
        lines += [f"- Evidence: {escaped(judgement.verdict.why)}"]
        if judgement.verdict.spread is not None:
            lines += [f"- Spread between processes: {percent(judgement.verdict.spread, 2)}"]
    if judgement.note:
        lines += [f"- {escaped(judgement.note)}"]
    return "\n".join([*lines, f"- Again: `{command}`"]) + "\n"


def _sides(judgement: Judgement) -> Table:
    sides = ((f"baseline {judgement.baseline}", judgement.a), ("run", judgement.b))
    rows = tuple(
        (
            *(name, side.run, side.median_ms, side.ci_low_ms, side.ci_high_ms),
            *(side.interval_of, side.rounds),
        )
        for name, side in sides
        if side is not None
    )
    return Table(name="sides", title="Step time", columns=_SIDE_COLUMNS, rows=rows)


def _differences(judgement: Judgement) -> Iterator[tuple[str, Sequence[Factor]]]:
    for title, rows in (
        ("Why they are not compared", judgement.obstacles),
        ("What else differs", judgement.differs),
    ):
        if rows:
            yield title, rows


def _factors(title: str, rows: Sequence[Factor]) -> Table:
    cells = tuple((row.name, _text(row.a), _text(row.b)) for row in rows)
    return Table(name="factors", title=title, columns=("fact", "baseline", "run"), rows=cells)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _measured(baseline: Baseline) -> str:
    spec = baseline.record.spec
    return f"{spec.get('model')} · {settings_line(spec)}"


def _day(t_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(t_ns / 1e9))
