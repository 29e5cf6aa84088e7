"""The command `sysbench-tui`: without arguments the workstation, with them one job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ..core.errors import SysbenchError
from .commands.arguments import build_parser
from .commands.report.output import flush

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: the only place that turns errors into text."""
    _settle_streams()
    arguments = build_parser().parse_args(argv)
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


def _settle_streams() -> None:
    """Make the standard streams take whatever is written to them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed from outside, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A locale that lacks a character must not end a command half-way.
        getattr(sys, name).reconfigure(errors="replace")


def _explain(message: str, code: int) -> int:
    visible = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)
    print(f"sysbench-tui: {visible}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
