"""`serve`: a run's page in the browser of the machine that you sit at."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys

from ...core.export.server import LOOPBACK, PageServer
from ...core.runs.directory import find_run
from .report.output import print_json


def main(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; 0 then."""
    run = find_run(arguments.run)
    server = PageServer(run, arguments.port)
    tunnel = f"ssh -N -L {server.port}:{LOOPBACK}:{server.port} {_here()}"
    if arguments.json:
        print_json({"run": run.id, "url": server.url, "tunnel": tunnel})
    else:
        print(f"{run.id}, until you press Ctrl+C")
        print(f"  from your own machine  {tunnel}")
        print(f"  then open              {server.url}")
    sys.stdout.flush()
    try:
        server.serve()
    except KeyboardInterrupt:
        return 0
    return 0


def _here() -> str:
    """The account and machine as ``ssh`` takes them; the name may need a domain outside."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
