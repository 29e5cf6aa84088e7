"""Run an experiment; print its plan and its report as lines, Markdown or JSON."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from sysbench.core.compare.gate_rule import gate_line
from sysbench.core.compare.verdict import MIN_EFFECT
from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.experiments.experiment import (
    ExperimentDirectory,
    create_experiment,
    find_experiment,
)
from sysbench.core.experiments.experiment_report import (
    ExperimentReport,
    RoundsOf,
    experiment_report,
)
from sysbench.core.experiments.experiment_runner import NO_WAIT, follow_experiment, run_experiment
from sysbench.core.experiments.plan import Method, Plan, plan_of
from sysbench.core.export.text_formats import folded_overview, verdict_as_markdown
from sysbench.core.machine.interpreter import named_python, require_chosen
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, find_run, load_record
from sysbench.core.spec.fields import differing_keys
from sysbench.core.spec.passes import check_passes
from sysbench.core.spec.profiles import list_profiles, profiles_in_words, resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.brief import Brief, brief_of
from sysbench.core.tables.cells import literal, one_figure
from sysbench.core.tables.table import Table
from sysbench.core.tables.verdict_sides import (
    Side,
    conditions_table,
    factor_table,
    left_out_table,
    sides_table,
)
from sysbench.core.watch.supervise_job import job_spec
from sysbench.tui.commands.answers import print_brief, print_chosen
from sysbench.tui.commands.comparison_report import verdict_lines
from sysbench.tui.commands.measuring_options import MAX_MINUTES
from sysbench.tui.commands.output import (
    cancelled_by_signals,
    page_width,
    print_json,
    print_lines,
    print_started,
    write_text,
)
from sysbench.tui.commands.progress import ExperimentFold, show_events
from sysbench.tui.commands.spec_arguments import changed_spec, from_file, is_model, parse_settings
from sysbench.tui.commands.text_lines import Line, blank, labelled, prose, table_lines, titled
from sysbench.tui.run_text import finds_words, method_words, plan_facts
from sysbench.tui.text import elapsed, run_headline

_LABEL = 14
_NO_B = (
    "B is missing: type what changes, such as `sysbench-tui ab {name} --set-b precision=bf16`, or "
    "a second spec; `sysbench-tui ab {name} {name}` compares it with itself"
)


def print_plan(
    directory: ExperimentDirectory, plan: Plan, a: RunSpec, b: RunSpec, *, quiet: bool
) -> None:
    """Write the plan to stderr; with ``quiet`` only to a terminal."""
    if quiet and not sys.stderr.isatty():
        return
    for line in plan_lines(directory.id, plan, a, b, directory.experiment().max_minutes):
        print(literal(line), file=sys.stderr, flush=True)


def plan_lines(name: str, plan: Plan, a: RunSpec, b: RunSpec, max_minutes: float) -> Iterator[str]:
    settings_a, settings_b = (msgspec.to_builtins(spec) for spec in (a, b))
    changed = [
        f"{key} = {one_figure(key, settings_b.get(key))}"
        for key in differing_keys(settings_a, settings_b)
    ]
    if changed and b.is_job:
        changed = [run_headline(settings_b)]
    facts = [
        ("experiment", name),
        ("A", run_headline(settings_a)),
        ("B", ", ".join(changed) or "the same spec"),
        *plan_facts(plan, max_minutes),
    ]
    for label, text in facts:
        yield f"{label:<10} {text}"


def print_experiment(directory: ExperimentDirectory, arguments: argparse.Namespace) -> int:
    report = experiment_report(directory)
    head = {name: getattr(report, name) for name in ("id", "ending", "headline", "resume")}
    can_choose = arguments.command == "ab"
    if can_choose and arguments.brief:
        print_brief(arguments, _brief(report), experiment_lines(report, page_width()))
        return exit_code(report)
    if can_choose and print_chosen(arguments, lambda: _tables(report), head):
        pass
    elif arguments.json:
        print_json(report)
    elif can_choose and arguments.md:
        write_text(experiment_as_markdown(report))
    else:
        print_lines(experiment_lines(report, page_width()))
    return exit_code(report)


def _brief(report: ExperimentReport) -> Brief:
    verdict = report.verdict
    tables = [factor_table(report.factors)] if report.factors else []
    return brief_of(
        f"{report.a.run} {report.b.run}",
        [
            report.headline,
            gate_line(report.gate) if report.gate else "",
            *(f"{label}: {text}" for label, text in _facts(report)),
            *(row.text for row in report.conditions if row.warns),
        ],
        numbers={"ending": report.ending, **msgspec.structs.asdict(verdict)},
        tables=[*tables, *_tables(report)],
        following=[verdict.next, *(f"`{text}`" for text in (report.resume, report.repeat) if text)],
    )


def exit_code(report: ExperimentReport) -> int:
    """Return 130 if cancelled, 1 if a round failed or the process was killed, else the gate's."""
    if report.ending in ("failed", "killed"):
        return 1
    if report.ending == "cancelled":
        return 130
    return report.gate.exit_code if report.gate else 0


