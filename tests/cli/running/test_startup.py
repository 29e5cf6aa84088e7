"""What the command line does before it does anything: help, version, imports."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.fields import FIELDS
from sysbench.tui import commands
from sysbench.tui.cli import main
from sysbench.tui.commands.registry import COMMANDS, Command

HEAVY = {"textual", "torch", "pandas", "numpy", "rich", "psutil", "pynvml"}


MODULES_AFTER = """
import os, sys
from sysbench.tui.cli import main
output = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for words in {lines}:
    if not os.fork():
        try: main(words)
        except SystemExit: pass
        os.write(output, (" ".join(sys.modules) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


def modules_after_each(lines: Sequence[Sequence[str]]) -> list[set[str]]:
    """Names of the modules that each command line has imported by its end, in copies of a process
    that has imported the program."""
    code = MODULES_AFTER.format(lines=[[*words] for words in lines])
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    found = [set(line.split()) for line in result.stdout.splitlines()]
    assert len(found) == len(lines), result.stderr
    return found


def modules_after(*words: str) -> set[str]:
    (found,) = modules_after_each([words])
    return found


def test_help_loads_nothing_heavy() -> None:
    lines = [["--help"], *([command, "--help"] for command in COMMANDS)]
    for words, modules in zip(lines, modules_after_each(lines), strict=True):
        assert not HEAVY & modules, words


def test_only_the_chosen_command_is_imported() -> None:
    loaded = modules_after("stop", "--help")
    assert "sysbench.tui.commands.measuring_options" in loaded
    assert "sysbench.tui.commands.reading_options" not in loaded
    assert "sysbench.tui.commands.job_actions" not in loaded


def test_every_function_that_declares_arguments_is_of_a_command() -> None:
    """One that no row names could not be called; a row without one would fail."""
    prefix = f"{commands.__name__}."
    modules = [
        import_module(info.name)
        for info in walk_packages(commands.__path__, prefix)
        if not info.ispkg
    ]
    declaring = sorted(
        (module.__name__.removeprefix(prefix), name.removeprefix("declare_"))
        for module in modules
        for name in vars(module)
        if name.startswith("declare_")
    )
    rows = ((command.options or command.name, command.name) for command in COMMANDS.values())
    assert declaring == sorted(rows)


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


@pytest.mark.parametrize("words", ["--version", "--help", "run --help", "list", "completions bash"])
@pytest.mark.parametrize("options", [(), ("-u",)], ids=["buffered", "unbuffered"])
def test_output_that_nobody_takes(
    words: str, options: tuple[str, ...], sysbench_home: Path
) -> None:
    """A reader that has left is no error; a full disk is one."""
    command = [sys.executable, "-P", *options, "-m", "sysbench.tui.cli", *words.split()]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONUNBUFFERED"}
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed, open("/dev/full", "wb") as full:
        for stdout, code, said in ((closed, 0, ""), (full, 1, os.strerror(errno.ENOSPC))):
            done = subprocess.run(
                command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
            )
            assert done.returncode == code
            assert done.stderr == (said and f"sysbench-tui: {said}\n")


@pytest.mark.parametrize("words", ["show RUN", "list"])
def test_100_mib_are_enough_to_read_a_run(tiny_run: RunDirectory, words: str) -> None:
    code = (
        "import resource, sys, psutil; from sysbench.tui.cli import main\n"
        "limit = psutil.Process().memory_info().vms + 100 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        f"sys.exit(main({words.replace('RUN', tiny_run.id).split()!r}))"
    )
    environment = os.environ | {"SYSBENCH_HOME": str(tiny_run.path.parents[1])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lack_of_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(Command, "run", fail)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith("sysbench-tui: out of memory: ")


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
