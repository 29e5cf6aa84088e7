"""The action that gates in CI, run as GitHub runs it, and the commands of its page."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sysbench.core.compare.gate_rule import separate_rounds
from sysbench.tui.commands.registry import COMMANDS, parse_arguments

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")

NOTE = """
import json, os, sys
from pathlib import Path
Path(os.environ["SEEN"]).write_text(json.dumps(sys.argv[1:]))
print("### the report")
sys.exit(int(os.environ["CODE"]))
"""
# A line of "#!" cannot name an interpreter whose path has blanks.
PROGRAM = f'#!/bin/sh\nexec {shlex.join((sys.executable, "-c", NOTE))} "$@"\n'

needs_ab = pytest.mark.skipif("ab" not in COMMANDS, reason="the command is not there yet")


def action() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    return document


def ran(folder: Path, code: int = 0, **inputs: str) -> tuple[int, list[str], str, str]:
    """Exit code, words after the program's name, job summary, and outputs of the measuring step."""
    (step,) = [row for row in action()["runs"]["steps"] if row.get("id") == "measure"]
    values = {name: row.get("default", "") for name, row in action()["inputs"].items()}
    values |= {name.replace("_", "-"): value for name, value in inputs.items()}
    given = {
        name: values[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)[1]]  # type: ignore[index]
        for name, text in step["env"].items()
    }
    program = folder / "bin" / "sysbench-tui"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    places = {
        "GITHUB_STEP_SUMMARY": folder / "summary.md",
        "GITHUB_OUTPUT": folder / "output.txt",
        "SEEN": folder / "seen.json",
    }
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={
            **{name: str(path) for name, path in places.items()},
            **given,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "CODE": str(code),
        },
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.stderr == ""
    summary, output, seen = (path.read_text() for path in places.values())
    return result.returncode, json.loads(seen), summary, output


@pytest.mark.parametrize("code", [0, 3, 4, 1, 2])
def test_the_step_ends_with_the_code_and_keeps_the_report(tmp_path: Path, code: int) -> None:
    status, words, summary, output = ran(tmp_path, code, spec_a="base.toml")
    outputs = f"exit-code={code}\nreport={tmp_path}/gate.md\n"
    assert (status, summary, output) == (code, "### the report\n", outputs)
    assert words[:2] == ["ab", "base.toml"]
    assert words[-1] == "--md"


def test_inputs_arrive_as_words_whatever_they_hold(tmp_path: Path) -> None:
    hostile = "a b; touch owned; $(touch owned) `touch owned` ' \" *"
    _, words, _, _ = ran(tmp_path, spec_a=hostile, spec_b="b.toml", margin=hostile)
    assert words[1:3] == [hostile, "b.toml"]
    assert words[words.index("--gate") + 1] == hostile
    assert not (tmp_path / "owned").exists()
    for step in action()["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_settings_are_one_a_line(tmp_path: Path) -> None:
    text = "batch=8\n\nprecision=bf16"
    _, words, _, _ = ran(tmp_path, spec_a="base.toml", set=text, set_b="compile=default\n")
    assert words[2:8] == [
        *("--set", "batch=8", "--set", "precision=bf16"),
        *("--set-b", "compile=default"),
    ]


@needs_ab
def test_our_parser_takes_what_the_action_asks(tmp_path: Path) -> None:
    _, words, _, _ = ran(
        tmp_path, spec_a="base.toml", spec_b="b.toml", set="batch=8", set_b="clip=1"
    )
    arguments = parse_arguments(words)
    assert (arguments.command, arguments.gate, arguments.smallest) == ("ab", 0.03, 0.01)
    assert (arguments.a, arguments.b, arguments.md) == ("base.toml", "b.toml", True)


def commands_of_the_page() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [
        line for block in blocks for line in block.splitlines() if line.startswith("sysbench-tui ")
    ]


@needs_ab
@pytest.mark.parametrize("line", commands_of_the_page())
def test_our_parser_takes_the_commands_of_the_page(line: str) -> None:
    assert parse_arguments(shlex.split(line)[1:]).command in COMMANDS


def test_the_workflow_of_the_page_gives_inputs_that_there_are() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (job,) = yaml.safe_load(text)["jobs"].values()
    (step,) = [row for row in job["steps"] if row.get("id") == "gate"]
    assert ROOT / step["uses"] == ACTION.parent
    assert step["with"].keys() <= action()["inputs"].keys()
    assert {name for name, row in action()["inputs"].items() if row.get("required")} <= {
        *step["with"]
    }
    assert action()["outputs"].keys() == {"exit-code", "report"}


def test_the_rounds_of_the_page_are_those_that_the_program_asks_for() -> None:
    table = re.search(r"^\| spread \|(.+)\|\n\|[-:|]+\|\n((?:\|.+\n)+)", PAGE, re.MULTILINE)
    assert table is not None
    margins = [float(text.strip(" %")) / 100 for text in table[1].split("|")]
    for line in table[2].splitlines():
        spread, *counts = [text.strip(" %") for text in line.strip("|").split("|")]
        wanted = [separate_rounds(float(spread) / 100, math.log1p(m)) for m in margins]
        assert [int(count) for count in counts] == wanted