def experiment_lines(report: ExperimentReport, width: int) -> Iterator[Line]:
    yield from prose(f"A  {_words(report.a)}", width)
    yield from prose(f"B  {_words(report.b)}", width)
    yield blank()
    yield from verdict_lines(report.verdict, width, picture=True)
    if report.gate:
        yield blank()
        # Never wrapped, for scripts that search for this line.
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
    column = max(len(row.name) for row in report.conditions) + 2
    for row in report.conditions:
        figures = f"A {row.a or 'none'}, B {row.b or 'none'}: " if row.a or row.b else ""
        style = "bold yellow" if row.warns else ""
        text = literal(f"{figures}{row.text}")
        yield from labelled(row.name, text, width, column=column, style=style)


def experiment_as_markdown(report: ExperimentReport) -> str:
    sides, *conditions = _tables(report)
    gate = gate_line(report.gate) if report.gate else ""
    facts = [gate, f"A: {_words(report.a)}", f"B: {_words(report.b)}"]
    return verdict_as_markdown(
        report.verdict,
        [*([factor_table(report.factors)] if report.factors else []), sides],
        facts=[*facts, *(f"{label}: {text}" for label, text in _facts(report))],
        commands=[report.repeat, report.resume],
        folded=conditions,
        subject="Wall time" if report.metric == "wall" else "Step time",
    ) + "".join(
        "\n"
        + "\n".join(folded_overview(f"Overview of {name}", load_record(find_run(side.run))))
        + "\n"
        for name, side in (("A", report.a), ("B", report.b))
    )


def _tables(report: ExperimentReport) -> list[Table]:
    sides = [
        Side(
            name=name,
            run=side.run,
            rounds=side.rounds,
            loss=side.loss_start,
            energy=side.energy,
        )
        for name, side in (("A", report.a), ("B", report.b))
    ]
    left_out = left_out_table(sides)
    subject = "Wall time of the command" if report.metric == "wall" else "Step"
    tables = [sides_table(sides, subject), conditions_table(report.conditions)]
    return [*tables, *([left_out] if left_out.rows else [])]


def _words(side: RoundsOf) -> str:
    return literal(run_headline(side.spec))


def _facts(report: ExperimentReport) -> Iterator[tuple[str, str]]:
    seconds = "" if report.seconds is None else f", {elapsed(report.seconds)}"
    yield "ending", f"{report.detail}{seconds}" if report.detail else report.ending
    yield "method", method_words(report.method, report.why_blocks)
    if report.plan is not None:
        yield "noise", report.plan.source or "unknown before the start"
        yield "planned power", finds_words(report.plan)


