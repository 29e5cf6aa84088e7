"""Save, list and show baselines; compare runs with them, as tables, lines and Markdown."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec

from sysbench.core.compare.gate_rule import DEFAULT_ROUNDS, gate_line
from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.errors import SpecError
from sysbench.core.experiments.baselines import (
    Baseline,
    Judgement,
    Listed,
    delete_baseline,
    foreign_here,
    judge_run,
    list_baselines,
    load_baseline,
    not_comparable,
    save_baseline,
)
from sysbench.core.export.text_formats import escaped, folded_overview, table_as_markdown, with_code
from sysbench.core.formatting import counted, percent
from sysbench.core.record.record import Record
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import create_run, find_run, load_record
from sysbench.core.runs.supervisor import supervise
from sysbench.core.tables.cells import literal
from sysbench.core.tables.context import settings_line
from sysbench.core.tables.table import Cell, Column, Table, tabulate
from sysbench.core.tables.verdict_sides import factor_table
from sysbench.tui.commands.comparison_report import verdict_lines
from sysbench.tui.commands.output import (
    cancelled_by_signals,
    page_width,
    print_answer,
    print_json,
    print_lines,
    say,
    write_text,
)
from sysbench.tui.commands.progress import RunFold, show_events
from sysbench.tui.commands.text_lines import Line, blank, labelled, prose, table_lines, titled
from sysbench.tui.text import minute_of

_SIDE_COLUMNS = ("side", "run", "median_ms", "ci_low_ms", "ci_high_ms", "interval_of", "rounds")
_LABEL_CELLS = 10
CANCELLED = 130


def _listed(row: Listed) -> dict[str, object]:
    named: dict[str, object] = {"name": row.name, "path": row.path, "problem": row.problem}
    baseline = row.baseline
    if baseline is None:
        return named
    return named | {
        "saved_ns": baseline.saved_ns,
        "run": baseline.run,
        "identity": baseline.record.identity,
        "machine": baseline.machine,
        "median_ms": _median_ms(baseline),
        "rounds": len(baseline.rounds_ms),
    }


def _median_ms(baseline: Baseline) -> float | None:
    timing = baseline.record.timing
    return timing.step.median_ms if timing else None


def listed_table(rows: Sequence[Listed]) -> Table:

    def known(value: Callable[[Baseline], Cell]) -> Callable[[Listed], Cell]:
        return lambda row: value(row.baseline) if row.baseline else None

    columns: tuple[Column[Listed], ...] = (
        Column("name"),
        Column("saved", known(lambda baseline: minute_of(baseline.saved_ns))),
        Column("median_ms", known(_median_ms)),
        Column("rounds", known(lambda baseline: len(baseline.rounds_ms))),
        Column("device_name", known(lambda baseline: baseline.machine.get("device_name"))),
        Column("spec", lambda row: _spec_line(row.baseline) if row.baseline else row.problem),
    )
    return tabulate(rows, *columns, name="baselines", title="Baselines")


def baseline_lines(baseline: Baseline, width: int) -> Iterator[Line]:
    facts = {
        "baseline": f"{baseline.name}, saved {minute_of(baseline.saved_ns)}",
        "run": baseline.run,
        "spec": _spec_line(baseline),
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
    if judgement.verdict is None:
        yield from prose(f"The run is {literal(judgement.headline)}", width, style="bold")
    else:
        verdict = msgspec.structs.replace(judgement.verdict, next="")  # the gate has its own
        yield from verdict_lines(verdict, width, subject="The run")
    for table in _tables(judgement):
        yield from titled(table.title, table_lines(table, width))
    if judgement.note:
        yield blank()
        yield from prose(judgement.note, width, style="dim")
    yield blank()
    # Never wrapped: a script may look for this line, a person copies the next.
    yield [(literal(gate_line(judgement.gate)), "bold")]
    yield [("again: ", "dim"), (command, "")]


def judgement_markdown(judgement: Judgement, command: str, record: Record | None = None) -> str:
    title = f"Step time against baseline {judgement.baseline}: {judgement.headline}"
    lines = [f"### {escaped(title)}", "", f"**{escaped(gate_line(judgement.gate))}**", ""]
    sides, *differences = _tables(judgement)
    lines += [table_as_markdown(sides), ""]
    for table in differences:
        lines += [f"{table.title}:", "", table_as_markdown(table), ""]
    if not differences:
        lines += ["No recorded fact of the two machines differs.", ""]
    if record is not None:
        lines += [*folded_overview("Overview of the run", record), ""]
    if judgement.verdict is not None:
        lines += [f"- Evidence: {escaped(judgement.verdict.why)}"]
        if judgement.verdict.spread is not None:
            lines += [f"- Spread between processes: {percent(judgement.verdict.spread, 2)}"]
    if judgement.note:
        lines += [f"- {escaped(judgement.note)}"]
    again = with_code(f"Again: `{command}`")
    return "\n".join([*lines, f"- {again}"]) + "\n"


def _tables(judgement: Judgement) -> Iterator[Table]:
    sides = ((f"baseline {judgement.baseline}", judgement.a), ("run", judgement.b))
    rows = tuple(
        (
            *(name, side.run, side.median_ms, side.ci_low_ms, side.ci_high_ms),
            *(side.interval_of, side.rounds),
        )
        for name, side in sides
        if side is not None
    )
    yield Table(name="sides", title="Step time", columns=_SIDE_COLUMNS, rows=rows)
    for title, factors in (
        ("Why they are not compared", judgement.obstacles),
        ("What else differs", judgement.differs),
    ):
        if factors:
            yield factor_table(factors, title=title, names=("baseline", "run"))


def _spec_line(baseline: Baseline) -> str:
    spec = baseline.record.spec
    return f"{spec.get('model')} · {settings_line(spec)}"


def judge(arguments: argparse.Namespace) -> int:
    """Return the gate's exit code, 130 if the measurement was cancelled."""
    if arguments.run is not None and arguments.repeat is not None:
        raise SpecError("--repeat", arguments.repeat, "not with RUN, which is already measured")
    if arguments.json and arguments.md:
        raise SpecError("--md", True, "not with --json")
    baseline = load_baseline(arguments.name, file=arguments.file)
    obstacles = []
    if arguments.run is not None:
        record: Record | None = load_record(find_run(arguments.run))
    else:
        foreign = foreign_here(baseline)
        obstacles = [row for row in foreign if row.name not in arguments.across]
        record = None if obstacles else _measure_again(arguments, baseline)
        if record is None and not obstacles:
            return CANCELLED
    judgement = (
        not_comparable(baseline, arguments.margin, obstacles)
        if record is None
        else judge_run(
            baseline,
            record,
            arguments.margin,
            smallest=arguments.smallest or MIN_EFFECT,
            across=arguments.across,
        )
    )
    command = _command(arguments, record)
    if arguments.json:
        print_json({**msgspec.to_builtins(judgement), "command": command})
    elif arguments.md:
        write_text(judgement_markdown(judgement, command, record))
    else:
        print_lines(judgement_lines(judgement, command, page_width()))
    return judgement.gate.exit_code


