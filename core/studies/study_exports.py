"""Exports of a study report: Markdown, CSV, JSON, and one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sysbench.core.export.page_document import (
    document,
    line_chart,
    memory_chart,
    section,
    table,
    tag,
    text,
)
from sysbench.core.export.text_formats import (
    escaped,
    table_as_markdown,
    tables_as_csv,
)
from sysbench.core.studies.study_report import StudyReport
from sysbench.core.tables.cells import literal_json
from sysbench.core.tables.table import Table


def study_page(report: StudyReport) -> str:
    study = report.study
    name = " · ".join(part for part in (study.name, study.variant) if part)
    head = tag("h1", text(f"{name}: {study.title}")) + "".join(
        tag("p", text(line), class_="quiet") for line in _facts(report)
    )
    return document(f"{name}: {study.title}", head, dict(_sections(report)))


def _facts(report: StudyReport) -> Iterator[str]:
    study, progress = report.study, report.progress
    if study.source:
        yield f"repeats {study.source}"
    empty = progress.total - progress.done
    empty_words = f", {empty} {'is' if empty == 1 else 'are'} empty" if empty else ""
    yield f"{progress.done} of {progress.total} cells have their value{empty_words}"
    fixed = ", ".join(f"{key} {value}" for key, value in study.fixed.items())
    yield f"passes {', '.join(study.passes)}" + (f" · fixed: {fixed}" if fixed else "")


def _sections(report: StudyReport) -> Iterator[tuple[str, str]]:
    if report.cautions:
        anchor, look = "before-you-compare", "finding warning"
        yield anchor, _paragraphs("Before you compare", report.cautions, anchor, look)
    for content in report.shown:
        legend = report.legends.get(content.name, ())
        lines = (tag("p", text(line), class_="quiet") for line in legend)
        title = content.title or content.name
        yield content.name, section(title, table(content), *lines, anchor=content.name)
    if report.sentences:
        yield "what-it-says", _paragraphs("What the rows say", report.sentences, "what-it-says")
    if report.figures:
        charts = map(line_chart, report.figures)
        yield "figures", section("Figures", *charts, anchor="figures")
    if report.timelines:
        pairs = report.timelines.items()
        drawn = (tag("h3", text(words)) + memory_chart(timeline) for words, timeline in pairs)
        yield "timelines", section("Memory over time, by cell", *drawn, anchor="timelines")
    if report.study.notes:
        yield "notes", _paragraphs("Notes", report.study.notes, "notes")
    for extra in (report.environment, report.commands):
        if extra.rows:
            yield extra.name, section(extra.title, table(extra), anchor=extra.name)


def _paragraphs(title: str, lines: Sequence[str], anchor: str, look: str = "") -> str:
    inside = (tag("p", text(line), **({"class_": look} if look else {})) for line in lines)
    return section(title, *inside, anchor=anchor)


STUDY_FORMATS = ("md", "csv", "json", "html")


def study_as(report: StudyReport, kind: str) -> bytes:
    """Write the report in one of `STUDY_FORMATS`.

    ``csv`` is the table, or one tidy file if the study has several.
    """
    match kind:
        case "md":
            return ("\n".join(_markdown(report)) + "\n").encode()
        case "csv":
            return tables_as_csv(report.tables)
        case "html":
            return study_page(report).encode()
        case _:
            return literal_json(msgspec.json.encode(study_as_json(report)))


def study_as_json(report: StudyReport) -> dict[str, object]:
    """Encode the public JSON: ``study``, ``columns`` and ``rows`` of the first table, ``cells``,
    all tables, rounds, least times, sentences, cautions and environment."""
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
        "rounds": report.study.repeat,
        "best": [
            {
                "value": report.values[best.value].name,
                "axis": best.axis,
                "place": best.place,
                "point": best.label,
                "next": best.next_label,
                "next_over_best": best.ratio.value,
                "low": best.ratio.low,
                "high": best.ratio.high,
                "comparisons": best.others,
            }
            for best in report.best
        ],
        "sentences": report.sentences,
        "cautions": report.cautions,
        "notes": report.study.notes,
        "environment": _table_as_json(report.environment),
        "commands": _table_as_json(report.commands),
    }


def _table_as_json(table: Table) -> dict[str, object]:
    return {"name": table.name, "columns": table.columns, "rows": table.rows}


def _markdown(report: StudyReport) -> Iterator[str]:
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
    for shown in report.shown:
        yield from ("", f"## {escaped(shown.title or shown.name)}", "", table_as_markdown(shown))
        for line in report.legends.get(shown.name, ()):
            yield from ("", escaped(line))
    for title, lines in (("What the rows say", report.sentences), ("Notes", study.notes)):
        if lines:
            yield from ("", f"## {title}", "")
            yield from (f"- {escaped(line)}" for line in lines)
    for extra in (report.environment, report.commands):
        if extra.rows:
            yield from ("", f"## {escaped(extra.title)}", "", table_as_markdown(extra))
