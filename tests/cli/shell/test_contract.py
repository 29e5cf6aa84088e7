"""The JSON of every command: its envelope, its schema, chosen rows, and what has no answer."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sysbench.core.tables.sections import SECTIONS
from sysbench.tui.cli import main
from sysbench.tui.commands.document_types import document_schema
from sysbench.tui.commands.registry import COMMANDS

FIXTURES = Path(__file__).parents[2] / "fixtures"
RANKS = FIXTURES / "ranks"
TRACE = RANKS / "rank0.json.gz"
IDS = ("20261121-120000-tiny-cpu0", "20261121-120100-tiny-cpu0")
NANO = "tiny batch=1 context=8 steps=2 warmup=1 device=cpu --passes timing"
PROGRAM = [sys.executable, "-P", "-m", "sysbench.tui.cli"]
SCHEMAS = {name: document_schema(name) for name in COMMANDS}

READING = (
    *("list", "list --top 1", "list nothing-has-this-word", "list --trash"),
    *("show last", "show last --top 2 --fields name,share", "show last --min-share 1%"),
    *(f"show last --section {name}" for name in SECTIONS),
    *("show last --row findings:trustworthy", f"show {TRACE}"),
    *("compare last last~1", "compare last last~1 --top 2", f"compare {TRACE} {TRACE}"),
    *(f"inspect {TRACE}", f"inspect {TRACE} --section kernels", f"inspect {TRACE} --top 1"),
    *(f"inspect {RANKS}", f"inspect {RANKS} --section ranks", f"inspect {RANKS} --top 1"),
    *("estimate tiny", "estimate tiny --fit batch --capacity 1GiB", "estimate tiny --top 1"),
    *("estimate tiny --table batch=1,2", "estimate tiny --savings", "estimate tiny --card h100"),
    "estimate tiny --card h100 --plan 3",
    "estimate tiny batch=2 --card h100 --world pp=2 --fit microbatches",
    *("export last json -o record.json", "export last csv -o tables"),
    *("baseline save main last", "baseline list", "baseline show main", "baseline delete main"),
    *("study list", "study e2e --variant small --dry-run"),
    *("stop last", "attach last", "rm last", "rm --restore last", "rm --empty"),
    *("top -n 2", "doctor", "completions bash", "completions --words setting"),
    *("mcp", "mcp --allow-run"),
    *(f"schema {name}" for name in COMMANDS),
)


def check(command: str, text: str) -> dict[str, Any]:
    """Return the document; it has the envelope, is valid, and its schema names its keys."""
    document: dict[str, Any] = json.loads(text)
    schema = SCHEMAS[command]
    assert document["command"].startswith((command, f"sysbench-tui {command}"))
    branches = [
        branch
        for branch in schema["anyOf"]
        if document.keys() - named_keys(branch, schema) <= BESIDE
    ]
    Draft202012Validator({**schema, "anyOf": branches}).validate(document)
    return document


def named_keys(branch: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    kind = schema["$defs"].get(branch.get("$ref", "").rpartition("/")[2], branch)
    return {*kind["properties"], *schema["properties"]}


BESIDE = {"tables"}
"""Keys beside the data of a section."""


@pytest.fixture
def home(sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in IDS:
        folder = sysbench_home / "runs" / name
        shutil.copytree(FIXTURES / "tiny-cpu", folder)
        for path in (folder / "run.json", folder / "record.json"):
            path.write_text(path.read_text().replace(IDS[0], name))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return sysbench_home


def document(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> dict[str, Any]:
    words = shlex.split(line)
    assert main([*words, "--json"]) == code, capsys.readouterr().err
    return check(words[0], capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_schema_is_one(command: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[command])


@pytest.mark.usefixtures("one_process")
def test_documents_of_commands_that_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in READING:
        found = document(capsys, line)
        if "rows" in found and line != f"inspect {RANKS}":
            assert found["total"] == len(found["rows"]) or found["truncated"], line


def test_documents_of_commands_that_measure(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document(capsys, f"baseline save main {IDS[0]}")
    document(capsys, f"gate main {IDS[1]}", code=4)  # one process each
    document(capsys, f"run {NANO}")
    stored = "sysbench.tui.commands.watch_actions.request_window"
    monkeypatch.setattr(stored, lambda *_, **__: None)  # no command is live here
    document(capsys, "window last --steps 2")
    capsys.readouterr()
    assert main(["watch", "--json", "--brief", "--", "true"]) == 0
    assert "subject" in check("watch", capsys.readouterr().out)
    assert main(["watch", "--brief", "--", "true"]) == 0
    assert 1 < len(capsys.readouterr().err.splitlines()) <= 30
    assert main(["watch", "--json", "--", "true"]) == 0
    check("watch", capsys.readouterr().out)
    pause = ("--", "sleep", "0.1")
    words = ("--metric", "wall", "--smallest", "80%", *pause, *pause)
    assert main(["ab", "--json", *words]) == 0
    check("ab", capsys.readouterr().out)


@pytest.mark.parametrize("words", [["serve", "last"], ["serve", "sent.zip"], ["web"]], ids=" ".join)
def test_documents_of_servers(home: Path, words: list[str]) -> None:
    if "sent.zip" in words:
        assert main(["export", "last", "bundle", "-o", "sent.zip"]) == 0
    with subprocess.Popen(
        [*PROGRAM, *words, "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        text = "".join(iter(process.stdout.readline, "}\n")) + "}"
        process.send_signal(signal.SIGINT)
    check(words[0], text)


def test_every_command_is_checked() -> None:
    measuring = {"run", "gate", "window", "watch", "ab", "serve", "web"}
    assert {line.split()[0] for line in READING} | measuring == set(COMMANDS)


def test_rows_are_chosen_alike_in_every_format(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = f"inspect {TRACE} --section kernels --top 2 --fields name,share"
    kernels = document(capsys, asked)["tables"]["kernels"]
    assert kernels["truncated"] and kernels["total"] > 2
    assert [set(row) for row in kernels["rows"]] == [{"key", "name", "share"}] * 2
    printed = {}
    for form in ("--csv", "--md", "--no-pager"):
        assert main([*shlex.split(asked), form]) == 0
        printed[form] = capsys.readouterr().out
    assert printed["--csv"].splitlines()[0] == "name,share"
    assert len(printed["--csv"].splitlines()) == 3
    assert "| name | share |" in printed["--md"]
    assert kernels["rows"][0]["name"][:12] in printed["--no-pager"]
    least = document(capsys, "show last --section kernels --min-share 2%")["tables"]["kernels"]
    assert least["truncated"] and all(row["share"] >= 0.02 for row in least["rows"])
    assert main(["show", "last", "--fields", "shre"]) == 2
    assert "did you mean 'share'" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["kernels", "tree", "findings"])
def test_a_row_is_found_by_its_key(
    home: Path, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    rows = document(capsys, f"show last --section {section}")["tables"][section]["rows"]
    keys = [row["key"] for row in rows]
    assert len(set(keys)) == len(keys)
    assert [
        row["key"]
        for row in document(capsys, f"show last~1 --section {section} --top 9")["tables"][section][
            "rows"
        ]
    ] == keys[:9]
    row = rows[len(rows) // 2]
    found = document(capsys, f"show last --row {row['key']}")
    assert found["row"] == {name: cell for name, cell in row.items() if name != "key"}
    assert main(["show", "last", "--row", row["key"]]) == 0
    assert row["key"] in capsys.readouterr().out


def test_a_kernel_comes_with_what_else_names_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = document(capsys, "show last --section kernels")["tables"]["kernels"]["rows"]
    found = document(capsys, f"show last --row {rows[0]['key']}")
    related = found["tables"]["kernels"]["rows"]
    assert related and all(rows[0]["name"] in row.values() for row in related)
    assert rows[0]["key"] not in [row["key"] for row in related]
    assert main(["show", "last", "--row", "kernels:none"]) == 2
    assert "no row kernels:none" in capsys.readouterr().err


def test_what_has_no_answer_is_not_an_empty_list(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obstacle = document(capsys, "show last --section nsys")["cannot_answer"]
    assert obstacle["reason"] == "the nsys pass was not asked for"
    assert obstacle["command"].startswith("sysbench-tui run ")
    assert obstacle["command"].endswith("--passes nsys")
    empty = document(capsys, "show last --section oom")
    assert (empty["rows"], empty["total"], empty["truncated"]) == ([], 0, False)
    obstacle = document(capsys, f"inspect {TRACE} --section memory", code=2)["cannot_answer"]
    assert "no memory" in obstacle["reason"]
    assert obstacle["command"] == "sysbench-tui watch --memory 10:1 -- COMMAND"


BRIEF = {
    "show last": {"figures", "findings", "missing"},
    f"inspect {TRACE}": {"figures", "findings", "missing"},
    f"show {TRACE}": {"figures", "findings", "missing"},
    f"inspect {RANKS}": {"figures", "numbers", "tables", "findings"},
    f"compare {IDS[0]} {IDS[1]}": {"figures", "numbers", "tables", "next"},
    f"compare {TRACE} {RANKS / 'rank1.json.gz'}": {"figures", "numbers", "tables", "missing"},
    f"compare {IDS[0]} {IDS[1]} --gate 3%": {"figures", "numbers", "tables", "next"},
    "estimate tiny": {"figures", "numbers", "tables"},
    "estimate cs336-2025/2.7B --card h100 batch=64": {"figures", "numbers", "tables"},
    "estimate tiny --fit batch --capacity 1GiB": {"figures", "numbers", "tables"},
    "estimate tiny --savings": {"figures", "numbers", "tables"},
}
"""Commands with what their summary must not lack."""


@pytest.mark.parametrize("line", BRIEF)
def test_a_brief_stays_within_its_limits(
    home: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    words = shlex.split(line)
    code = 4 if "--gate" in words else 0  # one process each decides nothing
    assert main([*words, "--brief", "--json"]) == code
    text = capsys.readouterr().out
    found = check(words[0], text)
    assert len(text.encode()) <= 4096
    assert all(found[name] for name in BRIEF[line]), line
    assert all({"key", "severity", "verdict", "numbers"} <= row.keys() for row in found["findings"])
    assert main([*words, "--brief"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert 3 < len(lines) <= 30
    assert all(f"missing {name}: " in "\n".join(lines) for name in found["missing"])
    if words[0] in ("show", "compare"):
        assert found["figures"][0] in "\n".join(lines)
