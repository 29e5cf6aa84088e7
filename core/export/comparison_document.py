"""A comparison as a document: Markdown, or one HTML page without requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from sysbench.core.compare.comparison import Comparison
from sysbench.core.compare.rounds import inside
from sysbench.core.export.page_charts import interval_chart, memory_chart, steps_chart
from sysbench.core.export.page_document import (
    document,
    section,
    table,
    tag,
    text,
    with_code_tags,
)
from sysbench.core.export.page_run_page import run_figures
from sysbench.core.export.text_formats import (
    VERDICT_MARKS,
    escaped,
    table_as_markdown,
    with_code,
)
from sysbench.core.record.record import Record
from sysbench.core.tables.cells import known_columns
from sysbench.core.tables.comparison_passages import Passage, verdict_text
from sysbench.core.tables.context import headline
from sysbench.core.tables.table import select

VERDICT_CLASSES = {"faster": "good", "slower": "bad"}
"""Classes of the page for verdicts; only a difference has a colour."""


def comparison_as_markdown(comparison: Comparison, passages: Iterable[Passage]) -> str:
    """Write the verdict, the two sides, then the passages."""
    return "\n".join(_markdown(comparison, passages)) + "\n"


def _markdown(comparison: Comparison, passages: Iterable[Passage]) -> Iterator[str]:
    found = verdict_text(comparison)
    mark = "" if comparison.of_files else f"{VERDICT_MARKS[comparison.verdict]} Step time: "
    yield f"### {mark}{escaped(found.headline)}"
    yield ""
    yield from (f"- {with_code(reason)}" for reason in found.reasons)
    yield f"- A: {escaped(comparison.a)}"
    yield f"- B: {escaped(comparison.b)}"
    for passage in passages:
        yield ""
        yield f"## {escaped(passage.title)}"
        for sentence in (*passage.sentences, *passage.notes):
            yield ""
            yield with_code(sentence)
        if passage.table is not None:
            yield ""
            yield table_as_markdown(passage.table)


def comparison_page(
    comparison: Comparison, a: Record, b: Record, passages: Iterable[Passage]
) -> str:
    """Make a self-contained page: the verdict, the sides, charts, then the passages."""
    found = verdict_text(comparison)
    look = "" if comparison.of_files else VERDICT_CLASSES.get(comparison.verdict, "")
    chart = "" if comparison.of_files else interval_chart(comparison.step)
    head = "".join(
        (
            tag("h1", text(f"{found.glyph} {found.headline}"), class_=f"verdict {look}".strip()),
            *(tag("p", with_code_tags(reason), class_="quiet") for reason in found.reasons),
            chart,
            tag("div", _side("A", a), _side("B", b), class_="sides"),
        )
    )
    title = f"{found.headline} · sysbench-tui"
    sections = {**_passages(passages), **dict(_charts(a, b))}
    return document(title, head, sections, f"A {comparison.a}, B {comparison.b}: {found.headline}")


def _side(letter: str, record: Record) -> str:
    first, *further = headline(record) if record.spec else [record.id]
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.created_ns / 1e9))
    figures = " · ".join(run_figures(record))
    lines = [*further[:2], *([record.id, f"started {stamp}"] if record.spec else [])]
    return tag(
        "div",
        tag("p", tag("b", letter), " ", tag("b", text(first))),
        tag("p", text(figures)) if figures else "",
        *(tag("p", text(line), class_="quiet") for line in lines),
    )


def _passages(passages: Iterable[Passage]) -> dict[str, str]:
    sections: dict[str, str] = {}
    for passage in passages:
        inside = [
            *(tag("p", with_code_tags(sentence)) for sentence in passage.sentences),
            *(tag("p", text(note), class_="quiet") for note in passage.notes),
        ]
        if passage.table is not None:
            shown = select(passage.table, known_columns(passage.table))
            inside.append(table(shown, passage.perturbed))
        sections[passage.name] = section(passage.title, *inside, anchor=passage.name)
    return sections


def _charts(a: Record, b: Record) -> Iterator[tuple[str, str]]:
    if a.timing and b.timing:
        charts = [
            _labelled(letter, steps_chart(timing.samples_ms, inside(timing).median_ms))
            for letter, timing in (("A", a.timing), ("B", b.timing))
        ]
        if any(charts):
            title = "Steps of each side, and their median"
            yield "step-times", section(title, *charts, anchor="step-times")
    if a.memory and b.memory:
        charts = [
            _labelled(letter, memory_chart(memory.timeline))
            for letter, memory in (("A", a.memory), ("B", b.memory))
        ]
        if any(charts):
            yield "timeline", section("Live bytes of each side", *charts, anchor="timeline")


def _labelled(letter: str, chart: str) -> str:
    return tag("p", tag("b", letter)) + chart if chart else ""
