"""`baseline`: records kept under a name, to judge later runs against."""

from __future__ import annotations

import argparse
from pathlib import Path

from sysbench.core.runs.run_directory import find_run
from sysbench.tui.commands.arguments import add_run_argument, complete_with, examples
from sysbench.tui.commands.output import page_width, print_json, print_lines, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the four actions."""
    parser.description = (
        "Keep a copy of a run's record, with its rounds, under a name. A baseline outlives its\n"
        "run, and with --file it is a file that a repository or a CI cache can hold."
    )
    parser.epilog = examples(
        ("sysbench-tui baseline save main last", "the newest run is now the baseline `main`"),
        ("sysbench-tui baseline save main last --force", "in place of an older one"),
        ("sysbench-tui baseline save main last --file gate.json", "as a file of your own"),
        ("sysbench-tui baseline list", ""),
        ("sysbench-tui gate main", "measure its spec again and judge"),
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    save = _action(actions, "save", "copy a run's record under a name", named=True)
    add_run_argument(save)
    save.add_argument("--force", action="store_true", help="replace a baseline of that name")
    _add_file(save, "write it to this file instead of the home")
    _action(actions, "list", "all baselines of this home", named=False)
    show = _action(actions, "show", "one baseline: when, where, and its rounds", named=True)
    _add_file(show, "read it from this file instead of the home")
    _action(actions, "delete", "remove a baseline; runs are left alone", named=True)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    *,
    named: bool,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary)
    # Without a default, so that `baseline --json list` and `baseline list --json` are one.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON document"
    )
    if named:
        action = parser.add_argument("name", metavar="NAME", help="letters, digits, dots, dashes")
        complete_with(action, "baseline")
    return parser


def _add_file(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--file", type=Path, metavar="PATH", help=text)


def main(arguments: argparse.Namespace) -> int:
    """Do the action; 0 when it was done."""
    actions = {"save": _save, "list": _list, "show": _show, "delete": _delete}
    actions[arguments.action](arguments)
    return 0


def _save(arguments: argparse.Namespace) -> None:
    from sysbench.core.compare.gate_rule import DEFAULT_ROUNDS
    from sysbench.core.experiments.baselines import load_baseline, save_baseline
    from sysbench.core.formatting import counted
    from sysbench.core.runs.stored_records import load_record

    record = load_record(find_run(arguments.run))
    path = save_baseline(arguments.name, record, file=arguments.file, force=arguments.force)
    rounds = len(load_baseline(arguments.name, file=arguments.file).rounds_ms)
    if arguments.json:
        print_json({"name": arguments.name, "path": str(path), "run": record.id, "rounds": rounds})
        return
    say(f"{arguments.name}: {record.id}, {counted(rounds, 'round')}, in {path}")
    if rounds < DEFAULT_ROUNDS:
        say(f"Too few for most gates: `sysbench-tui run --repeat {DEFAULT_ROUNDS}` measures more.")


def _list(arguments: argparse.Namespace) -> None:
    from sysbench.core.experiments.baselines import list_baselines
    from sysbench.tui.commands.gate_tables import listed_rows, listed_table

    rows = list_baselines()
    if arguments.json:
        print_json(listed_rows(rows))
    elif rows:
        from sysbench.tui.commands.layout import table_lines

        print_lines(table_lines(listed_table(rows), page_width()))
    else:
        say("no baselines; `sysbench-tui baseline save NAME RUN` makes one")


def _show(arguments: argparse.Namespace) -> None:
    from sysbench.core.experiments.baselines import load_baseline

    baseline = load_baseline(arguments.name, file=arguments.file)
    if arguments.json:
        print_json(baseline)
        return
    from sysbench.tui.commands.gate_tables import baseline_lines

    print_lines(baseline_lines(baseline, page_width()))


def _delete(arguments: argparse.Namespace) -> None:
    from sysbench.core.experiments.baselines import delete_baseline

    path = delete_baseline(arguments.name)
    if arguments.json:
        print_json({"name": arguments.name, "path": str(path)})
    else:
        say(f"{arguments.name}: {path} is gone")
