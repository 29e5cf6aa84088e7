"""Print the rows that a command's options choose, or why there are none."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from sysbench.core.errors import SpecError
from sysbench.core.export.text_formats import tables_as_csv, tables_as_markdown
from sysbench.core.record.record import Record
from sysbench.core.tables.brief import Brief, brief, brief_lines
from sysbench.core.tables.listing import EVERY_ROW, RowChoice, choose, listings
from sysbench.core.tables.overview import overview_text
from sysbench.core.tables.table import Table
from sysbench.tui.commands.arguments import share_of_one
from sysbench.tui.commands.output import page_width, print_json, print_paged, say, write_text
from sysbench.tui.commands.text_lines import Line, table_lines, titled


def min_share_of(arguments: argparse.Namespace) -> float:
    """
    Raises:
        SpecError: Not a share.
    """
    try:
        return share_of_one(arguments.min_share or "0")
    except argparse.ArgumentTypeError:
        allowed = "a share between 0 and 1, such as 1% or 0.01"
        raise SpecError("--min-share", arguments.min_share, allowed) from None


def row_choice(arguments: argparse.Namespace) -> RowChoice:
    is_tree = getattr(arguments, "section", None) == "tree"
    min_share = 0.0 if is_tree else min_share_of(arguments)
    return RowChoice(top=arguments.top, fields=arguments.fields, min_share=min_share)


def print_chosen(
    arguments: argparse.Namespace,
    tables: Callable[[], Sequence[Table]],
    document: Mapping[str, Any] | None,
) -> bool:
    """Print the chosen rows as JSON, CSV, Markdown or lines; False if all rows were asked for.

    Args:
        document: What the JSON document has beside its tables; None for a list of one table.
    """
    choice = row_choice(arguments)
    if choice == EVERY_ROW:
        return False
    if arguments.json:
        listed = listings(tables(), choice)
        if document is None:
            print_json(*listed.values())
        else:
            print_json({**document, "tables": listed})
        return True
    chosen = choose(tables(), choice)
    if getattr(arguments, "md", False):
        write_text(tables_as_markdown(chosen))
    elif getattr(arguments, "csv", False):
        write_text(section_csv(arguments, chosen))
    else:
        width = page_width(in_full=True, wide=getattr(arguments, "wide", False))
        print_table_lines(arguments, chosen, width)
    return True


def section_csv(arguments: argparse.Namespace, tables: Sequence[Table]) -> str:
    """Return the table of the section's name as CSV, else all tables with one value per line."""
    section = getattr(arguments, "section", None)
    named = [table for table in tables if table.name == section] or tables
    return tables_as_csv(named).decode()


def print_table_lines(arguments: argparse.Namespace, tables: Sequence[Table], width: int) -> None:
    titles = (titled(table.title, table_lines(table, width)) for table in tables)
    lines = chain.from_iterable(titles)
    next(lines, None)  # the empty line above the first title
    print_paged(lines, page=not getattr(arguments, "no_pager", True))


def print_record_brief(arguments: argparse.Namespace, record: Record, subject: str) -> None:
    """Print the summary of a run or file."""
    texts = (subject, *overview_text(record, page_width()).splitlines())
    print_brief(arguments, brief(record, subject), ([(text, "")] for text in texts))


def print_brief(arguments: argparse.Namespace, document: Brief, lines: Iterable[Line]) -> None:
    """Print a summary as JSON, or the first lines of the report and what is missing."""
    if arguments.json:
        print_json(document, indent=0)
        return
    texts = ["".join(text for text, _ in line).rstrip() for line in lines]
    say(*brief_lines(texts, document.missing, page_width()))


def cannot_answer(reason: str, command: str) -> dict[str, Any]:
    """Return the document of a question that this run or file has no data for.

    Args:
        command: What would measure it; empty if nothing here can.
    """
    return {"cannot_answer": {"reason": reason, "command": command or None}}
