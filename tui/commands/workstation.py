"""No command: the workstation itself."""

from __future__ import annotations

import argparse
import sys

from ...core.errors import SysbenchError


class NoTerminalError(SysbenchError):
    """The workstation was asked for where there is no terminal."""

    exit_code = 2


def main(arguments: argparse.Namespace) -> int:
    """Open the workstation; the exit code says which signal ended it, if one did."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NoTerminalError(
            "the workstation needs a terminal; here, `sysbench-tui run` measures and prints "
            "the tables, and `sysbench-tui --help` lists every command"
        )
    from ..app import SysbenchApp

    app = SysbenchApp()
    app.run()
    return app.return_code or 0
