"""Run, list and show studies, with the report or the forecast as lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sysbench.core.compare.bounds import least_pairs
from sysbench.core.errors import DeviceBusyError, SpecError, SysbenchError
from sysbench.core.export.exports import refuse_existing, write
from sysbench.core.formatting import counted, format_bytes
from sysbench.core.machine.devices import resolve_device
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.spec.passes import MAX_ROUNDS
from sysbench.core.storage import study_files
from sysbench.core.studies.cluster_runner import adopt_ended, run_on
from sysbench.core.studies.forecast import (
    LONG_STUDY_SECONDS,
    Forecaster,
    past_entries,
    total_seconds,
)
from sysbench.core.studies.ratios import ways_in
from sysbench.core.studies.schema import Study, load_study
from sysbench.core.studies.slurm import Slurm, parse_options, placed
from sysbench.core.studies.study_directory import (
    StudyDirectory,
    directory_of,
    find_study,
    list_studies,
    open_study,
    progress_in,
    unique,
)
from sysbench.core.studies.study_grid import Cell, expand, with_overrides, with_variant
from sysbench.core.studies.study_report import StudyReport, study_as, study_as_json, study_report
from sysbench.core.studies.study_runner import (
    StudyEnded,
    StudyEvent,
    cells_to_run,
    keep_python,
    run_study,
)
from sysbench.core.studies.study_text import cautions_of
from sysbench.core.tables.table import Row, Table, is_number
from sysbench.tui.commands.output import (
    cancelled_by_signals,
    page_width,
    print_json,
    print_lines,
    say,
)
from sysbench.tui.commands.output import write_text as print_text
from sysbench.tui.commands.progress import Progress, StudyFold
from sysbench.tui.commands.spec_arguments import parse_settings
from sysbench.tui.commands.text_lines import Line, blank, prose, table_lines, titled
from sysbench.tui.text import forecast_text
from sysbench.tui.widgets.plot import figure_rows

PLOT_ROWS = 14
_NOT_RUN = {True: "to be predicted, not run", False: None}
CANCELLED, UNFILLED = 130, 1


def study_lines(report: StudyReport, width: int) -> Iterator[Line]:
    study, progress = report.study, report.progress
    name = " · ".join(part for part in (study.name, study.variant) if part)
    yield [(f"{name}: {study.title}", "bold")]
    yield [(f"{progress.done} of {progress.total} cells are done", "dim")]
    for caution in report.cautions:
        yield from prose(f"! {caution}", width, hang=2, style="yellow")
    for table in report.shown:
        yield from titled(table.title or table.name, table_lines(table, width))
        for line in report.legends.get(table.name, ()):
            yield from prose(line, width, hang=2, style="dim")
    for title, lines in (("What the rows say", report.sentences), ("Notes", study.notes)):
        if lines:
            yield from titled(title, (row for line in lines for row in prose(line, width)))
    for figure in report.figures:
        yield []
        yield from (
            [(text, "") for text, _ in row] for row in figure_rows(figure, width, PLOT_ROWS)
        )
    columns = [name for name in report.commands.columns if name != "command"]
    yield from titled(
        report.commands.title, table_lines(report.commands, width, columns=columns, drop=["why"])
    )
    yield []
    rows = zip(report.commands.column("command"), report.commands.column("why"), strict=True)
    for command, why in dict.fromkeys((text, None if text else reason) for text, reason in rows):
        if command:
            yield [(f"  $ {command}", "dim")]
        else:
            yield from prose(f"cannot be run: {why}", width, hang=2, style="dim")


def run_action(arguments: argparse.Namespace) -> int:
    """Run the action; 0 when every cell has its value, 130 when cancelled, 1 when out of time."""
    if arguments.name == "list" and arguments.target is None:
        return _list(arguments)
    if arguments.name == "show":
        return _show(arguments)
    if arguments.target is not None:
        raise SpecError("study", arguments.target, "one study at a time; or show NAME, or list")
    return _run(arguments)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.target is None:
        raise SpecError("study", "show", "required: the name of a started study")
    directory = find_study(arguments.target)
    _adopt_ended(directory)
    report = study_report(directory)
    kind, out = arguments.format, Path(arguments.output) if arguments.output else None
    if arguments.json:
        print_json(study_as_json(report))
    elif out is not None:
        refuse_existing([out], force=arguments.force)
        say(write(out, study_as(report, kind or out.suffix.removeprefix("."))))
    elif kind:
        print_text(study_as(report, kind).decode())
    else:
        print_lines(study_lines(report, page_width()))
    return 0


def _adopt_ended(directory: StudyDirectory) -> None:
    """Read results of cluster jobs that ended while no command followed them."""
    study = directory.study()
    if not study.elsewhere:
        return
    try:
        adopt_ended(directory, expand(study))
    except DeviceBusyError:
        pass  # another command follows them
    except OSError as error:
        say(f"newer results are not shown: {error}", to_stderr=True)


def _list(arguments: argparse.Namespace) -> int:
    files: list[Row] = []
    for name in study_files():
        with _reporting_damage(name):
            study = load_study(name)
            files.append((study.name, len(expand(study)), ", ".join(study.variants), study.title))
    begun: list[Row] = []
    for directory in list_studies():
        with _reporting_damage(directory.id):
            progress = progress_in(directory, expand(directory.study()))
            begun.append((directory.id, progress.done, progress.total, progress.is_live))
    of_files, of_begun = ("name", "cells", "variants", "title"), ("id", "done", "cells", "live")
    title = "Started here, newest first"
    tables = (
        Table(name="studies", title="Studies", columns=of_files, rows=tuple(files)),
        Table(name="begun", title=title, columns=of_begun, rows=tuple(begun)),
    )
    if arguments.json:
        print_json({table.name: [*table.mappings()] for table in tables})
        return 0
    for table in tables:
        if table.rows:
            print_lines(titled(table.title, table_lines(table, page_width(), drop=("variants",))))
    return 0


@contextmanager
def _reporting_damage(name: str) -> Iterator[None]:
    try:
        yield
    except SysbenchError as error:
        say(f"not listed: {name}: {error}", to_stderr=True)


def _run(arguments: argparse.Namespace) -> int:
    study = with_variant(load_study(arguments.name), arguments.variant)
    study = with_overrides(study, parse_settings(arguments.settings))
    if arguments.repeat is not None:
        if not 1 <= arguments.repeat <= MAX_ROUNDS:
            raise SpecError("--repeat", arguments.repeat, f"an integer from 1 to {MAX_ROUNDS}")
        study = msgspec.structs.replace(study, repeat=arguments.repeat)
    if arguments.slurm is not None:
        study = placed(study, parse_options(arguments.slurm))
    if not arguments.python:
        keep_python(directory_of(study))
    cells = expand(study, only=_only(arguments.only))
    if arguments.dry_run:
        return _forecast(study, cells, as_json=arguments.json)
    directory = open_study(study)
    if not _is_wanted(arguments, directory, cells):
        return CANCELLED
    cancel, reason = Cancellation(), "finished"
    with cancelled_by_signals(cancel), Progress(StudyFold(), json=arguments.json) as progress:
        for event in _events(arguments, directory, cells, cancel):
            progress.show(event)
            if isinstance(event, StudyEnded):
                reason = event.reason
    report = study_report(directory)
    if arguments.json:
        print_json(study_as_json(report))
    else:
        print_lines(study_lines(report, page_width()))
    if reason == "finished" and all(cell.refused for cell in cells):
        return UNFILLED  # the tables are empty
    return {"finished": 0, "cancelled": CANCELLED}.get(reason, UNFILLED)


def _is_wanted(
    arguments: argparse.Namespace, directory: StudyDirectory, cells: Sequence[Cell]
) -> bool:
    """Ask in a terminal before a study that is forecast to take long; else return True."""
    is_limited = arguments.max_minutes is not None or arguments.slurm is not None
    if arguments.yes or is_limited or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    todo = cells_to_run(directory, unique(cells), retry=arguments.retry)
    forecaster = Forecaster(past_entries(directory.root))
    seconds, is_least = total_seconds(map(forecaster.forecast, todo))
    if seconds is None or seconds <= LONG_STUDY_SECONDS:
        return True
    takes = forecast_text(seconds, is_least=is_least)
    question = f"{counted(len(todo), 'cell')}, {takes}. Start? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _events(
    arguments: argparse.Namespace,
    directory: StudyDirectory,
    cells: Sequence[Cell],
    cancel: Cancellation,
) -> Iterator[StudyEvent]:
    minutes = arguments.max_minutes
    if arguments.slurm is None:
        return run_study(
            directory, cells, cancel=cancel, max_minutes=minutes, retry=arguments.retry
        )
    if minutes is not None:
        raise SpecError("--max-minutes", minutes, "not with --slurm; use --slurm time=M instead")
    place = Slurm(directory, parse_options(arguments.slurm))
    return run_on(place, directory, cells, cancel=cancel, retry=arguments.retry)


def _only(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse ``["model=large,xl"]`` to labels by axis."""
    only: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals:
            raise SpecError("--only", text, "expected AXIS=VALUE, values separated by commas")
        only.setdefault(axis.strip(), []).extend(part.strip() for part in values.split(","))
    return only