def _ending(report: ExperimentReport, width: int) -> Iterator[Line]:
    for label, text in [("id", report.id), *_facts(report)]:
        yield from labelled(label, literal(text), width, column=_LABEL)
    # Never truncated, so that they can be copied.
    commands = {
        "run A": f"sysbench-tui show {shlex.quote(report.a.run)}",
        "run B": f"sysbench-tui show {shlex.quote(report.b.run)}",
        "repeat": report.repeat,
        "go on": report.resume,
    }
    for label, text in commands.items():
        if text:
            yield [(f"  {label:<{_LABEL}}", "dim"), (text, "")]


def measure(arguments: argparse.Namespace) -> int:
    """Measure; return the gate's exit code, else 0 for any verdict."""
    directory = _resume(arguments) if arguments.resume else _create(arguments)
    if arguments.detach:
        pid = directory.start(*[NO_WAIT] * arguments.no_wait)
        experiment = directory.experiment()
        return print_started(directory, pid, json=arguments.json, a=experiment.a, b=experiment.b)
    cancel = Cancellation()
    fold = ExperimentFold(directory.experiment())
    with cancelled_by_signals(cancel):
        events = run_experiment(directory, wait=not arguments.no_wait, cancel=cancel)
        show_events(fold, events, json=arguments.json)
    return print_experiment(directory, arguments)


def attach_to(directory: ExperimentDirectory, arguments: argparse.Namespace) -> int:
    fold = ExperimentFold(directory.experiment())
    show_events(fold, follow_experiment(directory), json=arguments.json, job=directory.id)
    return print_experiment(directory, arguments)


def _create(arguments: argparse.Namespace) -> ExperimentDirectory:
    a, b = arguments.a, arguments.b
    pythons: tuple[str | None, str | None] = (None, None)
    if (commands := _both_commands(arguments)) is not None:
        spec_a, spec_b = commands
    else:
        pythons = both_pythons(a, b, arguments.python, arguments.python_b)
        spec_a, spec_b = both_specs(a, b, arguments.settings, arguments.settings_b, pythons)
        for spec in (spec_a, spec_b):
            check_passes(spec, ["timing"])
        if b is None and not arguments.settings_b and arguments.python_b is None:
            raise NotFoundError(_NO_B.format(name=shlex.quote(a or spec_a.model)))
    method: Method | None = "blocks" if arguments.one_at_a_time else None
    minutes = MAX_MINUTES if arguments.max_minutes is None else arguments.max_minutes
    plan = plan_of(spec_a, spec_b, minutes, method, of_command=arguments.metric == "wall")
    directory = create_experiment(
        spec_a,
        spec_b,
        smallest=MIN_EFFECT if arguments.smallest is None else arguments.smallest,
        gate=arguments.gate,
        max_minutes=minutes,
        seed=arguments.seed,
        plan=plan,
        method=method,
        metric=arguments.metric or "",
        pythons=pythons,
    )
    print_plan(directory, plan, spec_a, spec_b, quiet=arguments.json)
    return directory


def _both_commands(arguments: argparse.Namespace) -> tuple[RunSpec, RunSpec] | None:
    """Return the specs of two commands, typed or of two runs of `watch`; None for other sides.

    Raises SpecError for options that only specs have.
    """
    typed = arguments.commands
    runs = [] if typed else [_run(name) for name in (arguments.a, arguments.b) if name]
    specs = [run.header().spec for run in runs if run is not None]
    if not typed and not any(spec.is_job for spec in specs):
        if arguments.metric:
            raise SpecError("--metric", arguments.metric, "only of commands, after --")
        return None
    of_specs = {name: value for name, value in _of_specs(arguments).items() if value is not None}
    if not typed:
        of_specs = {name: of_specs[name] for name in of_specs if name not in ("A", "B")}
    for name, value in of_specs.items():
        raise SpecError(name, value, "not with commands, which decide all of that themselves")
    if typed:
        specs = [job_spec(_words_of(words)) for words in typed]
    if len(specs) != 2 or not all(spec.is_job for spec in specs):
        raise SpecError("commands", len(specs), "two: ab -- 'COMMAND A' -- 'COMMAND B'")
    return specs[0], specs[1]


