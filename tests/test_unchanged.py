"""Figures, names and keys of a stored run stay as earlier versions wrote them; words may change.

``tiny-cpu-written.zip`` holds the output of every section and export at an earlier version.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sysbench.tui.cli import main
from tests.envelope import content

FIXTURES = Path(__file__).parent / "fixtures"
RUN = "20261121-120000-tiny-cpu0"
WRITTEN = zipfile.ZipFile(FIXTURES / "tiny-cpu-written.zip")
FIGURE = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?!\w|\.\d)")
"""A figure with decimals: whole numbers also occur in words."""


@pytest.fixture
def frozen_home(sysbench_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FIXTURES / "tiny-cpu", sysbench_home / "runs" / RUN)
    monkeypatch.setenv("COLUMNS", "120")
    return sysbench_home


@pytest.mark.parametrize("name", WRITTEN.namelist())
def test_figures_names_and_keys_stay(
    name: str, frozen_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = WRITTEN.read(name).decode()
    text = written(name, tmp_path, capsys)
    if name.endswith("json"):
        stored = json.loads(expected)
        is_of_all = name in ("json", "export.json")
        found = json.loads(text) if is_of_all else content(text)
        # A file has null where nothing ran out of memory, which is an empty list.
        assert_contains(found or None if name == "oom.json" else found, stored)
    elif name.endswith("csv"):
        assert_contains(cells(text), cells(expected))
    else:
        assert not Counter(FIGURE.findall(expected)) - Counter(FIGURE.findall(text))


def cells(text: str) -> dict[str, str]:
    """Values of a tidy CSV by table, row and column."""
    return {", ".join(place): value for *place, value in csv.reader(text.splitlines())}


def assert_contains(value: Any, expected: Any) -> None:
    """Keys may be added, and words of a text may change: names have no spaces and may not."""
    match expected:
        case dict():
            for key, inner in expected.items():
                assert key in value
                assert_contains(value[key], inner)
        case list():
            assert len(value) == len(expected)
            for one, other in zip(value, expected, strict=True):
                assert_contains(one, other)
        case str() if " " in expected:
            assert isinstance(value, str)
        case _:
            assert value == expected


def written(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of the command that the name of a stored file encodes."""
    stem, _, ending = name.rpartition(".")
    if stem == "export":
        path = folder / name
        main(["export", RUN, ending, "-o", str(path)])
        return path.read_text()
    section = ["--section", stem] if stem else []
    wide = ["--wide"] if stem and ending == "txt" else []
    main(["show", RUN, *section, *wide, *(["--json"] if ending == "json" else [])])
    captured = capsys.readouterr()
    return captured.out + captured.err
