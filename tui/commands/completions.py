"""`completions`: print the shell completion script, or the words that it asks for.

shtab makes the script from the parser. The script calls `--words` at each Tab, so imports are few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

from sysbench.core.runs.run_directory import list_runs
from sysbench.core.spec.fields import FIELDS
from sysbench.core.spec.models import parameters_of_models
from sysbench.core.spec.profiles import list_profiles
from sysbench.core.storage import baselines_folder, begun_studies, study_files
from sysbench.tui.commands.arguments import examples
from sysbench.tui.commands.output import print_json, write_text

MAX_RUNS = 100
"""Newest runs that are offered, of those that match the prefix."""

_BASH_WORDS = """
_sysbench_tui_{kind}() {{
  command sysbench-tui completions --words {kind} --begin="$1" 2>/dev/null
}}"""
_BASH_END = r"""

# Readline splits words at = and :, which occur in our words.
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
  local -a found keys
  found=("${(@f)$(command sysbench-tui completions --words ${@[-1]} --begin="$PREFIX" \
    2>/dev/null)}")
  if [[ -z $found ]]; then
    _files
    return
  fi
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


def declare_completions(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the script that completes commands, options, models, keys and their values, runs,\n"
        "studies and baselines in your shell. Runs, studies and baselines are looked up at each\n"
        "Tab; print the script again after an upgrade of this program."
    )
    parser.epilog = examples(
        ("sysbench-tui completions bash > ~/.local/share/bash-completion/completions/sysbench-tui",
         ""),
        ("sysbench-tui completions zsh > ~/.zfunc/_sysbench-tui", "a folder of $fpath"),
        ("sysbench-tui completions fish > ~/.config/fish/completions/sysbench-tui.fish", ""),
        ("source <(sysbench-tui completions bash)", "in this shell only"),
    )  # fmt: skip
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), help="the shell")
    asked.add_argument(
        "--words", choices=tuple(KINDS), metavar="KIND", help="print the words of a kind instead"
    )
    parser.add_argument(
        "--begin", default="", metavar="TEXT", help="for --words: only words with this prefix"
    )


def main(arguments: argparse.Namespace) -> int:
    if arguments.words is None:
        script = completion_script(arguments.shell)
        if arguments.json:
            print_json({"shell": arguments.shell, "script": script})
        else:
            write_text(f"{script}\n")
        return 0
    words = words_of(arguments.words, arguments.begin)
    if arguments.json:
        print_json(words)
    else:
        write_text("".join(f"{word}\n" for word in words))
    return 0


def completion_script(shell: str) -> str:
    import shtab  # lazy: Tab needs words only

    from sysbench.tui.commands.registry import whole_parser  # lazy: import cycle

    preamble = {
        "bash": "".join(_BASH_WORDS.format(kind=kind) for kind in KINDS),
        "zsh": _ZSH,
        "fish": _FISH,
    }
    script: str = shtab.complete(whole_parser(is_brief=True), shell, preamble=preamble[shell])
    if shell == "bash":
        return script + _BASH_END
    # shtab completes only the first word of an argument that takes many.
    return script.replace('"(*)::', '"*:') if shell == "zsh" else script


def words_of(kind: str, begin: str) -> list[str]:
    """Return the words of a kind of `KINDS` with this prefix, in display order."""
    words = (word for word in KINDS[kind](begin) if word.startswith(begin))
    return list(dict.fromkeys(words))


def _runs(begin: str) -> Iterator[str]:
    ids = [run.id for run in list_runs()]
    yield from ("last", "last~1")[: len(ids)]
    yield from [run_id for run_id in ids if run_id.startswith(begin)][:MAX_RUNS]


def _names_of_specs(begin: str) -> Iterator[str]:
    yield from parameters_of_models()
    yield from list_profiles()


def _settings(begin: str) -> Iterator[str]:
    """Yield keys with their ``=``, or the values of the typed key."""
    key, equals, _ = begin.partition("=")
    for field in FIELDS:
        if not equals and field.is_typed:
            yield f"{field.name}="
        elif field.name == key:
            values = parameters_of_models() if key == "model" else field.choices
            yield from (f"{key}={value}" for value in values)


def _specs(begin: str) -> Iterator[str]:
    if "=" not in begin:
        yield from _names_of_specs(begin)
    yield from _settings(begin)


def _sides(begin: str) -> Iterator[str]:
    yield from _names_of_specs(begin)
    yield from _runs(begin)


def _studies(begin: str) -> Iterator[str]:
    yield from ("list", "show")
    yield from study_files()
    yield from (path.name for path in begun_studies())


def _baselines(begin: str) -> Iterable[str]:
    return sorted(path.stem for path in baselines_folder().glob("*.json"))


KINDS: dict[str, Callable[[str], Iterable[str]]] = {
    "run": _runs,
    "spec": _specs,
    "setting": _settings,
    "side": _sides,
    "study": _studies,
    "baseline": _baselines,
}
"""Words by the kind that `arguments.complete_with` names."""
