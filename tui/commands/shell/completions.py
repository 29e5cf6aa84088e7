"""`completions`: a script for the shell that completes commands, options, runs and keys."""

from __future__ import annotations

import argparse

from ..arguments import examples
from ..report.output import print_json, write
from .words import KINDS, words_of

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell, and what its script asks for."""
    parser.description = (
        "Print the script with which a shell completes commands, options, models, keys and\n"
        "their values, runs, studies and baselines. Runs, studies and baselines are those of the\n"
        "moment; after an upgrade of this program print it anew."
    )
    parser.epilog = examples(
        ("sysbench-tui completions bash > ~/.local/share/bash-completion/completions/sysbench-tui",
         ""),
        ("sysbench-tui completions zsh > ~/.zfunc/_sysbench-tui", "a folder of $fpath"),
        ("sysbench-tui completions fish > ~/.config/fish/completions/sysbench-tui.fish", ""),
        ("source <(sysbench-tui completions bash)", "in this shell only"),
    )  # fmt: skip
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", nargs="?", choices=SHELLS, help="the shell")
    asked.add_argument(
        "--words", choices=KINDS, metavar="KIND", help="what a script asks for: words of a kind"
    )
    parser.add_argument(
        "--begin", default="", metavar="TEXT", help="of --words: only what begins so"
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the script, or the words; 0."""
    if arguments.words is None:
        from .script import completion_script

        script = completion_script(arguments.shell)
        if arguments.json:
            print_json({"shell": arguments.shell, "script": script})
        else:
            write(f"{script}\n")
        return 0
    words = words_of(arguments.words, arguments.begin)
    if arguments.json:
        print_json(words)
    else:
        write("".join(f"{word}\n" for word in words))
    return 0
