"""The doctor's checks as lines."""

from __future__ import annotations

import re

import pytest

from sysbench.core.machine import doctor_checks as checks
from sysbench.core.machine.doctor_check import Check
from sysbench.tui.cli import main


def test_a_long_name_does_not_run_into_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sysbench_home: object
) -> None:
    found = [
        Check(name="GPU", status="ok", found="H100"),
        Check(
            name="activity counters",
            status="missing",
            found="GPM does not respond",
            costs="little",
            remedy="none",
        ),
    ]
    monkeypatch.setattr(checks, "examine", lambda: found)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = lines[0], lines[1]
    assert re.search(r"missing  activity counters +GPM does not respond$", second)
    assert first.index("H100") == second.index("GPM") == lines[2].index("costs: little")
