"""`study`: fill the cells of a grid, show its tables, list the studies."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sysbench.core.errors import DeviceBusyError, SpecError, SysbenchError
from sysbench.core.formatting import counted
from sysbench.core.tables.table import Row, Table
from sysbench.tui.commands.arguments import add_settings, complete_with, examples
from sysbench.tui.commands.output import page_width, print_json, print_lines, say
from sysbench.tui.commands.output import write_text as print_text
from sysbench.tui.commands.spec_arguments import parse_settings

if TYPE_CHECKING:
    from sysbench.core.runs.job_directory import Cancellation
    from sysbench.core.studies.study_directory import StudyDirectory
    from sysbench.core.studies.study_file import Study
    from sysbench.core.studies.study_grid import Cell
    from sysbench.core.studies.study_runner import StudyEvent

FORMATS = ("md", "csv", "json", "html")
CANCELLED, UNFILLED = 130, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments; in place of a study's name, ``show`` and ``list`` are actions."""
    parser.description = (
        "Run every cell of a study that has no value yet, each in fresh processes, and print\n"
        "its tables. Finished cells are kept; out of memory counts as a value.\n"
        "docs/studies.md describes the format."
    )
    parser.epilog = examples(
        ("sysbench-tui study list", "the known experiments"),
        ("sysbench-tui study precision --variant small", "on a CPU"),
        ("sysbench-tui study e2e --only model=large --dry-run", "forecast only"),
        ("sysbench-tui study show e2e --format html -o e2e.html", ""),
        ("sysbench-tui study e2e --slurm partition=gpu,gres=gpu:1,time=30", "one job per cell"),
    )
    name = parser.add_argument(
        "name",
        metavar="NAME|FILE",
        help="name of a study, or a TOML file; or the actions show NAME, list",
    )
    target = parser.add_argument("target", nargs="?", metavar="NAME", help="the study to show")
    complete_with(name, "study")
    complete_with(target, "study")
    parser.add_argument("--variant", default="", help="variant of the study, such as small")
    meaning = "replace an axis (values separated by commas) or a fixed key; repeatable"
    add_settings(parser, "--set", meaning)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="AXIS=VALUE",
        help="run only these values of an axis (separated by commas); repeatable",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="rounds of the whole grid; comparisons need 6 or more",
    )
    parser.add_argument(
        "--max-minutes", type=float, metavar="M", help="start no cell after M minutes"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        nargs="?",
        const="",
        metavar="KEY=VALUE,…",
        help="run each cell as a job of a Slurm array, with these options of sbatch; repeatable",
    )
    parser.add_argument("--retry", action="store_true", help="run failed cells once more")
    parser.add_argument(
        "--dry-run", action="store_true", help="show the cells and a forecast, run nothing"
    )
    parser.add_argument("--format", choices=FORMATS, default="", help="output format of show")
    parser.add_argument("-o", "--output", metavar="PATH", help="file for the output of show")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def main(arguments: argparse.Namespace) -> int:
    """Run the action; 0 when every cell has its value, 130 when cancelled, 1 when out of time."""
    if arguments.name == "list" and arguments.target is None:
        return _list(arguments)
    if arguments.name == "show":
        return _show(arguments)
    if arguments.target is not None:
        raise SpecError("study", arguments.target, "one study at a time; or: show NAME, list")
    return _run(arguments)


def _show(arguments: argparse.Namespace) -> int:
    """Print the report of the newest study of that name, or write it to a file."""
    from sysbench.core.export.written_files import refuse_existing, write
    from sysbench.core.studies.study_directory import find_study
    from sysbench.core.studies.study_exports import study_as, study_as_json
    from sysbench.core.studies.study_report import study_report
    from sysbench.tui.commands.study_report_lines import study_lines

    if arguments.target is None:
        raise SpecError("study", "show", "the name of a study that was begun")
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
    """Let the report have what jobs of a cluster left while no command followed them."""
    from sysbench.core.studies.cluster_runner import adopt_ended
    from sysbench.core.studies.study_grid import expand

    study = directory.study()
    if not study.elsewhere:
        return
    try:
        adopt_ended(directory, expand(study))
    except DeviceBusyError:
        pass  # a command follows them
    except OSError as error:
        say(f"what ended since is not shown: {error}", to_stderr=True)


