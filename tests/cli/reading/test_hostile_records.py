"""Records with escape sequences in every text: commands print none of them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.compare.compared_records import verdict_of
from sysbench.core.export.exports import FILE_EXPORTS
from sysbench.core.export.text_formats import verdict_as_markdown
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.cells import literal
from sysbench.core.tables.sections import SECTIONS
from sysbench.tui.cli import main
from tests.imported_files import write_trace

ATTACK = "\x1b]52;c;aGk=\x07\x9b31m\u202e\r[bold]"
"""A clipboard written, a colour by one character, text turned round, a line over another."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the strings of a JSON value stand."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))
        elif isinstance(inner, str):
            yield (*path, key)


def attacking(record: Record) -> Record:
    """The record with the attack at the end of every text that may be any text."""
    data = json.loads(msgspec.json.encode(record))
    for *path, key in places(data):
        holder = data
        for step in path:
            holder = holder[step]
        before, holder[key] = holder[key], holder[key] + ATTACK
        if path[:1] not in (["spec"], ["environment"], ["missing"]):
            try:
                msgspec.convert(data, Record)
            except msgspec.ValidationError:  # one of some words
                holder[key] = before
    data["environment"]["missing"] |= {f"name{ATTACK}": "why"}
    data["environment"] |= {f"group{ATTACK}": {f"key{ATTACK}": f"value{ATTACK}"}}
    return msgspec.convert(data, Record)


@pytest.fixture(scope="module")
def hostile_home(tiny_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("hostile")
    name = f"20260101-000000-x{ATTACK}-0000"
    (home / "runs" / name).mkdir(parents=True)
    run = RunDirectory(home / "runs" / name)
    run.header_path.write_bytes(tiny_run.header_path.read_bytes())
    run.write_record(attacking(tiny_run.record()))
    return home


NAMES = [
    "20260101-000000-x; touch owned #-0000",
    "20260101-000000-$(touch owned)-0000",
    "20260101-000000-x' `touch owned` '-0000",
    "20260101-000000-x\n touch owned\n-0000",
    "-rf ~",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_is_printed_for_copying_names_the_run_and_does_nothing_else(
    name: str, tiny_run: RunDirectory, sysbench_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(shutil.copytree(tiny_run.path, sysbench_home / "runs" / name))
    record = run.record()
    assert main(["show", str(run.path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " export " in line]
    assert lines
    for line in lines:
        words = shlex.split(line.partition("sysbench-tui ")[2], comments=True)
        # A line break in a name is shown as such, so that it ends no line.
        assert words[:2] == ["export", literal(name)]
    command = verdict_of(record, record).next.partition("`")[2].rpartition("`")[0]
    assert shlex.split(command) == ["sysbench-tui", "ab", name, name]


def test_no_name_ends_the_block_of_commands_in_markdown(tiny_run: RunDirectory) -> None:
    record = tiny_run.record()
    verdict = verdict_of(record, record)
    command = "sysbench-tui ab 'a\n```\n<script>alert(1)</script>' b"
    text = verdict_as_markdown(verdict, [], commands=[command])
    assert text.splitlines()[-3:] == ["```sh", literal(command), "```"]


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "--json"],
        ["show", "last"],
        ["show", "last", "--json"],
        ["stop", "last"],
        *(
            ["export", "last", kind, "-o", f"{{folder}}/a.{kind}"]
            for kind in ("md", "csv", "json", "html", "nsys")
        ),
        ["export", "last", "csv", "-o", "{folder}/tables"],
        *(["show", "last", "--section", name] for name in SECTIONS),
    ],
    ids=" ".join,
)
def test_nothing_that_is_printed_is_obeyed_by_a_terminal(
    words: list[str],
    hostile_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(hostile_home))
    assert_visible([word.format(folder=tmp_path) for word in words], tmp_path, capsys)


def texts_of(path: Path) -> list[str]:
    """The text of a file, or those of the parts of a bundle that a person may open."""
    if not zipfile.is_zipfile(path):
        return [path.read_text()]
    with zipfile.ZipFile(path) as bundle:
        parts = [bundle.read(name) for name in bundle.namelist() if name.endswith(".json")]
    return [part.decode() for part in parts]


def assert_visible(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command; return what it prints and writes into a folder, which is printable text."""
    assert main(words) in (0, 1)
    captured = capsys.readouterr()
    files = [path for path in folder.rglob("*") if path.is_file()]
    written = [text for path in files for text in texts_of(path)]
    texts = (captured.out, captured.err, *written)
    for text in texts:
        for line in text.split("\n"):
            assert line.isprintable(), line
    return "".join(texts)


@pytest.fixture(scope="module")
def hostile_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces and a home: the first command that reads a trace decodes it for all others."""
    folder = tmp_path_factory.mktemp("files")
    kernels = [(f"{MENTION}{ATTACK}\0{number}", 10 + number) for number in range(3)]
    write_trace(folder / f"a{ATTACK}.json", [kernels, kernels])
    write_trace(folder / f"b{ATTACK}.json", [kernels, kernels[:2]])
    return folder


@pytest.mark.parametrize(
    "words",
    [
        *(["inspect", "{file}", form] for form in ("--no-pager", "--csv", "--md", "--json")),
        *(["compare", "{file}", "{other}", form] for form in ("--csv", "--md", "--json")),
        *(["compare", "{file}", "{other}", "-o", f"{{out}}/c.{kind}"] for kind in ("md", "html")),
        ["inspect", "{file}", "--section", "kernels", "--csv"],
        *(["export", "{file}", kind, "-o", f"{{out}}/a.{kind}"] for kind in FILE_EXPORTS),
        ["export", "{file}", "csv", "-o", "{out}/tables"],
    ],
    ids=" ".join,
)
def test_no_name_of_an_imported_file_is_obeyed_by_a_terminal(
    words: list[str],
    hostile_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SYSBENCH_HOME", str(hostile_files / "home"))
    a, b = sorted(hostile_files.glob("*.json"))
    named = [word.format(file=a, other=b, out=tmp_path) for word in words]
    text = assert_visible(named, tmp_path, capsys)
    assert "octocat" in text


@pytest.mark.parametrize("form", ["--csv", "--md", "--json", "--no-pager"])
def test_a_file_of_a_review_is_visible(
    form: str,
    shared_data: Path,
    tmp_path: Path,
    sysbench_home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = shared_data / "cases" / "reliability" / "f4-csv-escapes.json"
    assert "52;c;aGVsbG8=" in assert_visible(["inspect", str(file), form], tmp_path / "x", capsys)


MENTION = "gemm@octocat #12 www.a.example https://b.example ftp://c.example `@all` c@d.example"


@pytest.mark.parametrize("words", [["inspect", "{file}", "--md"], ["export", "{file}", "md"]])
def test_no_name_mentions_anyone_or_links_in_markdown(
    words: list[str],
    tmp_path: Path,
    sysbench_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_trace(tmp_path / "trace.json", [[(MENTION, 10)], [(MENTION, 10)]])
    assert main([word.format(file=file) for word in words]) == 0
    text = capsys.readouterr().out
    if words[0] == "export":
        text = (tmp_path / "trace.json.md").read_text()
    prose = CODE.sub("", text)
    assert "octocat" in prose
    for alive in ("@", "#12", "www.", "://"):
        assert alive not in prose


CODE = re.compile(r"^```.*?^```$|(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL | re.MULTILINE)
"""Blocks and spans of code, in which nothing of Markdown is alive."""
