"""`baseline`: save records under a name as references for later runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from sysbench.tui.commands.arguments import add_run_argument, complete_with, examples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Save a copy of a run's record, with its rounds, under a name. A baseline outlives its\n"
        "run; with --file it is a file for a repository or a CI cache."
    )
    parser.epilog = examples(
        ("sysbench-tui baseline save main last", "the newest run is now the baseline `main`"),
        ("sysbench-tui baseline save main last --force", "replace an older one"),
        ("sysbench-tui baseline save main last --file gate.json", "as a file of your own"),
        ("sysbench-tui baseline list", ""),
        ("sysbench-tui gate main", "measure its spec again and compare"),
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    save = _action(actions, "save", "copy a run's record under a name", named=True)
    add_run_argument(save)
    save.add_argument("--force", action="store_true", help="replace a baseline of that name")
    _add_file(save, "write it to this file instead of the home")
    _action(actions, "list", "all baselines of this home", named=False)
    show = _action(actions, "show", "one baseline: when, where, and its rounds", named=True)
    _add_file(show, "read it from this file instead of the home")
    _action(actions, "delete", "remove a baseline; runs are not deleted", named=True)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    *,
    named: bool,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary)
    # No default, so that `baseline --json list` and `baseline list --json` both work.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document"
    )
    if named:
        action = parser.add_argument("name", metavar="NAME", help="letters, digits, dots, dashes")
        complete_with(action, "baseline")
    return parser


def _add_file(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--file", type=Path, metavar="PATH", help=text)
