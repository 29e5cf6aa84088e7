"""Answer every question of the examination with commands alone."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from sysbench.tui.cli import main
from tests.exam.__main__ import ask, prepare, report
from tests.exam.desk import make_desk
from tests.exam.questions import QUESTIONS, is_right


def test_commands_answer_every_question(
    sysbench_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_desk(tmp_path / "desk", sysbench_home)
    monkeypatch.chdir(tmp_path / "desk")
    texts: dict[str, str] = {}
    for question in QUESTIONS:
        if question.command not in texts:
            main([*shlex.split(question.command), "--json"])
            texts[question.command] = capsys.readouterr().out
        found = question.find(json.loads(texts[question.command]))
        assert is_right(question, found), f"{question.name}: {found}, not {question.answer()}"
    assert len(QUESTIONS) == len({question.name for question in QUESTIONS}) >= 24


def test_wrong_answers_are_wrong() -> None:
    for question in QUESTIONS:
        right = question.answer()
        assert is_right(question, sorted(right) if isinstance(right, frozenset) else right)
        wrong: object = None if right is not None else 0.0
        assert not is_right(question, wrong), question.name
        if isinstance(right, int | float):
            assert not is_right(question, right * (1 + 2 * question.tolerance) + 1e-3 * abs(right))


PROGRAM = """
import json, subprocess, sys
asked = json.load(sys.stdin)
words = "sysbench-tui show last --brief --json".split()
found = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
longest = max(found["step"], key=lambda part: part["share"])["name"]
print(json.dumps({"answer": longest if "Which phase" in asked["question"] else 0}))
"""


def test_any_program_can_answer(tmp_path: Path) -> None:
    environment = prepare(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = shlex.join([sys.executable, str(tmp_path / "program.py")])
    chosen = [one for one in QUESTIONS if one.name in ("longest-phase", "no-nsys")]
    answers = [ask(one, command, tmp_path, environment) for one in chosen]
    assert [(one.is_right, one.commands) for one in answers] == [(True, 1), (False, 1)]
    assert all(1000 < one.read_bytes <= 4096 for one in answers)
    assert report(answers).startswith("1 of 2 answers are right, with 2 commands")
