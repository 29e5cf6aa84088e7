"""Attacks on the program with real processes, for the table in ``docs/reliability.md``.

``python -m tests.validation.attack NAME …`` runs those, without a name every one. Each works in a
fresh home. A rule that does not hold ends it with an AssertionError. ``--write`` puts the rows
between the table's marks, with the date and the versions.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from tests.validation.attacks import files, keys, processes
from tests.validation.attacks.common import Rows, home

TABLE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- attack.py -->", "<!-- end of attack.py -->"
ATTACKS: dict[str, Callable[[], Rows]] = {
    "worker-signals": processes.worker_signals,
    "worker-stopped": processes.worker_stopped,
    "supervisor-killed": processes.supervisor_killed,
    "memory": processes.memory,
    "terminal": processes.terminal,
    "detached": processes.detached,
    "study": processes.study,
    "rank": processes.rank,
    "logs": files.logs,
    "bombs": files.bombs,
    "disk": files.disk,
    "keys": keys.random_keys,
}


def lines_of(name: str, rows: Rows, seconds: float) -> list[str]:
    shown = f"`attack.py {name}`, {date.today()}, {seconds:.0f} s"
    return [f"| {' | '.join(row)} | {shown} |" for row in rows]


def write(lines: dict[str, list[str]]) -> None:
    """Replace the rows of these attacks and keep all other rows."""
    text = TABLE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    kept: dict[str, list[str]] = {name: [] for name in ATTACKS}
    for row in table.splitlines():
        for name, own in kept.items():
            if f"`attack.py {name}`" in row:
                own.append(row)
    rows = [row for name, own in (kept | lines).items() for row in own]
    head = [
        BEGIN,
        f"With {', '.join(versions())}:",
        "",
        "| attack | survives | lost | counted | shown by |",
        "|---|---|---|---|---|",
    ]
    TABLE.write_text(f"{before}{chr(10).join([*head, *rows])}\n{END}{after}", encoding="utf-8")


def versions() -> list[str]:
    packages = [f"{name} {version(name)}" for name in ("sysbench-tui", "torch", "textual")]
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return [*packages, f"Python {platform.python_version()}", system, f"{os.cpu_count()} cores"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument("--write", action="store_true", help=f"put the rows into {TABLE.name}")
    options = parser.parse_args()
    unknown = set(options.names) - set(ATTACKS)
    if unknown:
        parser.error(f"no attack {', '.join(sorted(unknown))}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found: dict[str, list[str]] = {}
    for name in options.names or ATTACKS:
        began = time.monotonic()
        with home():
            rows = ATTACKS[name]()
        found[name] = lines_of(name, rows, time.monotonic() - began)
        print("\n".join(found[name]), flush=True)
        if options.write:
            write(found)


if __name__ == "__main__":
    main()