def _measure_again(arguments: argparse.Namespace, baseline: Baseline) -> Record | None:
    """Run the baseline's spec; None if it was cancelled."""
    repeat = DEFAULT_ROUNDS if arguments.repeat is None else arguments.repeat
    run = create_run(baseline.spec, ["timing"], repeat=repeat)
    cancel = Cancellation()
    with cancelled_by_signals(cancel):
        events = supervise(run, wait=not arguments.no_wait, cancel=cancel)
        show_events(RunFold(), events, json=arguments.json)
    record = load_record(run)
    return None if record.status == "cancelled" else record


def _command(arguments: argparse.Namespace, record: Record | None) -> str:
    words = ["sysbench-tui", "gate", arguments.name]
    words += [record.id] if arguments.run and record else []
    words += ["--margin", f"{100 * arguments.margin:g}%"]
    if arguments.smallest is not None:
        words += ["--smallest", f"{100 * arguments.smallest:g}%"]
    if arguments.repeat is not None:
        words += ["--repeat", str(arguments.repeat)]
    if arguments.file is not None:
        words += ["--file", str(arguments.file)]
    for name in arguments.across:
        words += ["--across", name]
    return shlex.join(words)


def change_baselines(arguments: argparse.Namespace) -> int:
    _ACTIONS[arguments.action](arguments)
    return 0


def _save(arguments: argparse.Namespace) -> None:
    record = load_record(find_run(arguments.run))
    path = save_baseline(arguments.name, record, file=arguments.file, force=arguments.force)
    rounds = len(load_baseline(arguments.name, file=arguments.file).rounds_ms)
    if arguments.json:
        print_json({"name": arguments.name, "path": str(path), "run": record.id, "rounds": rounds})
        return
    say(f"{arguments.name}: {record.id}, {counted(rounds, 'round')}, in {path}")
    if rounds < DEFAULT_ROUNDS:
        say(f"Too few rounds for most gates: use `sysbench-tui run --repeat {DEFAULT_ROUNDS}`.")


def _list(arguments: argparse.Namespace) -> None:
    rows = list_baselines()
    if arguments.json:
        print_json([*map(_listed, rows)])
    elif rows:
        print_lines(table_lines(listed_table(rows), page_width()))
    else:
        say("no baselines; `sysbench-tui baseline save NAME RUN` makes one")


def _show(arguments: argparse.Namespace) -> None:
    baseline = load_baseline(arguments.name, file=arguments.file)
    if arguments.json:
        print_json(baseline)
    else:
        print_lines(baseline_lines(baseline, page_width()))


def _delete(arguments: argparse.Namespace) -> None:
    path = delete_baseline(arguments.name)
    document = {"name": arguments.name, "path": str(path)}
    print_answer(document, f"{arguments.name}: {path} is deleted", json=arguments.json)


_ACTIONS = {"save": _save, "list": _list, "show": _show, "delete": _delete}
