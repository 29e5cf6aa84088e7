"""`study show`: the report of a study that was begun, here or as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...core.export.files import refuse_existing, write
from ...core.studies.report.files import study_as, study_as_json
from ...core.studies.report.report import Report, report_of
from ...core.studies.run.state import find_study
from ..widgets.line_drawing import figure_rows
from .layout import Line, prose, table_lines, titled
from .output import page_width, print_json, print_lines
from .output import write as print_text

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
    *columns, _ = report.commands.columns
    yield from titled(
        report.commands.title, table_lines(report.commands, width, columns=columns, drop=["why"])
    )
    yield []
    for command in report.commands.column("command"):
        yield [(f"  $ {command}" if command else "  (cannot be run)", "dim")]
