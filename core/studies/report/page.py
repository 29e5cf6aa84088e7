"""A study as one HTML page: tables, sentences, figures, and the command of each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...export.page.charts import memory_chart
from ...export.page.document import document, section, table, tag, text
from ...export.page.line_chart import line_chart
from .report import Report


def study_page(report: Report) -> str:
    """The page: self-contained, no network requests."""
    study = report.study
    name = " · ".join(part for part in (study.name, study.variant) if part)
    head = tag("h1", text(f"{name}: {study.title}")) + "".join(
        tag("p", text(line), class_="quiet") for line in _facts(report)
    )
    return document(f"{name}: {study.title}", head, dict(_sections(report)))


def _facts(report: Report) -> Iterator[str]:
    study, progress = report.study, report.progress
    if study.source:
        yield f"repeats {study.source}"
    empty = progress.total - progress.done
    empty_words = f", {empty} {'is' if empty == 1 else 'are'} empty" if empty else ""
    yield f"{progress.done} of {progress.total} cells have their value{empty_words}"
    fixed = ", ".join(f"{key} {value}" for key, value in study.fixed.items())
    yield f"passes {', '.join(study.passes)}" + (f" · fixed: {fixed}" if fixed else "")


def _sections(report: Report) -> Iterator[tuple[str, str]]:
    if report.cautions:
        yield (
            "before-you-compare",
            _paragraphs(
                "Before you compare", report.cautions, "before-you-compare", "finding warning"
            ),
        )
    for content in report.tables:
        yield (
            content.name,
            section(content.title or content.name, table(content), anchor=content.name),
        )
    if report.sentences:
        yield "what-it-says", _paragraphs("What the rows say", report.sentences, "what-it-says")
    if report.figures:
        charts = map(line_chart, report.figures)
        yield "figures", section("Figures", *charts, anchor="figures")
    if report.timelines:
        drawn = (
            tag("h3", text(words)) + memory_chart(timeline)
            for words, timeline in report.timelines.items()
        )
        yield "timelines", section("Memory over time, by cell", *drawn, anchor="timelines")
    if report.study.notes:
        yield "notes", _paragraphs("Notes", report.study.notes, "notes")
    if report.environment.rows:
        block = table(report.environment)
        yield "environment", section(report.environment.title, block, anchor="environment")
    block = table(report.commands)
    yield "commands", section(report.commands.title, block, anchor="commands")


def _paragraphs(title: str, lines: Sequence[str], anchor: str, look: str = "") -> str:
    inside = (tag("p", text(line), **({"class_": look} if look else {})) for line in lines)
    return section(title, *inside, anchor=anchor)
