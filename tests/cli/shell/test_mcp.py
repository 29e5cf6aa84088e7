"""`mcp` as a client sees it: every tool is called, and hostile arguments stay arguments."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sysbench.core.tables.brief import MAX_BYTES
from sysbench.tui.cli import main
from sysbench.tui.commands.mcp import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, NO_TOOLS, tools_of
from sysbench.tui.commands.registry import COMMANDS
from tests.cli.shell.test_contract import IDS, RANKS, TRACE, check, home

__all__ = ["home"]

PROGRAM = [sys.executable, "-P", "-m", "sysbench.tui.cli", "mcp"]
Call = tuple[str, dict[str, Any]]


def answers(lines: Iterable[object], *options: str) -> list[dict[str, Any]]:
    """Send requests, or bytes as they are, and return the responses in the order of their ids."""
    sent = b"".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
    )
    ended = subprocess.run([*PROGRAM, *options], input=sent, capture_output=True, check=True)
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    return sorted(found, key=lambda one: -1 if one["id"] is None else one["id"])


def request(number: int, method: str, **parameters: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}


def called(calls: Sequence[Call], *options: str) -> list[tuple[str, bool]]:
    """Return the text of each call, and whether it is an error."""
    lines = [
        request(number, "tools/call", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(calls)
    ]
    results = [answer["result"] for answer in answers(lines, *options)]
    assert all(len(result["content"]) == 1 for result in results)
    texts = [(result["content"][0]["text"], result["isError"]) for result in results]
    assert all(len(text.encode()) <= MAX_ANSWER_BYTES for text, _ in texts)
    return texts


READING: list[Call] = [
    ("list", {}),
    ("show", {"run": "last"}),
    ("inspect", {"file": str(TRACE)}),
    ("inspect", {"file": str(RANKS)}),
    ("compare", {"a": IDS[0], "b": IDS[1]}),
    ("estimate", {"words": ["tiny", "batch=2"], "card": "h100"}),
    ("top", {"limit": 2}),
    ("doctor", {}),
    ("schema", {"name": "list"}),
]


def test_a_client_lists_and_calls_every_tool_that_reads(home: Path) -> None:
    hello = request(0, "initialize", protocolVersion="2025-06-18", capabilities={})
    started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    first, pong, listed = answers([hello, started, request(1, "ping"), request(2, "tools/list")])
    assert first["result"]["protocolVersion"] == "2025-06-18"
    assert first["result"]["serverInfo"]["name"] == "sysbench-tui"
    assert pong["result"] == {}
    tools = {tool["name"]: tool for tool in listed["result"]["tools"]}
    assert {*tools} == {name for name, _ in READING}
    for name, arguments in READING:
        Draft202012Validator.check_schema(tools[name]["inputSchema"])
        Draft202012Validator(tools[name]["inputSchema"]).validate(arguments)
        assert tools[name]["annotations"]["readOnlyHint"]
    for (name, _), (text, is_error) in zip(READING, called(READING), strict=True):
        assert not is_error, text
        check(name, text)
        assert "subject" not in text or len(text.encode()) <= MAX_BYTES


def test_rows_are_asked_for_as_on_the_command_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"run": "last", "section": "kernels", "top": 2, "fields": "name,share"}
    whole = {"run": "last", "section": "kernels"}
    (rows, _), (cut, _) = called([("show", asked), ("show", whole)])
    words = "show last --section kernels --top 2 --fields name,share --json"
    assert main(shlex.split(words)) == 0
    assert json.loads(rows) == json.loads(capsys.readouterr().out)
    document = json.loads(cut)
    assert document["truncated"] and len(cut) < document["bytes"]
    program, *rest = shlex.split(document["rest"])
    assert program == "sysbench-tui" and main(rest) == 0
    assert len(capsys.readouterr().out.encode()) == document["bytes"]


def test_only_what_reads_is_offered_without_allow_run() -> None:
    every = tools_of(allow_run=True)
    assert {tool.words[0] for tool in every.values()} == {*COMMANDS} - {*NO_TOOLS}
    offered = {name: {*tool.arguments} for name, tool in tools_of(allow_run=False).items()}
    assert not {"run", "ab", "watch", "study", "gate", "rm", "export"} & offered.keys()
    # An option that is new here must not write, measure, or start a program.
    rows = {"top", "fields", "min_share"}
    of_files = {"device", "step", "steps", "capture", "depth", "match", "section", "brief"}
    assert offered == {
        "list": rows | {"words", "limit", "trash"},
        "show": rows | of_files | {"run", "row"},
        "inspect": rows | of_files | {"file", "peak", "memory_limit"},
        "compare": rows | {"a", "b", "brief", "depth", "min", "gate", "smallest"},
        "estimate": rows
        | {"words", "model", "context", "precision", "batch", "compile", "set", "memory_limit"}
        | {"exact", "phase", "world", "rank", "card", "capacity", "capability", "peak", "fit"}
        | {"table", "plan", "savings", "block_size", "brief"},
        "top": {"once", "limit"},
        "doctor": set(),
        "schema": {"name"},
    }


def test_hostile_names_are_refused_with_the_sentence_of_the_command_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    Path("link").symlink_to("/dev/zero")
    Path("a\nb\x1b[31m.json").write_text("no trace")
    names = [
        "pipe",
        "link",
        "/dev/zero",
        "a\nb\x1b[31m.json",
        "-o",
        "--merged=out.json",
        "; touch x",
    ]
    before = sorted(Path.cwd().rglob("*"))
    texts = called([("inspect", {"file": name}) for name in names])
    for name, (text, is_error) in zip(names, texts, strict=True):
        assert is_error
        assert main(["inspect", "--json", "--brief", "--", name]) == 2
        assert text == capsys.readouterr().err.strip()
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_file_is_read_by_any_name(home: Path) -> None:
    shutil.copy(TRACE, "-o")
    Path("link.json").symlink_to(TRACE)
    odd = [{"file": "-o"}, {"file": "link.json"}]
    for text, is_error in called([("inspect", one) for one in odd]):
        assert not is_error and check("inspect", text)["figures"]


def test_arguments_that_the_command_line_lacks_are_refused(home: Path) -> None:
    Path("net.py").write_text("open('imported', 'w')\ndef make():\n    raise SystemExit\n")
    Path("spec.toml").write_text('model = "net.py:make"\n')
    calls: list[tuple[Call, str]] = [
        (("compare", {"a": "last", "b": "last", "output": "x.html"}), "output = 'x.html'"),
        (("inspect", {"file": str(RANKS), "merged": "all.json"}), "merged = 'all.json'"),
        (("estimate", {"words": ["tiny"], "python": "/bin/true"}), "python = '/bin/true'"),
        (("estimate", {"words": ["net.py:make"]}), "mcp --allow-run"),
        (("estimate", {"words": ["spec.toml"], "exact": True}), "mcp --allow-run"),
        (("estimate", {"set": ["model=net.py:make"]}), "mcp --allow-run"),
        (("doctor", {"noise": True}), "noise"),
        (("show", {"run": "a\0b"}), "without NUL"),
        (("show", {"run": "x" * 100_000}), "65536 bytes"),
        (("show", {"run": ["last"]}), "a text or a number"),
        (("inspect", {"file": str(TRACE), "brief": "yes"}), "true or false"),
        (("show", {"run": "last", "sectoin": "tree"}), "did you mean 'section'"),
        (("show", {"run": "last", "section": "kernelz"}), "did you mean 'kernels'"),
        (("show", {}), "the following arguments are required: RUN"),
    ]
    for (call, reason), (text, is_error) in zip(
        calls, called([call for call, _ in calls]), strict=True
    ):
        assert is_error and reason in text, (call, text)
    assert sorted(os.listdir()) == ["net.py", "spec.toml"]


def test_messages_that_are_no_requests() -> None:
    deep = b"[" * 100_000 + b"\n"
    sent = [
        b'"\\ud800"\n',
        deep,
        b"[1]\n",
        b"\n",
        b'{"id": 1}\n',
        b"x" * (2 * MAX_REQUEST_BYTES) + b"\n",
    ]
    refused = answers([*sent, request(1, "resources/list"), request(2, "tools/call", name="rm")])
    codes = [answer["error"]["code"] for answer in refused]
    assert codes == [-32700, -32700, -32600, -32600, -32600, -32601, -32602]
    asked = request(1, "initialize", protocolVersion="1999-01-01")
    assert answers([asked])[0]["result"]["protocolVersion"] == "2025-11-25"


def test_with_allow_run_it_measures_and_deletes(home: Path) -> None:
    shown = [sys.executable, "-c", "print(1)"]
    gate = {"name": "main", "run": IDS[1]}
    found = called([("baseline_save", {"name": "main", "run": IDS[0]})], "--allow-run")
    calls: list[Call] = [
        ("watch", {"command_words": shown}),
        ("gate", gate),
        ("ab", {"a": "-x", "b": "last"}),
        ("rm", {"runs": [IDS[0]], "force": True}),
    ]
    found += called(calls, "--allow-run")
    saved, watched, judged, dashed, removed = found
    assert check("baseline", saved[0])["name"] == "main"
    assert "subject" in watched[0]
    assert check("gate", judged[0])["gate"]["exit_code"] == 4  # one process each decides nothing
    assert dashed[1] and "does not begin with a dash" in dashed[0]
    assert check("rm", removed[0])["rows"] == [{"id": IDS[0]}]
    assert not (home / "runs" / IDS[0]).exists()


def test_a_call_is_cancelled(home: Path) -> None:
    code = "import time; open('began', 'w').close(); time.sleep(600)"
    call = request(
        7, "tools/call", name="watch", arguments={"command_words": [sys.executable, "-c", code]}
    )
    with subprocess.Popen(
        [*PROGRAM, "--allow-run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for line in (call, request(8, "ping")):
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 8  # not after the call
        while not Path("began").exists():
            time.sleep(0.05)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        process.stdin.write(json.dumps(cancel).encode() + b"\n")
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait() == 0


def test_a_signal_ends_the_server_and_its_calls(home: Path) -> None:
    code = "import time; open('began', 'w').close(); time.sleep(600)"
    arguments = {"command_words": [sys.executable, "-c", code]}
    with subprocess.Popen(
        [*PROGRAM, "--allow-run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        call = request(1, "tools/call", name="watch", arguments=arguments)
        process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        while not Path("began").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
