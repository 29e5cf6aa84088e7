"""What the command line does before it does anything: help, version, imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sysbench.core.spec.fields import FIELDS
from sysbench.tui.cli import main

COMMANDS = ("run", "estimate", "list", "show", "compare", "export", "attach", "stop", "doctor")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from sysbench.tui.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'textual', 'torch', 'pandas', 'numpy', 'rich', 'psutil', 'pynvml'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert f"examples:\n  sysbench-tui {command}" in text


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n    {command} " in text for command in COMMANDS)


def test_run_help_lists_every_key_of_a_spec(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert all(f"\n  {field.name}" in text for field in FIELDS)
    assert "batch=4" in text


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("sysbench-tui 0.")


def test_workstation_without_a_terminal_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "sysbench-tui run" in capsys.readouterr().err
