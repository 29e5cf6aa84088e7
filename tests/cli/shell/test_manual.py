"""The manual page that `make man` makes."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from sysbench.tui.commands.registry import COMMANDS, parse_arguments

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def page() -> str:
    text: str = runpy.run_path(str(ROOT / "docs" / "make_man.py"))["manual_page"]()
    return text


def test_it_has_every_command_with_all_its_options(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *sections = re.split(r"^\.SS ", page, flags=re.MULTILINE)
    by_command = {section.partition(":")[0]: section for section in sections}
    assert list(by_command) == [*COMMANDS]
    for command, section in by_command.items():
        with pytest.raises(SystemExit):
            parse_arguments([command, "--help"])
        text = capsys.readouterr().out
        for option in re.findall(r"^  .*?(--[\w-]+)", text, flags=re.MULTILINE):
            # The option that prints this text is left out.
            assert option == "--help" or option.replace("-", r"\-") in section
    assert all("exit codes" in section for section in sections)


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not here")
def test_it_is_set_without_a_warning_and_nothing_is_lost(page: str) -> None:
    words = ["groff", "-man", "-ww", "-Tutf8", "-P-c", "-rLL=120n", "-K", "utf8"]
    done = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    # What begins with a dot or has a backslash would be taken for a request, and be gone.
    assert "sysbench-tui show last --section tree --match 'attention.*exp'" in done.stdout
    assert "source <(sysbench-tui completions bash)" in done.stdout
