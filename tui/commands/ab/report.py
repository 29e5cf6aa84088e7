"""The plan and the report of an experiment as lines, Markdown or JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ....core.analysis.compare import Factor
from ....core.analysis.verdict.gate import gate_line
from ....core.analysis.verdict.verdict import Verdict, sentence
from ....core.export.verdict import verdict_as_markdown
from ....core.runs.ab.experiment import ExperimentDirectory
from ....core.runs.ab.plan import Plan
from ....core.runs.ab.report import Report, RoundsOf, report_of
from ....core.spec.fields import differing_keys
from ....core.spec.spec import RunSpec
from ....core.tables.cells import literal, one_figure
from ....core.tables.table import Table
from ....core.tables.verdict.picture import interval_line
from ....core.tables.verdict.sides import Side, conditions_table, left_out_table, sides_table
from ...glyphs import ascii_only, to_ascii
from ...plan_text import finds_words, plan_facts
from ...text import elapsed, headline
from ..report.comparison import STYLES
from ..report.layout import Line, blank, labelled, prose, table_lines, titled
from ..report.output import page_width, print_json, print_lines, write

_LABEL = 10


def print_plan(
    directory: ExperimentDirectory, plan: Plan, a: RunSpec, b: RunSpec, *, quiet: bool
) -> None:
    """Write the plan to stderr; with ``quiet`` only to a terminal."""
    if quiet and not sys.stderr.isatty():
        return
    for line in plan_lines(directory.id, plan, a, b, directory.experiment().max_minutes):
        print(literal(line), file=sys.stderr, flush=True)


def plan_lines(name: str, plan: Plan, a: RunSpec, b: RunSpec, max_minutes: float) -> Iterator[str]:
    """What is measured, and what so many rounds can tell; unknown figures with their reason."""
    settings = _mapping(a), _mapping(b)
    changed = [
        f"{key} = {one_figure(key, settings[1].get(key))}" for key in differing_keys(*settings)
    ]
    yield _labelled("experiment", name)
    yield _labelled("A", headline(settings[0]))
    yield _labelled("B", ", ".join(changed) or "the same spec")
    for label, text in plan_facts(plan, max_minutes):
        yield _labelled(label, text)


def _mapping(spec: RunSpec) -> Mapping[str, Any]:
    import msgspec

    settings: dict[str, Any] = msgspec.to_builtins(spec)
    return settings


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def print_experiment(directory: ExperimentDirectory, *, json: bool, markdown: bool = False) -> int:
    """Print the report; return the exit code of the experiment."""
    report = report_of(directory)
    if json:
        print_json(report)
    elif markdown:
        write(experiment_as_markdown(report))
    else:
        print_lines(experiment_lines(report, page_width()))
    return exit_code(report)


def exit_code(report: Report) -> int:
    """130 when cancelled, 1 when a round failed or the process was killed, else the gate's."""
    if report.ending in ("failed", "killed"):
        return 1
    if report.ending == "cancelled":
        return 130
    return report.gate.exit_code if report.gate else 0


def experiment_lines(report: Report, width: int) -> Iterator[Line]:
    """The verdict with its picture and evidence, both sides, conditions, then the commands."""
    yield from prose(f"A  {_words(report.a)}", width)
    yield from prose(f"B  {_words(report.b)}", width)
    yield blank()
    style = STYLES[report.verdict.verdict]
    yield from prose(sentence(report.verdict), width, style=style)
    for reason in (report.verdict.why, report.verdict.next):
        if reason:
            yield from prose(literal(reason), width, style="dim")
    picture = picture_line(report.verdict)
    if picture:
        yield blank()
        yield [(f"  {picture}", style)]
    if report.gate:
        yield blank()
        # Never wrapped: a script may look for this line.
        yield [(literal(gate_line(report.gate)), "bold")]
    if report.factors:
        yield from titled("What differs", table_lines(_factors(report.factors), width))
    sides, conditions, *left_out = _tables(report)
    yield from titled(sides.title, table_lines(sides, width, drop=("run",)))
    yield from titled(conditions.title, _conditions(report, width))
    for table in left_out:
        yield from titled(table.title, table_lines(table, width))
    yield from titled("Experiment", _ending(report, width))


def _conditions(report: Report, width: int) -> Iterator[Line]:
    """A paragraph each: their sentences are too long for a table."""
    column = max(len(row.name) for row in report.conditions) + 2
    for row in report.conditions:
        figures = f"A {row.a or 'none'}, B {row.b or 'none'}: " if row.a or row.b else ""
        style = "bold yellow" if row.warns else ""
        text = literal(f"{figures}{row.text}")
        yield from labelled(row.name, text, width, column=column, style=style)


def picture_line(verdict: Verdict) -> str:
    """The interval as text, in ASCII where the terminal has nothing else."""
    line = interval_line(verdict)
    return to_ascii(line) if ascii_only() else line


def experiment_as_markdown(report: Report) -> str:
    """The report for a pull request."""
    sides, *conditions = _tables(report)
    tables = [*([_factors(report.factors)] if report.factors else []), sides]
    gate = gate_line(report.gate) if report.gate else ""
    facts = [gate, f"A: {_words(report.a)}", f"B: {_words(report.b)}"]
    return verdict_as_markdown(
        report.verdict,
        tables,
        facts=[*facts, *(f"{label}: {text}" for label, text in _facts(report))],
        commands=[text for text in (report.repeat, report.resume) if text],
        folded=conditions,
    )


def _tables(report: Report) -> list[Table]:
    sides = [_side("A", report.a), _side("B", report.b)]
    left_out = left_out_table(sides)
    tables = [sides_table(sides), conditions_table(report.conditions)]
    return [*tables, *([left_out] if left_out.rows else [])]


def _side(name: str, side: RoundsOf) -> Side:
    return Side(name=name, run=side.run, rounds=side.rounds, loss=side.loss_start)


def _words(side: RoundsOf) -> str:
    return literal(headline(side.spec))


def _factors(factors: list[Factor]) -> Table:
    rows = tuple(
        (factor.name, one_figure(factor.name, factor.a), one_figure(factor.name, factor.b))
        for factor in factors
    )
    return Table(name="factors", title="What differs", columns=("factor", "A", "B"), rows=rows)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    seconds = "" if report.seconds is None else f", {elapsed(report.seconds)}"
    yield "ending", f"{report.ending}: {report.detail}{seconds}" if report.detail else report.ending
    if report.plan is not None:
        yield "noise", report.plan.source or "unknown before the start"
        yield "promised", finds_words(report.plan)


def _ending(report: Report, width: int) -> Iterator[Line]:
    facts = [("id", report.id), *_facts(report)]
    for label, text in facts:
        first, *rest = prose(literal(text), width - 2 - _LABEL) or [[("", "")]]
        yield [(f"  {label:<{_LABEL}}", "dim"), *first]
        yield from ([(" " * (2 + _LABEL), ""), *line] for line in rest)
    # Never cut: these lines are for copying.
    commands = {
        "run A": f"sysbench-tui show {shlex.quote(report.a.run)}",
        "run B": f"sysbench-tui show {shlex.quote(report.b.run)}",
        "repeat": report.repeat,
        "go on": report.resume,
    }
    for label, text in commands.items():
        if text:
            yield [(f"  {label:<{_LABEL}}", "dim"), (text, "")]
