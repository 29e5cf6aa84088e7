"""Makes the manual page from the parser of the command line: ``make man``.

Nothing of it is written by hand: what ``--help`` says is what it says.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from sysbench.tui.commands.registry import COMMANDS, whole_parser

HEADING = re.compile(r"^[a-z][^\n]*:$")
"""The line above a block in an epilog, such as ``examples:``."""


def manual_page() -> str:
    """The page in the language of man(7)."""
    parser = whole_parser()
    lines = [
        f'.TH SYSBENCH-TUI 1 "" "sysbench-tui {version("sysbench-tui")}" "User Commands"',
        ".SH NAME",
        r"sysbench-tui \- " + _text(_first_sentence(parser.description or "")),
        ".SH SYNOPSIS",
        ".B sysbench-tui",
        r"[\fICOMMAND\fR [\fIARGUMENT\fR]...]",
        ".SH DESCRIPTION",
        *_paragraph(parser.description),
        *_options(parser),
        *_epilog(parser.epilog),
        ".SH COMMANDS",
    ]
    for name, subparser in _commands(parser):
        lines += _command(name, COMMANDS[name].summary, subparser)
    return "\n".join(lines) + "\n"


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f".SS {_text(name)}: {_text(summary)}"
    yield from _paragraph(parser.description)
    yield ".PP"
    yield from _verbatim(parser.format_usage().strip().splitlines())
    yield from _options(parser)
    for action, inner in _commands(parser):
        yield ".PP"
        yield rf"\fB{_text(name)} {_text(action)}\fR: {_text(inner.description or '')}"
        yield from _options(inner)
    yield from _epilog(parser.epilog)


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        yield ".TP"
        yield rf"\fB{_text(formatter._format_action_invocation(action))}\fR"
        yield _text(" ".join(formatter._expand_help(action).split()) if action.help else "")


def _epilog(text: str | None) -> Iterator[str]:
    """Blocks with a heading as they stand, since their columns are aligned."""
    for block in (text or "").split("\n\n"):
        head, *rest = block.splitlines() or [""]
        yield ".PP"
        if rest and HEADING.match(head):
            yield rf"\fB{_text(head)}\fR"
            yield from _verbatim(rest)
        else:
            yield from _verbatim([head, *rest])


def _paragraph(text: str | None) -> Iterator[str]:
    """The text unchanged: descriptions have lists."""
    yield from _verbatim((text or "").splitlines())


def _verbatim(lines: list[str]) -> Iterator[str]:
    yield ".nf"
    yield from map(_text, lines)
    yield ".fi"


def _first_sentence(text: str) -> str:
    sentence = text.splitlines()[0].removesuffix(".")
    return sentence[:1].lower() + sentence[1:]


def _text(text: str) -> str:
    """Text in which nothing is a request or an escape of man's."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{escaped}" if escaped[:1] in (".", "\\") else escaped


if __name__ == "__main__":
    # A usage breaks its lines by it; the page is the same on every terminal.
    os.environ["COLUMNS"] = "80"
    page = Path(sys.argv[1])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(manual_page(), encoding="utf-8")
    print(page)
