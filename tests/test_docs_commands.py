"""Parse every command in the documents, and run those that only read, and the examples.

Commands that measure take seconds to hours and may need a GPU or a cluster: the suite checks their
words, keys, kinds of files and names. `make test-documents` runs them too, with small models and
few steps.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.own_model import is_own
from sysbench.core.storage import study_files
from sysbench.core.tables.sections import SECTIONS
from sysbench.tui.cli import main
from sysbench.tui.commands.registry import parse_arguments
from sysbench.tui.commands.spec_arguments import asked_spec, changed_spec, parse_settings
from tests.cli.shell.test_contract import check as check_document
from tests.imported_files import write_snapshot, write_trace

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "skills").rglob("*.md")]
)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = "sysbench-tui"
EXAMPLE = re.compile(r"\bexamples(?:/[\w-]+)+\.\w+")
ENDS_OF_A_COMMAND = {"|", ">", "&&", ";"}
READING = {"list", "show", "estimate", "export", "compare", "completions", "baseline"}
"""Commands that start no process and change no run."""
STORED = ROOT / "tests" / "fixtures" / "tiny-cpu"
RUNS = ("20261121-120000-tiny-cpu0", "20261121-120100-tiny-cpu0")
NOT_HERE = {"RUN", "RUN_A", "RUN_B", "RUN_ID", "1204", "1211", "--plan"}
"""Names of the reader's own runs, and an option that takes minutes."""


def commands_in(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in a page's shell blocks, without the program's name."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if PROGRAM in words:
                rest = words[words.index(PROGRAM) + 1 :]
                ends = [index for index, word in enumerate(rest) if word in ENDS_OF_A_COMMAND]
                yield rest[: min(ends, default=len(rest))]


COMMANDS = sorted({tuple(words) for page in PAGES for words in commands_in(page) if words})


@pytest.fixture
def desk(sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the files that commands name, and a home with two runs."""
    for name in RUNS:
        shutil.copytree(STORED, sysbench_home / "runs" / name)
        run = RunDirectory(sysbench_home / "runs" / name)
        for path in (run.header_path, run.record_path):
            path.write_text(path.read_text().replace(RUNS[0], name))
        run.trace_path.parent.mkdir()
        run.trace_path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    folder = tmp_path / "desk"
    folder.mkdir()
    for name in ("before.json", "after.json"):
        write_trace(folder / name, [[("gemm", 400)]])
    for name in ("before.py", "after.py", "train.py"):
        (folder / name).write_text("print('done')\n")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "mine.toml").write_text('model = "tiny"\n')
    monkeypatch.chdir(folder)
    return folder


def prepare_files(desk: Path) -> None:
    """Add ranks, a trace and a snapshot, which take longer to write."""
    shutil.copytree(STORED.parent / "ranks", desk / "ranks")
    shutil.copytree(desk / "ranks", desk / "traces")
    shutil.copy(desk / "ranks" / "rank0.json.gz", desk / "trace.json.gz")
    write_snapshot(desk / "snapshot.pickle", [(2**20, [("model.py", 1, "forward")])])


def check(arguments: argparse.Namespace) -> None:
    """Check the spec, and names of studies and sections, which the parser does not."""
    if arguments.command in ("run", "estimate"):
        asked_spec(arguments)
    if settings := getattr(arguments, "settings_b", None):
        changed_spec({}, parse_settings(settings))
    if section := getattr(arguments, "section", None):
        assert section in SECTIONS or arguments.command == "inspect"
    if arguments.command == "study":
        name = arguments.target if arguments.name == "show" else arguments.name
        assert name in {*study_files(), "list"}


def test_every_command_of_the_documents_parses(desk: Path) -> None:
    assert len(COMMANDS) > 60
    for words in COMMANDS:
        try:
            check(parse_arguments(words))
        except SystemExit as end:
            pytest.fail(f"{PROGRAM} {shlex.join(words)}: {end}")


def is_run_here(words: tuple[str, ...]) -> bool:
    return (
        words[0] in READING
        and not NOT_HERE & {*words}
        and not {"--world", "--fit"} <= {*words}  # dozens of plays
        and not any(is_own(word) for word in words)
        and not any(word.endswith((".gz", ".pickle", ".sqlite")) for word in words)
    )


@pytest.mark.usefixtures("one_process")
def test_every_command_that_only_reads_prints_its_answer(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [words for words in COMMANDS if is_run_here(words)]
    assert len(run) > 15
    for words in run:
        code = main(list(words))
        printed = capsys.readouterr()
        assert code == 0 and not printed.err, f"{PROGRAM} {shlex.join(words)}: {printed.err}"
        assert printed.out, words


def test_every_example_that_is_named_is_shipped() -> None:
    named = {
        match[0] for page in PAGES for match in EXAMPLE.finditer(page.read_text(encoding="utf-8"))
    }
    assert named == {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "examples").rglob("*.*")
        if "__pycache__" not in path.parts
    }


SKILL = ROOT / "skills" / "sysbench-tui" / "SKILL.md"


def test_the_skill_says_when_to_use_it() -> None:
    head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL.read_text("utf-8"))
    assert head and head[1] == SKILL.parent.name
    assert 100 < len(head[2]) <= 1024
    assert len((ROOT / "AGENTS.md").read_text("utf-8").splitlines()) < 80


@pytest.mark.usefixtures("one_process")
def test_every_command_for_agents_runs(
    desk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but `ab` of two specs, which takes minutes, and those of the test above."""
    prepare_files(desk)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    found = {tuple(words) for page in (ROOT / "AGENTS.md", SKILL) for words in commands_in(page)}
    of_specs = {words for words in found if words[0] == "ab" and "--" not in words}
    assert len(found) > 20 and len(of_specs) == 2
    measuring = {words for words in found - of_specs if words[0] in ("run", "watch", "ab")}
    for words in sorted(words for words in found - of_specs - measuring if not is_run_here(words)):
        assert main(list(words)) == 0, words
        assert capfd.readouterr().out, words
    for words in sorted({_shortened(words) for words in measuring}):
        assert main(list(words)) == 0, words
        printed = capfd.readouterr()
        assert printed.out and (words[0] == "ab" or "--json" in words or printed.err), words
        if "--json" in words:
            answered = check_document(words[0], printed.out.removeprefix("done\n"))
            assert answered["subject"] and len(printed.out.encode()) <= 4096
            if words[0] == "ab":
                assert answered["figures"] and answered["tables"]["sides"]
                assert answered["numbers"].keys() >= {"verdict", "change"}


def _shortened(words: tuple[str, ...]) -> tuple[str, ...]:
    if words[0] == "run":
        return tuple(dict.fromkeys([*words, *SHORT]))
    return (
        ("ab", "--metric", "wall", "--smallest", "80%", *words[1:]) if words[0] == "ab" else words
    )


SHORT = ("steps=2", "warmup=1", "--passes", "timing")


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "examples/nano.py:make", "device=cuda", "--capacity", "24GiB"),
        ("estimate", "hf:examples/llama-tiny/config.json"),
        ("run", "examples/nano.py:make", "model.layers=1", "batch=2", "context=16", *SHORT),
        ("run", "examples/base.toml", *SHORT),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("one_process")
def test_the_examples_run(
    words: tuple[str, ...], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[1].startswith("hf:"):
        pytest.importorskip("transformers")
    code = main(list(words))
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert ("Fits" if words[0] == "estimate" else "finished") in printed.out
