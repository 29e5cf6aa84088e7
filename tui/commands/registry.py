"""The registry of commands, and the parser of the command line.

The arguments of a command are added by `declare_NAME` in a module that imports what the parser
needs. The function that runs it may be in another one, so that ``--help`` needs neither rich nor
numpy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, cast

from sysbench.core.errors import InterpreterError
from sysbench.core.formatting import did_you_mean
from sysbench.tui.commands.arguments import (
    EXIT_CODES,
    GATE_CODES,
    PYTHON_HELP,
    READING_CODES,
    WORDS,
    add_flag,
    add_row_options,
    complete_with,
    examples,
    split_commands,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line.

    Attributes:
        summary: Its line in ``sysbench-tui --help``.
        options: Module in this folder with `declare_NAME`, which describes the command and adds its
            arguments, except ``--json`` (default: the module of its name).
        main: ``module:function`` in this folder that runs it (default: `main` of its module).
        has_workers: It starts processes that import torch, and accepts ``--python``.
        takes_commands: Words after ``--`` are commands of the user's.
        has_tables: Its tables can be cut, with `arguments.add_row_options`.
    """

    name: str
    summary: str
    options: str = ""
    main: str = ""
    has_workers: bool = False
    exit_codes: str = READING_CODES
    takes_commands: bool = False
    has_tables: bool = False

    def declare(self, parser: argparse.ArgumentParser) -> None:
        _load(f"{self.options or self.name}:declare_{self.name}")(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        return cast(int, _load(self.main or f"{self.name}:main")(arguments))


def _load(place: str) -> Callable[[Any], object]:
    module, _, name = place.partition(":")
    return cast(Callable[[Any], object], getattr(import_module(f".{module}", __package__), name))


STUDY_CODES = "exit codes: 0 every cell has a value, 1 some have none, 2 bad input, 130 cancelled"
OPTIONAL_GATE_CODES = f"without a gate 0 for any verdict;\n{GATE_CODES}"

MEASURING, READING = "measuring_options", "reading_options"

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "run",
            "measure a spec: one fresh process per pass, then the tables",
            options=MEASURING,
            main="job_actions:run_spec",
            has_workers=True,
            exit_codes=EXIT_CODES,
        ),
        Command(
            "estimate",
            "predict parameters, FLOPs and peak memory of a spec without running it",
            has_workers=True,
            has_tables=True,
        ),
        Command(
            "watch",
            "run a training command unchanged and record its steps",
            options=MEASURING,
            main="watch_actions:watch_command",
            exit_codes="exit codes: those of the command; 130 if it is interrupted",
        ),
        Command(
            "window",
            "trace the next steps of a watched command",
            options=MEASURING,
            main="watch_actions:trace_window",
        ),
        Command(
            "study",
            "run a grid of specs and print its tables; can be stopped and resumed",
            options=MEASURING,
            main="study_actions:run_action",
            has_workers=True,
            exit_codes=STUDY_CODES,
        ),
        Command(
            "list",
            "list all runs of this machine, newest first",
            options=READING,
            main="run_list:print_runs",
            has_tables=True,
        ),
        Command(
            "show",
            "print the report of a run, or one section in full",
            options=READING,
            main="report_sections:show",
            has_tables=True,
        ),
        Command(
            "compare",
            "compare two runs: faster, slower, same, or not decidable",
            options=READING,
            main="comparison_report:print_comparison",
            exit_codes=OPTIONAL_GATE_CODES,
            has_tables=True,
        ),
        Command(
            "ab",
            "measure two specs or commands alternately until the comparison is decided",
            options=MEASURING,
            main="ab_report:measure",
            has_workers=True,
            takes_commands=True,
            exit_codes=OPTIONAL_GATE_CODES,
            has_tables=True,
        ),
        Command(
            "baseline",
            "save a run's record as a reference for later runs",
            options=MEASURING,
            main="gate_actions:change_baselines",
        ),
        Command(
            "gate",
            "compare a run with a baseline; the exit code is for CI",
            options=MEASURING,
            main="gate_actions:judge",
            has_workers=True,
            exit_codes=GATE_CODES,
        ),
        Command("export", "export a run's artifacts and tables"),
        Command(
            "serve",
            "serve a run's page to the browser on your own machine",
            options="web",
            main="web:serve_page",
        ),
        Command("web", "serve the workstation to the browser on your own machine"),
        Command(
            "inspect",
            "analyse a Chrome trace, CUDA memory snapshot or nsys export",
            options=READING,
            main="inspect_report:show_file",
            exit_codes="exit codes: 0 shown, 2 not readable or no such section, 130 cancelled",
            has_tables=True,
        ),
        Command(
            "attach",
            "follow a live run until it ends, then print its report",
            options=MEASURING,
            main="job_actions:attach",
            exit_codes="exit codes: those of the run; 130 if you stop following it",
        ),
        Command(
            "stop",
            "stop a live run; finished passes are kept",
            options=MEASURING,
            main="job_actions:stop",
        ),
        Command(
            "rm",
            "move runs to the trash; --restore brings them back",
            options=READING,
            main="run_list:remove",
        ),
        Command(
            "top",
            "show GPUs, processes and the host now, and what ran beside the last run",
            options=READING,
            main="machine_report:show_machine",
        ),
        Command(
            "doctor",
            "check the environment and explain what is missing",
            has_workers=True,
            exit_codes=EXIT_CODES,
        ),
        Command("completions", "print the completion script for bash, zsh or fish"),
        Command(
            "schema",
            "print the JSON Schema of what a command prints with --json",
            options=READING,
            main="document_types:print_schema",
        ),
        Command(
            "mcp",
            "answer an assistant over the Model Context Protocol on stdin and stdout",
            options=READING,
            main="mcp:serve_tools",
        ),
    )
}
"""By name, in the order of the help."""