def _forecast(study: Study, cells: Sequence[Cell], *, as_json: bool) -> int:
    forecaster = Forecaster(past_entries())
    forecasts = [(cell, forecaster.forecast(cell)) for cell in cells]
    first_round = sum(not cell.repeat for cell in cells)  # these cells come first
    table = Table(
        name="cells",
        title=f"{study.name}: {counted(first_round, 'cell')}",
        columns=("cell", "peak_bytes", "fits", "predicted_s", "why"),
        rows=tuple(
            (
                *(cell.words, forecast.peak_bytes, forecast.fits),
                *(forecast.seconds and round(forecast.seconds, 1), _NOT_RUN[cell.is_predicted]),
            )
            if cell.spec
            else (cell.words, None, None, None, cell.refused)
            for cell, forecast in forecasts
        ),
    )
    if as_json:
        print_json([*table.mappings()])
        return 0
    total, is_least = total_seconds(forecast for cell, forecast in forecasts if cell.spec)
    takes = forecast_text(total, is_least=is_least)
    once = msgspec.structs.replace(table, rows=table.rows[:first_round])
    print_lines(_forecast_lines(study, cells, once, takes, page_width()))
    return 0


def _forecast_lines(
    study: Study, cells: Sequence[Cell], table: Table, takes: str, width: int
) -> Iterator[Line]:
    yield from titled(table.title, table_lines(table, width))
    yield blank()
    peaks = zip(table.column("peak_bytes"), table.column("fits"), strict=True)
    sizes = [peak for peak, fits in peaks if fits is False and is_number(peak)]
    first = f", the first takes {format_bytes(int(sizes[0]))}" if sizes else ""
    count = len(table.rows)
    rounds = f"{study.repeat} rounds of {counted(count, 'cell')}: " if study.repeat > 1 else ""
    measured = sum(not cell.is_predicted for cell in cells[:count])
    facts = [f"{len(sizes)} of {measured} are predicted not to fit{first}"] if measured else []
    yield from prose("; ".join([f"{rounds}{takes}", *facts]), width)
    compares = any(column.ratio for layout in study.tables for column in layout.columns)
    if (compares or ways_in(study)) and study.repeat < least_pairs():
        rounds = counted(study.repeat, "round")
        text = f"{rounds} per cell, too few to test a comparison: "
        yield from prose(f"{text}use at least --repeat {least_pairs()}", width)
    for caution in cautions_of(study, cells, {}):
        yield from prose(f"! {caution}", width, hang=2, style="yellow")
    if measured and study.variants and not study.variant and resolve_device("auto") == "cpu":
        names = ", ".join(study.variants)
        yield from prose(f"no CUDA device found: use --variant {names}", width)