def _list(arguments: argparse.Namespace) -> int:
    """Print the studies that have a file, and those that were begun here."""
    from sysbench.core.studies.forecast import progress_in
    from sysbench.core.studies.schema import load_study, study_files
    from sysbench.core.studies.study_directory import list_studies
    from sysbench.core.studies.study_grid import expand
    from sysbench.tui.commands.layout import table_lines, titled

    def file_row(name: str) -> Row:
        study = load_study(name)
        return study.name, len(expand(study)), ", ".join(study.variants), study.title

    def begun_row(directory: StudyDirectory) -> Row:
        progress = progress_in(directory, expand(directory.study()))
        return directory.id, progress.done, progress.total, progress.is_live

    def rows(made: Mapping[str, Callable[[], Row]]) -> Iterator[Row]:
        for name, make in made.items():
            try:
                yield make()
            except SysbenchError as error:
                say(f"not listed: {name}: {error}", to_stderr=True)

    files = {name: partial(file_row, name) for name in study_files()}
    begun = {directory.id: partial(begun_row, directory) for directory in list_studies()}
    studies = Table(
        name="studies",
        title="Studies",
        columns=("name", "cells", "variants", "title"),
        rows=tuple(rows(files)),
    )
    directories = Table(
        name="begun",
        title="Begun here, the newest first",
        columns=("id", "done", "cells", "live"),
        rows=tuple(rows(begun)),
    )
    if arguments.json:
        print_json({table.name: [*table.mappings()] for table in (studies, directories)})
        return 0
    for table in (studies, directories):
        if table.rows:
            print_lines(titled(table.title, table_lines(table, page_width(), drop=("variants",))))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """Fill the cells, or with ``--dry-run`` forecast them."""
    from sysbench.core.runs.job_directory import Cancellation
    from sysbench.core.studies.schema import load_study
    from sysbench.core.studies.slurm import parse_options, placed
    from sysbench.core.studies.study_directory import directory_of, open_study
    from sysbench.core.studies.study_exports import study_as_json
    from sysbench.core.studies.study_grid import expand, with_overrides, with_variant
    from sysbench.core.studies.study_report import study_report
    from sysbench.core.studies.study_runner import StudyEnded, keep_python
    from sysbench.tui.commands.output import cancelled_by_signals
    from sysbench.tui.commands.progress import Progress, StudyFold
    from sysbench.tui.commands.study_report_lines import study_lines

    study = with_variant(load_study(arguments.name), arguments.variant)
    study = with_overrides(study, parse_settings(arguments.settings))
    if arguments.repeat is not None:
        if not 1 <= arguments.repeat <= 100:
            raise SpecError("--repeat", arguments.repeat, "a whole number from 1 to 100")
        study = msgspec.structs.replace(study, repeat=arguments.repeat)
    if arguments.slurm is not None:
        study = placed(study, parse_options(arguments.slurm))
    if not arguments.python:
        keep_python(directory_of(study))
    cells = expand(study, only=_only(arguments.only))
    if arguments.dry_run:
        return _forecast(study, cells, as_json=arguments.json)
    directory = open_study(study)
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
        return UNFILLED  # there is nothing in the tables
    return {"finished": 0, "cancelled": CANCELLED}.get(reason, UNFILLED)


def _events(
    arguments: argparse.Namespace,
    directory: StudyDirectory,
    cells: Sequence[Cell],
    cancel: Cancellation,
) -> Iterator[StudyEvent]:
    """What happens while the cells are filled, here or on a cluster."""
    from sysbench.core.studies.cluster_runner import run_on
    from sysbench.core.studies.slurm import Slurm, parse_options
    from sysbench.core.studies.study_runner import run_study

    minutes = arguments.max_minutes
    if arguments.slurm is None:
        return run_study(
            directory, cells, cancel=cancel, max_minutes=minutes, retry=arguments.retry
        )
    if minutes is not None:
        raise SpecError("--max-minutes", minutes, "without --slurm, where time=M limits each job")
    place = Slurm(directory, parse_options(arguments.slurm))
    return run_on(place, directory, cells, cancel=cancel, retry=arguments.retry)


def _only(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse ``["model=large,xl"]`` to labels by axis."""
    only: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals:
            raise SpecError("--only", text, "AXIS=VALUE, several values with commas")
        only.setdefault(axis.strip(), []).extend(part.strip() for part in values.split(","))
    return only


def _forecast(study: Study, cells: Sequence[Cell], *, as_json: bool) -> int:
    """Print each cell with its predicted memory and forecast time."""
    from sysbench.core.studies.forecast import Forecaster, past_entries, total_seconds
    from sysbench.tui.commands.study_report_lines import forecast_lines
    from sysbench.tui.text import forecast_text

    forecaster = Forecaster(past_entries())
    forecasts = [(cell, forecaster.forecast(cell)) for cell in cells]
    table = Table(
        name="cells",
        title=f"{study.name}: {counted(sum(not cell.repeat for cell in cells), 'cell')}",
        columns=("cell", "peak_bytes", "fits", "predicted_s", "why"),
        rows=tuple(
            (
                *(cell.words, of_cell.peak_bytes, of_cell.fits if cell.spec else None),
                None if cell.spec is None or of_cell.seconds is None else round(of_cell.seconds, 1),
                cell.refused or None,
            )
            for cell, of_cell in forecasts
        ),
    )
    if as_json:
        print_json([*table.mappings()])
        return 0
    seconds, is_least = total_seconds(of_cell for cell, of_cell in forecasts if cell.spec)
    takes = forecast_text(seconds, is_least=is_least)
    print_lines(forecast_lines(study, cells, table, takes, page_width()))
    return 0