def _words_of(words: Sequence[str]) -> list[str]:
    """Split a command that is one word as a shell would; no shell runs it."""
    if len(words) != 1:
        return list(words)
    try:
        return shlex.split(words[0])
    except ValueError as error:
        raise SpecError("command", words[0], f"words as of a shell: {error}") from error


def _of_specs(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "A": arguments.a,
        "B": arguments.b,
        "--set": arguments.settings or None,
        "--set-b": arguments.settings_b or None,
        "--one-at-a-time": arguments.one_at_a_time or None,
        "--python": arguments.python,
        "--python-b": arguments.python_b,
    }


def _resume(arguments: argparse.Namespace) -> ExperimentDirectory:
    fixed = _of_specs(arguments) | {
        "--seed": arguments.seed,
        "--metric": arguments.metric,
        "--": arguments.commands or None,
    }
    for name, value in fixed.items():
        if value is not None:
            raise SpecError(
                name, value, "not with --resume, which keeps both specs, their order and Python"
            )
    directory = find_experiment(arguments.resume)
    limits = {
        name: getattr(arguments, name)
        for name in ("smallest", "gate", "max_minutes")
        if getattr(arguments, name) is not None
    }
    if limits and not directory.is_live():
        directory.write(
            "experiment.json", msgspec.structs.replace(directory.experiment(), **limits)
        )
    return directory


def both_specs(
    a: str | None,
    b: str | None,
    settings: Sequence[str],
    settings_b: Sequence[str],
    pythons: tuple[str | None, str | None] = (None, None),
) -> tuple[RunSpec, RunSpec]:
    """Return the specs of A and B, resolved for this machine.

    Args:
        a: A TOML file, a profile, a model or a run; None is the default spec.
        b: As ``a``; None is A's spec.
        settings, settings_b: ``KEY=VALUE`` for both, and for B only.
        pythons: As `both_pythons` returns them.

    Raises:
        SpecError, ProfileError, NotFoundError, DamagedFileError
    """
    for_both, for_b = parse_settings(settings), parse_settings(settings_b)
    spec_a = resolve(changed_spec(side_settings(a), for_both), python=pythons[0])
    spec_b = spec_a
    if b is not None or pythons[0] != pythons[1]:
        settings_b_alone = side_settings(a if b is None else b)
        spec_b = resolve(changed_spec(settings_b_alone, for_both), python=pythons[1])
    if for_b:
        spec_b = resolve(changed_spec(spec_b.settings(), for_b), python=pythons[1])
    return spec_a, spec_b


def both_pythons(
    a: str | None, b: str | None, python: str | None, python_for_b: str | None
) -> tuple[str | None, str | None]:
    """Return the interpreters of both sides' workers; None is the default one.

    A run is measured again in its own interpreter, unless one is given.

    Raises:
        InterpreterError: An interpreter does not exist, or a run's was never chosen here.
        NotFoundError, DamagedFileError
    """
    python_a = None if python else _python_of(a)
    python_b = python_a if python or b is None else _python_of(b)
    return python_a, named_python(python_for_b) if python_for_b else python_b


def _python_of(name: str | None) -> str | None:
    run = None if name is None else _run(name)
    return None if run is None else require_chosen(run.header().python)


def side_settings(name: str | None) -> Mapping[str, object]:
    if name is not None and (run := _run(name)) is not None:
        spec = run.header().spec
        if spec.is_job:
            raise SpecError("RUN", run.id, "no command of `watch`: `compare` compares two of them")
        return spec.settings()
    return from_file(name)[0]


def _run(name: str) -> RunDirectory | None:
    """Find the run of that name, unless it names a file, profile or model."""
    path = Path(name)
    if (path / "run.json").is_file():
        return RunDirectory(path.resolve())
    is_file = name.endswith(".toml") or "/" in name or path.is_file()
    if is_file or name in list_profiles() or is_model(name):
        return None
    try:
        return find_run(name)
    except NotFoundError as error:
        words = f"{error}; no profile has that name: {profiles_in_words()}"
        raise NotFoundError(words) from error
