"""The scripts of the shells: shtab makes them from the parser, and they ask us for words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import shtab

from ..registry import COMMANDS, whole_parser
from .words import KINDS

FILE = "file"
"""What is completed to a path, by the shell itself."""
COMPLETED_TO = {
    "run": "run",
    "attach run": "task",
    "stop run": "task",
    "rm runs": "run",
    "compare a": "run",
    "compare b": "run",
    "ab a": "side",
    "ab b": "side",
    "ab resume": "experiment",
    "words": "spec",
    "list words": "",
    "settings": "setting",
    "settings_b": "setting",
    "model": "model",
    "precision": "precision",
    "compile": "compile",
    "study name": "study",
    "study target": "begun",
    "baseline name": "baseline",
    "gate name": "baseline",
    "file": FILE,
    "capture": FILE,
    "merged": FILE,
    "output": FILE,
    "python": FILE,
    "python_b": FILE,
}
"""Kind of the words of an argument, by its name, or by its command's and its own."""

_BASH = r"""
_sysbench_tui_words() {
  command sysbench-tui completions --words "$1" --begin="$2" 2>/dev/null
}
%(functions)s
"""
_BASH_END = r"""

# Readline cuts words at = and :, which are parts of ours.
_sysbench_tui() {
  local line="${COMP_LINE:0:COMP_POINT}" word whole
  if [[ $line != *[\"\'\\]* ]]; then
    local -a COMP_WORDS
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *[[:space:]] ]] && COMP_WORDS+=("")
    local COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  fi
  _shtab_sysbench_tui
  [[ ${#COMPREPLY[@]} = 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  whole="${COMP_WORDS[COMP_CWORD]}" word="$whole"
  [[ $COMP_WORDBREAKS == *=* ]] && word="${word##*=}"
  [[ $COMP_WORDBREAKS == *:* ]] && word="${word##*:}"
  COMPREPLY=("${COMPREPLY[@]#"${whole%%"$word"}"}")
}

complete -o bashdefault -o default -F _sysbench_tui sysbench-tui"""
_ZSH = r"""
_sysbench_tui_words() {
  local -a found
  found=("${(@f)$(command sysbench-tui completions --words ${@[-1]} --begin="$PREFIX" \
    2>/dev/null)}")
  if [[ -z $found ]]; then
    _files
    return
  fi
  local -a keys
  keys=(${(M)found:#*=})
  compadd -S '' -- $keys
  compadd -o nosort -- ${found:|keys}
}
"""
_FISH = r"""
function _sysbench_tui_words
  set -l word (commandline -ct)
  command sysbench-tui completions --words $argv[1] --begin="$word" 2>/dev/null
end
"""


def completion_script(shell: str) -> str:
    """The script of a shell.

    Args:
        shell: ``bash``, ``zsh`` or ``fish``.
    """
    parser = whole_parser()
    for command, action in arguments_of(parser):
        if isinstance(action.choices, Mapping):
            action.choices = tuple(action.choices)
        elif kind := kind_of(command, action):
            # The attribute is shtab's: what completes the argument, by shell.
            vars(action)["complete"] = shtab.FILE if kind == FILE else _asking(kind)
    for name, subparser in _commands(parser):
        # Shells show a line: the first of our descriptions ends in the middle of a sentence.
        subparser.description = COMMANDS[name].summary
    script: str = shtab.complete(parser, shell)
    if shell == "bash":
        return script + _BASH_END
    # shtab completes the first of an argument's many words only.
    return script.replace('"(*)::', '"*:') if shell == "zsh" else script


def kind_of(command: str, action: argparse.Action) -> str:
    """The kind of an argument's words; empty where nothing is known about them."""
    return COMPLETED_TO.get(f"{command} {action.dest}", COMPLETED_TO.get(action.dest, ""))


def _asking(kind: str) -> dict[str, object]:
    functions = "\n".join(
        f'_sysbench_tui_{name}() {{ _sysbench_tui_words {name} "$1"; }}' for name in KINDS
    )
    return {
        "bash": f"_sysbench_tui_{kind}",
        "zsh": f"_sysbench_tui_words {kind}",
        "fish": f"(_sysbench_tui_words {kind})",
        "preamble": {"bash": _BASH % {"functions": functions}, "zsh": _ZSH, "fish": _FISH},
    }


def arguments_of(
    parser: argparse.ArgumentParser | None = None,
) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of every command, those of its actions too, with the command's name.

    Args:
        parser: Default: a new one of all commands.
    """
    for name, subparser in _commands(parser or whole_parser()):
        inner = [action for _, action in _commands(subparser)]
        for each in (subparser, *inner):
            for action in each._actions:
                if not isinstance(action, argparse._SubParsersAction):
                    yield name, action


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
