"""A study as a file: Markdown, CSV, JSON or one HTML page."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...export.text_formats import escaped, table_as_csv, table_as_markdown, tables_as_tidy_csv
from ...tables.table import Table
from .page import study_page
from .report import Report

STUDY_FORMATS = ("md", "csv", "json", "html")


def study_as(report: Report, kind: str) -> bytes:
    """The report in one of `STUDY_FORMATS`.

    ``csv`` is the table as it stands, or one tidy file where the study has several.
    """
    match kind:
        case "md":
            return ("\n".join(_markdown(report)) + "\n").encode()
        case "csv":
            has_one_table = len(report.tables) == 1
            return (
                table_as_csv(report.tables[0])
                if has_one_table
                else tables_as_tidy_csv(report.tables)
            )
        case "html":
            return study_page(report).encode()
        case _:
            return msgspec.json.format(msgspec.json.encode(study_as_json(report)), indent=2)


def study_as_json(report: Report) -> dict[str, object]:
    """The public contract: ``study``, the first table's ``columns`` and ``rows``, ``cells``; and
    all tables, the sentences, the cautions and the environment."""
    first = next(iter(report.tables), None)
    return {
        "study": report.study.name,
        "variant": report.study.variant,
        "title": report.study.title,
        "columns": first.columns if first else [],
        "rows": first.rows if first else [],
        "cells": [
            {
                "point": cell.point,
                "repeat": cell.repeat,
                "identity": cell.identity,
                "status": report.progress.statuses[cell.id],
                "run": entry.run or None if (entry := report.entries.get(cell.id)) else None,
                "detail": cell.refused or (entry.detail if entry else ""),
            }
            for cell in report.cells
        ],
        "tables": [_table_as_json(table) for table in report.tables],
        "sentences": report.sentences,
        "cautions": report.cautions,
        "notes": report.study.notes,
        "environment": _table_as_json(report.environment),
        "commands": _table_as_json(report.commands),
    }


def _table_as_json(table: Table) -> dict[str, object]:
    return {"name": table.name, "columns": table.columns, "rows": table.rows}


def _markdown(report: Report) -> Iterator[str]:
    study, progress = report.study, report.progress
    yield f"# {escaped(study.name)}: {escaped(study.title)}"
    yield ""
    if study.source:
        yield f"- repeats {escaped(study.source)}"
    if study.variant:
        yield f"- variant {escaped(study.variant)}"
    yield f"- {progress.done} of {progress.total} cells have their value"
    for caution in report.cautions:
        yield from ("", f"**{escaped(caution)}**")
    for table in report.tables:
        yield from ("", f"## {escaped(table.title or table.name)}", "", table_as_markdown(table))
    for title, lines in (("What the rows say", report.sentences), ("Notes", study.notes)):
        if lines:
            yield from ("", f"## {title}", "")
            yield from (f"- {escaped(line)}" for line in lines)
    for table in (report.environment, report.commands):
        if table.rows:
            yield from ("", f"## {escaped(table.title)}", "", table_as_markdown(table))
