"""The command `sysbench-tui`: without arguments the workstation, with them one job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from ..core.errors import SysbenchError
from .commands.arguments import build_parser
from .commands.output import flush

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: the only place that turns errors into text."""
    arguments = build_parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # A locale that lacks a character must not end a command half-way.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        # Imported only when called: `--help` must not wait for what one command needs.
        command = import_module(f".commands.{arguments.module}", __package__)
        code: int = command.main(arguments)
    except KeyboardInterrupt:
        code = _explain("interrupted", INTERRUPTED)
    except SysbenchError as error:
        code = _explain(str(error), error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        code = _explain(f"{place}{error.strerror or error}", 1)
    flush()
    return code


def _explain(message: str, code: int) -> int:
    visible = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)
    print(f"sysbench-tui: {visible}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