class _Version(argparse.Action):
    """Prints the versions of this program and of torch, without importing torch."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # lazy: takes 50 ms

        from sysbench.core.machine.devices import torch_facts  # lazy: not for other commands

        try:
            torch_version = torch_facts()["version"]
            torch = f"torch {torch_version}" if torch_version else "without torch"
        except InterpreterError as error:
            torch = f"torch unknown: {error}"
        parser._print_message(f"sysbench-tui {version('sysbench-tui')} ({torch})\n", sys.stdout)
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """Reports a mistake in one line, with the closest known word, and exits with 2."""

    commands: Mapping[str, CommandParser] = {}

    def error(self, message: str) -> NoReturn:
        usage = f"{self.prog} --help"
        if "required" in message:
            examples = (line.strip().split("  ")[0] for line in (self.epilog or "").splitlines())
            usage = next((line for line in examples if line.startswith(self.prog)), usage)
        self.exit(2, f"{self.prog}: {message} (usage: {usage})\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print help; unlike argparse, do not ignore that it cannot be written."""
        if file is not sys.stdout:
            super()._print_message(message, file)
            return
        from sysbench.tui.commands.output import write_text  # lazy: not to print a mistake

        write_text(message)

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Exit, naming the known option closest to the first word if it is one."""
        option = words[0].partition("=")[0]
        hint = did_you_mean(option, self._option_string_actions) if option[:1] == "-" else ""
        self.error(f"unknown argument: {' '.join(words)}{'; ' if hint else ''}{hint.strip()}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = "/".join(action.option_strings) or action.metavar or action.dest
        hint = did_you_mean(str(value), action.choices)
        known = hint.strip() or f"known: {', '.join(map(str, action.choices))}"
        raise argparse.ArgumentError(None, f"unknown {name} {value!r}; {known}")


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; ``command`` is None without one.

    Raises:
        SystemExit: After ``--help``, ``--version`` or a mistake.
    """
    # No option before the command takes a value, so the first other word is the command.
    chosen = next((word for word in words if not word.startswith("-")), "")
    parser = _parser({chosen})
    commands: list[list[str]] = []
    if chosen in COMMANDS and COMMANDS[chosen].takes_commands:
        words, *commands = split_commands(words)
    arguments, rest = parser.parse_known_args(words)
    arguments.commands = commands
    # argparse accepts words only up to the first option.
    later = [word for word in rest if not word.startswith("-") and hasattr(arguments, WORDS)]
    if unknown := [word for word in rest if word not in later]:
        parser.commands.get(chosen, parser).refuse_unknown(unknown)
    if later:
        setattr(arguments, WORDS, [*getattr(arguments, WORDS), *later])
    return arguments


def whole_parser(*, is_brief: bool = False) -> CommandParser:
    """Return the parser of all commands; this imports their modules."""
    return _parser(COMMANDS, is_brief)


def _parser(chosen: Container[str], is_brief: bool = False) -> CommandParser:
    parser = CommandParser(
        prog="sysbench-tui",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Show where a transformer's time and memory go on this machine.\n"
        "Without a command it opens the workstation in this terminal.",
        epilog=examples(
            ("sysbench-tui", "open the workstation"),
            ("sysbench-tui run tiny", "measure and print the tables"),
            ("sysbench-tui show last", "print the newest run's tables again"),
            ("sysbench-tui doctor", "check the environment"),
        )
        + f"\n{EXIT_CODES}",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the versions of sysbench-tui and torch"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    parser.commands = subparsers.choices
    for command in COMMANDS.values():
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_flag(subparser, "--json", "print one JSON document to stdout")
        if command.has_tables:
            add_row_options(subparser)
        if command.has_workers:
            python = subparser.add_argument("--python", metavar="PATH", help=PYTHON_HELP)
            complete_with(python, "file")
        if command.name in chosen:
            command.declare(subparser)
            subparser.epilog = f"{subparser.epilog}\n\n{command.exit_codes}"
            if is_brief:
                subparser.description = command.summary
    return parser
