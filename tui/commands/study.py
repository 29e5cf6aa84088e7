"""`study`: fill the cells of a grid, show what they give, list what there is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ...core.errors import SpecError
from ...core.export.files import refuse_existing, write
from ...core.formatting import format_bytes
from ...core.machine.devices import resolve_device
from ...core.runs.supervisor import Cancellation
from ...core.studies.file.schema import load_study, study_files
from ...core.studies.file.study import Study
from ...core.studies.report.files import study_as, study_as_json
from ...core.studies.report.report import Report, report_of
from ...core.studies.report.text import cautions_of
from ...core.studies.run.forecast import Forecaster, past_entries, progress_in
from ...core.studies.run.grid import Cell, expand, with_overrides, with_variant
from ...core.studies.run.runner import StudyEnded, run_study
from ...core.studies.run.state import find_study, list_studies, open_study
from ...core.tables.table import Table, is_number
from ..widgets.charts.line_drawing import figure_rows
from .report.layout import Line, blank, prose, table_lines, titled
from .report.output import page_width, print_json, print_lines
from .report.output import write as print_text
from .report.signals import cancelled_by_signals
from .report.study_progress import StudyProgress, forecast
from .spec_arguments import parse_settings

PLOT_ROWS = 14


def show_study(
    name: str,
    kind: str = "",
    out: Path | None = None,
    *,
    as_json: bool = False,
    force: bool = False,
) -> int:
    """Print the report of the newest study of that name, or write it to a file.

    Args:
        name: Of the study, or a whole or partial id of its directory.
        kind: One of `STUDY_FORMATS`; empty is for people to read here.
        out: The file; None is stdout.

    Raises:
        NotFoundError: No such study was begun.
        DamagedFileError: Its ``study.json`` cannot be read.
        SpecError: ``out`` exists already and ``force`` is false.
    """
    report = report_of(find_study(name))
    if as_json:
        print_json(study_as_json(report))
    elif out is not None:
        refuse_existing([out], force=force)
        print(write(out, study_as(report, kind or out.suffix.removeprefix("."))))
    elif kind:
        print_text(study_as(report, kind).decode())
    else:
        print_lines(study_lines(report, page_width()))
    return 0


def study_lines(report: Report, width: int) -> Iterator[Line]:
    """Everything but the environment, which the other formats have."""
    study, progress = report.study, report.progress
    name = " · ".join(part for part in (study.name, study.variant) if part)
    yield [(f"{name}: {study.title}", "bold")]
    yield [(f"{progress.done} of {progress.total} cells have their value", "dim")]
    for caution in report.cautions:
        yield from prose(f"! {caution}", width, hang=2, style="yellow")
    for table in report.tables:
        yield from titled(table.title or table.name, table_lines(table, width))
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
    for command in report.commands.column("command"):
        yield [(f"  $ {command}" if command else "  (cannot be run)", "dim")]


CANCELLED, UNFILLED = 130, 1


def main(arguments: argparse.Namespace) -> int:
    """0 when every cell has its value, 130 cancelled, 1 out of time."""
    if arguments.name == "list" and arguments.target is None:
        return _list(arguments)
    if arguments.name == "show":
        return _show(arguments)
    if arguments.target is not None:
        raise SpecError("study", arguments.target, "one study at a time; or: show NAME, list")
    return _run(arguments)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.target is None:
        raise SpecError("study", "show", "the name of a study that was begun")
    out = Path(arguments.output) if arguments.output else None
    return show_study(
        arguments.target, arguments.format, out, as_json=arguments.json, force=arguments.force
    )


def _list(arguments: argparse.Namespace) -> int:
    """The studies that are known by name, and those that were begun here."""
    known = [load_study(name) for name in study_files()]
    begun = [(one.id, progress_in(one, expand(one.study()))) for one in list_studies()]
    studies = Table(
        name="studies",
        title="Studies",
        columns=("name", "cells", "variants", "title"),
        rows=tuple(
            (one.name, len(expand(one)), ", ".join(one.variants), one.title) for one in known
        ),
    )
    directories = Table(
        name="begun",
        title="Begun here, the newest first",
        columns=("id", "done", "cells", "live"),
        rows=tuple((id, one.done, one.total, one.is_live) for id, one in begun),
    )
    if arguments.json:
        print_json({one.name: [*one.mappings()] for one in (studies, directories)})
        return 0
    for one in (studies, directories):
        if one.rows:
            print_lines(titled(one.title, table_lines(one, page_width(), drop=("variants",))))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    study = with_variant(load_study(arguments.name), arguments.variant)
    study = with_overrides(study, parse_settings(arguments.settings))
    if arguments.repeat is not None:
        if not 1 <= arguments.repeat <= 100:
            raise SpecError("--repeat", arguments.repeat, "a whole number from 1 to 100")
        study = msgspec.structs.replace(study, repeat=arguments.repeat)
    cells = expand(study, only=_only(arguments.only))
    if arguments.dry_run:
        return _forecast(study, cells, as_json=arguments.json)
    directory = open_study(study)
    cancel, reason = Cancellation(), "finished"
    with cancelled_by_signals(cancel), StudyProgress(quiet=arguments.json) as progress:
        events = run_study(
            directory,
            cells,
            cancel=cancel,
            max_minutes=arguments.max_minutes,
            retry=arguments.retry,
        )
        for event in events:
            progress.show(event)
            if isinstance(event, StudyEnded):
                reason = event.reason
    report = report_of(directory)
    if arguments.json:
        print_json(study_as_json(report))
    else:
        print_lines(study_lines(report, page_width()))
    return {"finished": 0, "cancelled": CANCELLED}.get(reason, UNFILLED)


def _only(texts: Sequence[str]) -> dict[str, list[str]]:
    """``["model=large,xl"]`` to axis and labels."""
    only: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not equals:
            raise SpecError("--only", text, "AXIS=VALUE, several values with commas")
        only.setdefault(axis.strip(), []).extend(part.strip() for part in values.split(","))
    return only


def _forecast(study: Study, cells: Sequence[Cell], *, as_json: bool) -> int:
    """What would run: each cell with its predicted memory and time."""
    forecaster = Forecaster(past_entries())
    known = [(cell, forecaster.forecast(cell)) for cell in cells]
    table = Table(
        name="cells",
        title=f"{study.name}: {len(cells)} cells",
        columns=("cell", "peak_bytes", "fits", "predicted_s", "why"),
        rows=tuple(
            (
                *(cell.words, one.peak_bytes, one.fits if cell.spec else None),
                *(round(one.seconds, 1) if cell.spec else None, cell.refused or None),
            )
            for cell, one in known
        ),
    )
    if as_json:
        print_json([*table.mappings()])
        return 0
    run = [one for cell, one in known if cell.spec]
    is_least = not all(one.is_timed for one in run)
    takes = forecast(sum(one.seconds for one in run), is_least=is_least)
    print_lines(_forecast_lines(study, cells, table, takes))
    return 0


def _forecast_lines(
    study: Study, cells: Sequence[Cell], table: Table, takes: str
) -> Iterator[Line]:
    width = page_width()
    yield from titled(table.title, table_lines(table, width))
    yield blank()
    peaks = zip(table.column("peak_bytes"), table.column("fits"), strict=True)
    sizes = [peak for peak, fits in peaks if fits is False and is_number(peak)]
    first = f", the first takes {format_bytes(int(sizes[0]))}" if sizes else ""
    told = f"{len(sizes)} of {len(cells)} are predicted not to fit{first}"
    yield from prose(f"{takes}; {told}", width)
    for caution in cautions_of(study, cells, {}):
        yield from prose(f"! {caution}", width, hang=2, style="yellow")
    if study.variants and not study.variant and resolve_device("auto") == "cpu":
        names = ", ".join(study.variants)
        yield from prose(f"no CUDA device is here: --variant {names} is made for that", width)
