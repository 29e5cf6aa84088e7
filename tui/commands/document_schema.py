"""`schema`: print the JSON Schema of a command's documents."""

from __future__ import annotations

import argparse

from sysbench.tui.commands.arguments import examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from sysbench.tui.commands.registry import COMMANDS  # lazy: import cycle

    parser.description = (
        "Print the JSON Schema of what a command prints with --json. Every document has `schema`,\n"
        "`command` and `version`; a list is `rows`, with `total` and `truncated`; what cannot be\n"
        "answered from a run or file is `cannot_answer`, with the reason and the command that\n"
        "records it. Keys may be added, so a reader ignores those that it does not know."
    )
    parser.epilog = examples(
        ("sysbench-tui schema show", ""),
        ("sysbench-tui schema inspect > inspect.schema.json", "for a validator"),
    )
    parser.add_argument("name", metavar="COMMAND", choices=tuple(COMMANDS), help="its name")
