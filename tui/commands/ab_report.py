"""The plan and the report of an experiment as lines, Markdown or JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import msgspec

from sysbench.core.compare.gate_rule import gate_line
from sysbench.core.experiments.experiment import ExperimentDirectory
from sysbench.core.experiments.experiment_report import (
    ExperimentReport,
    RoundsOf,
    experiment_report,
)
from sysbench.core.experiments.plan import Plan
from sysbench.core.export.text_formats import verdict_as_markdown
from sysbench.core.spec.fields import differing_keys
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.cells import literal, one_figure
from sysbench.core.tables.table import Table
from sysbench.core.tables.verdict_sides import (
    Side,
    conditions_table,
    factor_table,
    left_out_table,
    sides_table,
)
from sysbench.tui.commands.comparison_report import verdict_lines
from sysbench.tui.commands.layout import Line, blank, labelled, prose, table_lines, titled
from sysbench.tui.commands.output import page_width, print_json, print_lines, write_text
from sysbench.tui.plan_text import finds_words, plan_facts
from sysbench.tui.text import elapsed, run_headline

_LABEL = 14


def print_plan(
    directory: ExperimentDirectory, plan: Plan, a: RunSpec, b: RunSpec, *, quiet: bool
) -> None:
    """Write the plan to stderr; with ``quiet`` only to a terminal."""
    if quiet and not sys.stderr.isatty():
        return
    for line in plan_lines(directory.id, plan, a, b, directory.experiment().max_minutes):
        print(literal(line), file=sys.stderr, flush=True)


def plan_lines(name: str, plan: Plan, a: RunSpec, b: RunSpec, max_minutes: float) -> Iterator[str]:
    """Both specs and what the rounds can detect; unknown figures with their reason."""
    settings_a, settings_b = (msgspec.to_builtins(spec) for spec in (a, b))
    changed = [
        f"{key} = {one_figure(key, settings_b.get(key))}"
        for key in differing_keys(settings_a, settings_b)
    ]
    facts = [
        ("experiment", name),
        ("A", run_headline(settings_a)),
        ("B", ", ".join(changed) or "the same spec"),
        *plan_facts(plan, max_minutes),
    ]
    for label, text in facts:
        yield f"{label:<10} {text}"


def print_experiment(directory: ExperimentDirectory, *, json: bool, markdown: bool = False) -> int:
    """Print the report; return the exit code of the experiment."""
    report = experiment_report(directory)
    if json:
        print_json(report)
    elif markdown:
        write_text(experiment_as_markdown(report))
    else:
        print_lines(experiment_lines(report, page_width()))
    return exit_code(report)


def exit_code(report: ExperimentReport) -> int:
    """130 when cancelled, 1 when a round failed or the process was killed, else the gate's."""
    if report.ending in ("failed", "killed"):
        return 1
    if report.ending == "cancelled":
        return 130
    return report.gate.exit_code if report.gate else 0


def experiment_lines(report: ExperimentReport, width: int) -> Iterator[Line]:
    """The verdict with its picture and evidence, both sides, conditions, then the commands."""
    yield from prose(f"A  {_words(report.a)}", width)
    yield from prose(f"B  {_words(report.b)}", width)
    yield blank()
    yield from verdict_lines(report.verdict, width, picture=True)
    if report.gate:
        yield blank()
        # Never wrapped: a script may look for this line.
        yield [(literal(gate_line(report.gate)), "bold")]
    if report.factors:
        table = factor_table(report.factors)
        yield from titled(table.title, table_lines(table, width))
    sides, conditions, *left_out = _tables(report)
    yield from titled(sides.title, table_lines(sides, width, drop=("run",)))
    yield from titled(conditions.title, _conditions(report, width))
    for table in left_out:
        yield from titled(table.title, table_lines(table, width))
    yield from titled("Experiment", _ending(report, width))


def _conditions(report: ExperimentReport, width: int) -> Iterator[Line]:
    """A paragraph each: their sentences are too long for a table."""
    column = max(len(row.name) for row in report.conditions) + 2
    for row in report.conditions:
        figures = f"A {row.a or 'none'}, B {row.b or 'none'}: " if row.a or row.b else ""
        style = "bold yellow" if row.warns else ""
        text = literal(f"{figures}{row.text}")
        yield from labelled(row.name, text, width, column=column, style=style)


def experiment_as_markdown(report: ExperimentReport) -> str:
    """The report for a pull request."""
    sides, *conditions = _tables(report)
    gate = gate_line(report.gate) if report.gate else ""
    facts = [gate, f"A: {_words(report.a)}", f"B: {_words(report.b)}"]
    return verdict_as_markdown(
        report.verdict,
        [*([factor_table(report.factors)] if report.factors else []), sides],
        facts=[*facts, *(f"{label}: {text}" for label, text in _facts(report))],
        commands=[report.repeat, report.resume],
        folded=conditions,
    )


def _tables(report: ExperimentReport) -> list[Table]:
    sides = [
        Side(name=name, run=side.run, rounds=side.rounds, loss=side.loss_start)
        for name, side in (("A", report.a), ("B", report.b))
    ]
    left_out = left_out_table(sides)
    tables = [sides_table(sides), conditions_table(report.conditions)]
    return [*tables, *([left_out] if left_out.rows else [])]


def _words(side: RoundsOf) -> str:
    return literal(run_headline(side.spec))


def _facts(report: ExperimentReport) -> Iterator[tuple[str, str]]:
    seconds = "" if report.seconds is None else f", {elapsed(report.seconds)}"
    yield "ending", f"{report.detail}{seconds}" if report.detail else report.ending
    if report.plan is not None:
        yield "noise", report.plan.source or "unknown before the start"
        yield "planned power", finds_words(report.plan)


def _ending(report: ExperimentReport, width: int) -> Iterator[Line]:
    for label, text in [("id", report.id), *_facts(report)]:
        yield from labelled(label, literal(text), width, column=_LABEL)
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
