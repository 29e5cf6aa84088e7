"""Tables as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from sysbench.core.compare.comparison import BreakEven
from sysbench.core.compare.verdict import Verdict, describe_verdict
from sysbench.core.record.record import Finding, Record
from sysbench.core.tables.cells import cells_as_text, heading_of, is_numeric, literal
from sysbench.core.tables.context import headline
from sysbench.core.tables.kernel_tables import top_kernels
from sysbench.core.tables.overview import overview_text
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import Table
from sysbench.core.tables.trust import trust_lines


def table_as_csv(table: Table) -> bytes:
    """Write one table with a header. Null is an empty field, numbers are not rounded, control
    characters are escaped, and texts that a spreadsheet would evaluate start with an apostrophe."""
    return _encode([table.columns, *table.rows])


def tables_as_csv(tables: Sequence[Table]) -> bytes:
    """Write a single table as it is, several as one tidy table."""
    return table_as_csv(tables[0]) if len(tables) == 1 else tables_as_tidy_csv(tables)


def tables_as_tidy_csv(tables: Iterable[Table]) -> bytes:
    """Write all tables as one, a line per cell: ``table``, ``row``, ``column``, ``value``."""
    lines = [
        (table.name, index, column, value)
        for table in tables
        for index, row in enumerate(table.rows)
        for column, value in zip(table.columns, row, strict=True)
    ]
    return _encode([("table", "row", "column", "value"), *lines])


def _encode(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _harmless(cell: object) -> object:
    """Escape what a terminal obeys, and texts that a spreadsheet would evaluate, as OWASP advises
    against CSV injection."""
    if not isinstance(cell, str):
        return cell
    shown = literal(cell)
    return f"'{shown}" if shown.startswith(FORMULA_STARTS) else shown


FORMULA_STARTS = ("=", "+", "-", "@")


_KERNEL_ROWS = 50
OVERVIEW_WIDTH = 100


def record_as_markdown(
    record: Record, others: Sequence[Record] = (), worth: BreakEven | None = None
) -> str:
    """Write a complete report of a run; for ``others`` and ``worth`` see `SectionSource`."""
    return "\n".join(_lines(record, others, worth)) + "\n"


def table_as_markdown(table: Table) -> str:
    """Write one table in pipe syntax, escaped."""
    rules = ["---:" if is_numeric(table, column) else "---" for column in table.columns]
    rows = [[escaped(heading_of(table, column)) for column in table.columns], rules]
    rows += [[escaped(text) for text in row] for row in cells_as_text(table)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def tables_as_markdown(tables: Iterable[Table]) -> str:
    return "\n".join(f"## {table.title}\n\n{table_as_markdown(table)}\n" for table in tables)


def _lines(record: Record, others: Sequence[Record], worth: BreakEven | None) -> Iterator[str]:
    first, *further = headline(record)
    yield f"# {escaped(first)}"
    yield ""
    yield from overview_as_markdown(record)
    yield ""
    yield from (f"- {escaped(line)}" for line in further)
    yield from findings_as_markdown(record.findings)
    yield from ("", "## Trust", "")
    yield from (f"- {escaped(name)}: {escaped(text)}" for name, text in trust_lines(record))
    yield from report_tables(tables_of(record, others, worth), record)


def overview_as_markdown(record: Record) -> Iterator[str]:
    """Yield the overview as a block of code, which keeps its columns."""
    text = overview_text(record, OVERVIEW_WIDTH).replace("```", "'''")
    yield from ("```text", *text.splitlines(), "```")


def folded_overview(title: str, record: Record) -> Iterator[str]:
    """Yield the overview, collapsed under a title."""
    yield from (f"<details><summary>{escaped(title)}</summary>", "")
    yield from overview_as_markdown(record)
    yield from ("", "</details>")


def report_tables(tables: Iterable[Table], record: Record) -> Iterator[str]:
    """Yield the tables as Markdown, without findings and with the longest kernels only."""
    for table in tables:
        if table.name == "findings":
            continue
        if table.name == "kernels" and record.kernels:
            table = top_kernels(record.kernels, _KERNEL_ROWS, placed=not record.spec)
        yield from ("", f"## {escaped(table.title)}", "", table_as_markdown(table))


def findings_as_markdown(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        yield ""
        yield f"**{finding.severity.capitalize()}: {escaped(finding.verdict)}**"
        for name, words in (("Why", finding.why), ("Next", finding.next)):
            yield from [f"{name}: {escaped(words)}"] if words else []


def escaped(text: str) -> str:
    """Escape untrusted text for Markdown, so that it neither links nor mentions anyone."""
    shown = literal(text).replace("&", "&amp;")
    for char in "\\`*_[]<>|#~":
        shown = shown.replace(char, f"\\{char}")
    return _ALIVE.sub(lambda found: "`" + found[0].replace("\\", "") + "`", shown)


_ALIVE = re.compile(r"(?:@|://|www\.|\\#(?=\d))+", re.IGNORECASE)
"""What GitHub and GitLab turn into mentions, links and references, escaped or not; not in code."""


VERDICT_MARKS = {
    "faster": "🟢",
    "slower": "🔴",
    "same": "⚪",
    "not decidable": "🟡",
    "not the same computation": "🟠",
}


def verdict_as_markdown(
    verdict: Verdict,
    tables: Sequence[Table],
    *,
    facts: Iterable[str] = (),
    commands: Iterable[str] = (),
    folded: Sequence[Table] = (),
    subject: str = "Step time",
) -> str:
    """Write the verdict on ``subject``, facts such as a gate's result, tables, and commands."""
    text = describe_verdict(verdict)
    lines = [f"### {VERDICT_MARKS[verdict.verdict]} {subject}: {escaped(text.headline)}", ""]
    lines += [f"- {with_code(line)}" for line in (*text.reasons, *facts) if line]
    for table in tables:
        lines += ["", f"**{escaped(table.title)}**", "", table_as_markdown(table)]
    for table in folded:
        lines += ["", f"<details><summary>{escaped(table.title)}</summary>", ""]
        lines += [table_as_markdown(table), "", "</details>"]
    shell = [literal(command) for command in commands if command]
    if shell:
        lines += ["", "```sh", *shell, "```"]
    return "\n".join(lines) + "\n"


def with_code(text: str) -> str:
    """Escape text except for commands between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escaped(text)
    return "".join(f"`{literal(part)}`" if n % 2 else escaped(part) for n, part in enumerate(parts))
