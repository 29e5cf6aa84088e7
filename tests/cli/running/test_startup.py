"""What the command line does before it does anything: help, version, imports."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.fields import FIELDS
from sysbench.tui import commands
from sysbench.tui.cli import main
from sysbench.tui.commands.registry import COMMANDS, Command

HEAVY = {"textual", "torch", "pandas", "numpy", "rich", "psutil", "pynvml"}


def modules_after(*words: str) -> set[str]:
    """Names of the modules that a command line has imported by its end."""
    code = (
        "import sys\n"
        "from sysbench.tui.cli import main\n"
        f"try: main({[*words]!r})\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    assert not HEAVY & modules_after(*words, "--help")


def test_only_the_chosen_command_is_imported() -> None:
    loaded = modules_after("stop", "--help")
    assert "sysbench.tui.commands.stop" in loaded
    assert "sysbench.tui.commands.run" not in loaded
    assert "sysbench.tui.commands.study" not in loaded


def test_every_module_with_a_parser_is_a_command() -> None:
    """A module that no row names could not be called; a row without a module would fail."""
    prefix = f"{commands.__name__}."
    modules = [
        import_module(info.name)
        for info in walk_packages(commands.__path__, prefix)
        if not info.ispkg
    ]
    with_parsers = {module.__name__ for module in modules if hasattr(module, "add_arguments")}
    assert with_parsers == {command.load().__name__ for command in COMMANDS.values()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_the_function_that_runs_a_command_exists(command: Command) -> None:
    module, _, function = (command.main or f"{command.name}:main").partition(":")
    assert callable(getattr(import_module(f"{commands.__name__}.{module}"), function))


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
    assert "\nexit codes" in text and "130" in text


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f" {name} {command.summary}" in text for name, command in COMMANDS.items())


def test_run_help_lists_every_key_of_a_spec(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert all((f"\n  {field.name}" in text) == field.is_typed for field in FIELDS)
    assert "batch=4" in text


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])
    assert exit_info.value.code == 0
    assert re.fullmatch(r"sysbench-tui 0\.\S+ \(torch \d\S+\)\n", capsys.readouterr().out)


def test_version_includes_that_of_torch_without_importing_it() -> None:
    assert not (HEAVY - {"psutil", "pynvml"}) & modules_after("--version")


@pytest.mark.parametrize("words", [["estimate"], ["list"], ["show", "last"], ["compare", "last"]])
def test_figures_are_printed_without_what_computes_them(
    words: list[str], gpu_run: RunDirectory
) -> None:
    last = [gpu_run.id] if words[0] == "compare" else []
    assert not {"numpy", "pandas", "textual", "torch"} & modules_after(*words, *last)


def test_workstation_without_a_terminal_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "sysbench-tui run" in capsys.readouterr().err
