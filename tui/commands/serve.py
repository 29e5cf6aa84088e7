"""`serve`: serve a run's page to the browser on your own machine."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys

from sysbench.core.runs.run_directory import find_run
from sysbench.tui.commands.arguments import add_run_argument, examples
from sysbench.tui.commands.output import print_answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve a run's page and artifacts on loopback, behind a token, and print the ssh command\n"
        "that forwards the port to your machine. Ctrl+C stops it."
    )
    parser.epilog = examples(
        ("sysbench-tui serve last", ""), ("sysbench-tui serve last --port 8000", "")
    )
    add_run_argument(parser)
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: any free one)"
    )


def main(arguments: argparse.Namespace) -> int:
    from sysbench.core.export.report_document import PageServer  # lazy: --help stays fast

    run = find_run(arguments.run)
    server = PageServer(run, arguments.port)
    print_address(run.id, server.port, server.url, {"run": run.id}, json=arguments.json)
    try:
        server.serve()
    except KeyboardInterrupt:
        return 0
    return 0


def print_address(what: str, port: int, url: str, document: dict[str, str], *, json: bool) -> None:
    """Print the address, and the ssh command that forwards the port to the user's machine."""
    from sysbench.core.export.report_document import LOOPBACK  # lazy: --help stays fast

    tunnel = f"ssh -N -L {port}:{LOOPBACK}:{port} {_here()}"
    print_answer(
        document | {"url": url, "tunnel": tunnel},
        f"{what}, until you press Ctrl+C",
        f"  from your own machine  {tunnel}",
        f"  then open              {url}",
        json=json,
    )
    sys.stdout.flush()


def _here() -> str:
    """Return ``user@host`` for ssh; the host may need a domain from outside."""
    machine = socket.gethostname()
    try:
        return f"{getpass.getuser()}@{machine}"
    except (KeyError, OSError):
        # A container's user may have no name: KeyError, since Python 3.13 OSError.
        return machine
