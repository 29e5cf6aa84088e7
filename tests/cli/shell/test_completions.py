"""What shells complete to: the words of a kind, and the scripts in shells of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.fields import FIELDS
from sysbench.core.storage import study_files
from sysbench.tui.cli import main
from sysbench.tui.commands.completions import KINDS, completion_script, words_of
from tests.envelope import content

PATIENCE_SECONDS = 60
LINES = {
    "sho": ["show"],
    "show last --section ker": ["kernels"],
    "baseline sh": ["show"],
    "run tiny precision=bf1": ["precision=bf16", "precision=bf16-pure"],
    "run --repeat 2 tiny unt": ["until="],
    "compare last l": ["last"],
    "rm l": ["last"],
    "ab tin": ["tiny"],
    "ab tiny --set-b unt": ["until="],
    "study lis": ["list"],
}
"""Lines of the command, and what Tab offers behind each with one run in the home."""


def test_each_kind_offers_what_is_here(gpu_run: RunDirectory, sysbench_home: Path) -> None:
    (sysbench_home / "baselines").mkdir()
    (sysbench_home / "baselines" / "main.json").write_text("{}")
    (sysbench_home / "studies" / "mine-1234").mkdir(parents=True)
    (sysbench_home / "studies" / "mine-1234" / "study.json").write_text("{}")
    assert words_of("run", "") == ["last", gpu_run.id]
    assert words_of("run", gpu_run.id[:-1]) == [gpu_run.id]
    assert words_of("side", "tin") == ["tiny"]
    assert words_of("baseline", "m") == ["main"]
    assert words_of("study", "mine") == ["mine-1234"]
    assert {*words_of("study", "")} == {"list", "show", "mine-1234", *study_files()}


def test_keys_are_offered_with_their_sign_and_then_their_values() -> None:
    offered = words_of("spec", "")
    assert {f"{field.name}=" for field in FIELDS if field.is_typed} <= {*offered}
    assert {"tiny", "cs336-2025/large"} <= {*offered}
    for field in FIELDS:
        if field.is_typed and field.choices:
            values = words_of("setting", f"{field.name}=")
            assert values == [f"{field.name}={choice}" for choice in field.choices]
    assert words_of("spec", "batch=") == words_of("spec", "nothing=") == []
    assert words_of("spec", "model=ti") == ["model=tiny"]


def test_in_an_empty_home_every_kind_can_be_asked_for(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in KINDS:
        assert main(["completions", "--words", kind, "--begin=--no such"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["completions", "--words", "run", "--json"]) == 0
    assert content(capsys.readouterr().out) == []


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_run: RunDirectory) -> Path:
    """The folder of a `sysbench-tui` that shells find, beside the home with a run."""
    program = tmp_path / "bin" / "sysbench-tui"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m sysbench.tui.cli "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return program.parent


def shell(*words: str) -> str:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not here")
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert not done.stderr
    return done.stdout


def test_bash_offers_words_that_follow_the_last_equals_sign(on_path: Path) -> None:
    """Readline has cut the line at each =, so it is given what comes after the last one."""
    (on_path / "script").write_text(completion_script("bash"))
    asked = "".join(f"tab 'sysbench-tui {line}'\n" for line in LINES)
    said = shell("bash", "-c", f"source {on_path}/script\n{BASH_TAB}\n{asked}")
    offered = [line.split() for line in said.splitlines()]
    assert offered == [
        [word[word.find("=") + 1 :] if "=" in line else word for word in words]
        for line, words in LINES.items()
    ]


BASH_TAB = """
tab() {
  COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
  COMP_WORDS=(${1//=/ = })
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  $(complete -p sysbench-tui | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
  echo "${COMPREPLY[@]}"
}
"""
"""What readline does before and after a completion."""


def test_fish_offers_them(on_path: Path) -> None:
    (on_path / "script").write_text(completion_script("fish"))
    asked = "".join(f"complete -C 'sysbench-tui {line}'; echo -\n" for line in LINES)
    said = shell("fish", "--no-config", "-c", f"source {on_path}/script\n{asked}")
    blocks = said.split("-\n")[:-1]
    offered = [[row.partition("\t")[0] for row in block.splitlines()] for block in blocks]
    assert offered == list(LINES.values())


def test_zsh_completes_to_what_they_have_in_common(on_path: Path) -> None:
    (on_path / "_sysbench-tui").write_text(completion_script("zsh"))
    (on_path / "inner").write_text(ZSH_INNER)
    asked = [f"sysbench-tui {line}" for line in LINES]
    (on_path / "lines").write_text("\n".join(asked))
    shell("zsh", "-f", "-c", ZSH_OUTER, "zsh", str(on_path))
    typed = (on_path / "typed").read_text().splitlines()
    assert [line.rstrip() for line in typed] == [
        # Of several all others begin as the shortest here.
        f"{line.rpartition(' ')[0]} {min(words, key=len)}"
        for line, words in zip(asked, LINES.values(), strict=True)
    ]


ZSH_OUTER = r"""
zmodload zsh/zpty
zpty shell "FOLDER=$1 zsh -f -i"
zpty -w shell "source $1/inner; print READY''"
while zpty -r shell line; do [[ $line == *READY$'\r'* ]] && break; done
zpty -w -n shell $'\x14'
while zpty -r shell line; do :; done
"""
ZSH_INNER = r"""
fpath=($FOLDER $fpath)
autoload -Uz compinit
compinit -u -D
press_tab() {
  local line
  for line in "${(@f)$(<$FOLDER/lines)}"; do
    BUFFER=$line CURSOR=$#line
    zle complete-word
    print -r -- "$BUFFER" >> $FOLDER/typed
  done
  exit
}
zle -N press_tab
bindkey '^T' press_tab
"""
"""An interactive zsh with a key that completes each line of a file."""
