"""Examine a program on files with known answers.

``python -m tests.exam`` asks the command line itself and writes docs/validation/exam.md;
``--answer-with COMMAND`` asks any program. It is started for each question in the folder with the
files, gets ``{"name", "question"}`` on standard input, and prints ``{"answer": …}``: a number, a
name, a list of names, or null if the files cannot answer. `sysbench-tui` is on its path, and what
it prints there is counted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from sysbench.core.storage import HOME_VARIABLE
from sysbench.tui.cli import main as run_command
from tests.cli.shell.test_contract import BRIEF, IDS, RANKS, READING, check
from tests.exam.desk import ROOT, make_desk
from tests.exam.questions import QUESTIONS, Question, is_right
from tests.imported_files import write_trace

PAGE = ROOT / "docs" / "validation" / "exam.md"
MARKS = {
    name: (f"<!-- {name} -->", f"<!-- end of {name} -->") for name in ("exam", "sizes", "large")
}
LOG_VARIABLE = "SYSBENCH_EXAM_LOG"
COUNTED = """#!/bin/sh
printed=$(mktemp)
{python} -P -m sysbench.tui.cli "$@" > "$printed"
code=$?
wc -c < "$printed" >> "${log}"
cat "$printed"
rm "$printed"
exit $code
"""
SECONDS = 600
LONG_STEPS, LONG_KERNELS = 100, 1000


class Answered(NamedTuple):
    question: Question
    given: object
    commands: int
    read_bytes: int

    @property
    def is_right(self) -> bool:
        return is_right(self.question, self.given)


def prepare(folder: Path) -> dict[str, str]:
    """Make the folder, a home and a counted command; return the environment to answer in."""
    make_desk(folder / "desk", folder / "home")
    (folder / "bin").mkdir()
    counted = folder / "bin" / "sysbench-tui"
    counted.write_text(COUNTED.format(python=shlex.quote(sys.executable), log=LOG_VARIABLE))
    counted.chmod(0o755)
    path = f"{counted.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {HOME_VARIABLE: str(folder / "home"), LOG_VARIABLE: str(folder / "log"), "PATH": path}
    return {**os.environ, **own}


def ask(question: Question, command: str, folder: Path, environment: dict[str, str]) -> Answered:
    """Ask a program, or the command line itself if ``command`` is empty."""
    log = folder / "log"
    log.write_text("")
    words = shlex.split(command or f"sysbench-tui {question.command} --json")
    asked = json.dumps({"name": question.name, "question": question.text})
    ended = subprocess.run(
        words,
        input=asked,
        text=True,
        stdout=subprocess.PIPE,
        stderr=None if command else subprocess.DEVNULL,
        cwd=folder / "desk",
        env=environment,
        timeout=SECONDS,
        check=False,
    )
    given: object
    try:
        document = json.loads(ended.stdout)
        given = document["answer"] if command else question.find(document)
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        given = f"no answer: {error!r}"
    sizes = [int(line) for line in log.read_text().split()]
    return Answered(question, given, len(sizes), sum(sizes))


def report(answers: Sequence[Answered]) -> str:
    right = sum(one.is_right for one in answers)
    commands = sum(one.commands for one in answers)
    read = sum(one.read_bytes for one in answers)
    lines = [
        f"{right} of {len(answers)} answers are right, with {commands} commands and {read:,} bytes "
        f"read, {read // len(answers):,} a question.",
        "",
        "| question | right | commands | bytes read |",
        "|---|---|---:|---:|",
    ]
    for one in answers:
        mark = "yes" if one.is_right else f"no: {one.given}"
        lines.append(f"| {one.question.name} | {mark} | {one.commands} | {one.read_bytes:,} |")
    return "\n".join(lines)


def document_sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Print every document that only reads; yield command and bytes, each checked by its schema."""
    os.chdir(folder)
    steps = [[(f"kernel_{at % 50}", 5) for at in range(LONG_KERNELS)]] * LONG_STEPS
    long = write_trace(folder / "long.json", steps)
    views = ("", " --brief", " --section kernels", " --section steps", " --top 5")
    of_long = (f"inspect {long}{view}" for view in views)
    yield from document_bytes((*(f"{line} --brief" for line in BRIEF), *of_long, *READING))


def document_bytes(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Run commands with ``--json``; yield each and its bytes, checked by its schema."""
    for line in lines:
        words = shlex.split(line)
        printed, ignored = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with redirect_stdout(printed), redirect_stderr(ignored):
            run_command([*words, "--json"])
        printed.seek(0)
        text = printed.read()
        check(words[0], text)
        yield shlex.join(words), len(text.encode())


def sizes_table(sizes: Sequence[tuple[str, int]], folder: Path) -> str:
    shown = {f"{folder}/": "", f"{RANKS.parent}/": "", IDS[0]: "RUN", IDS[1]: "RUN_B"}
    lines = ["| document | bytes |", "|---|---:|"]
    for command, size in sizes:
        for text, short in shown.items():
            command = command.replace(text, short)
        lines.append(f"| `{command}` | {size:,} |")
    return "\n".join(lines)


def write(name: str, text: str) -> None:
    start, end = MARKS[name]
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(start)
    PAGE.write_text(f"{head}{start}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exam", description=__doc__)
    parser.add_argument("--answer-with", metavar="COMMAND", default="", help="ask this program")
    command = parser.parse_args().answer_with
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = prepare(folder)
        answers = [ask(question, command, folder, environment) for question in QUESTIONS]
        text = report(answers)
        print(text)
        if not command:
            write("exam", text)
            os.environ |= environment
            write("sizes", sizes_table([*document_sizes(folder)], folder))
    return 0 if all(one.is_right for one in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
