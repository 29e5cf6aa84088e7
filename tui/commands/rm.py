"""`rm`: delete runs, bring them back, and empty the trash."""

from __future__ import annotations

import argparse

from sysbench.core.errors import SpecError
from sysbench.core.runs.run_directory import find_run
from sysbench.tui.commands.arguments import RUN_HELP, complete_with, examples
from sysbench.tui.commands.output import print_answer, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Move runs to the trash; --restore brings them back. A live run is never deleted. A run\n"
        "that an experiment, a study or a baseline refers to requires --force. --empty deletes\n"
        "the trash permanently."
    )
    parser.epilog = examples(
        ("sysbench-tui rm 20261121-1204", ""),
        ("sysbench-tui rm --restore last", "restore the last deleted run"),
        ("sysbench-tui list --trash", "list deleted runs"),
        ("sysbench-tui rm --empty", "free the disk"),
    )
    runs = parser.add_argument("runs", metavar="RUN", nargs="*", help=RUN_HELP)
    complete_with(runs, "run")
    parser.add_argument(
        "--force", action="store_true", help="delete even if something refers to it"
    )
    parser.add_argument("--restore", action="store_true", help="bring deleted runs back instead")
    parser.add_argument(
        "--empty", action="store_true", help="permanently delete the contents of the trash"
    )


def main(arguments: argparse.Namespace) -> int:
    if arguments.empty == bool(arguments.runs) or (arguments.empty and arguments.restore):
        raise SpecError("RUN", "", "name the runs, or give --empty alone")
    from sysbench.core.runs import trash  # lazy: --help stays fast

    if arguments.empty:
        done, word = [run.id for run in trash.empty_trash()], "permanently deleted"
    elif arguments.restore:
        done = [trash.restore(trash.find_trashed(text)).id for text in arguments.runs]
        word = "restored"
    else:
        done, word = _delete(arguments), "deleted; `sysbench-tui rm --restore` brings it back"
    texts = [f"{run_id} {word}" for run_id in done] or ["the trash is empty"]
    print_answer([{"id": run_id} for run_id in done], *texts, json=arguments.json)
    return 0


def _delete(arguments: argparse.Namespace) -> list[str]:
    """Delete all runs, or none if one is in use; return their ids."""
    from sysbench.core.runs.trash import KeptRunError, trash_run  # lazy: --help stays fast
    from sysbench.core.studies.study_directory import uses_of  # lazy: --help stays fast

    runs = {run.id: run for run in map(find_run, arguments.runs)}
    for run_id in runs:
        uses = uses_of(run_id)
        if uses and not arguments.force:
            raise KeptRunError(
                f"run {run_id} belongs to {'; '.join(uses)}: --force deletes it anyway"
            )
        for use in uses:
            say(f"{run_id} belonged to {use}", to_stderr=True)
    return [trash_run(run).id for run in runs.values()]
