"""Print this machine once, or open the workstation at its screen."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sysbench.core.machine.sample import MachineState
from sysbench.core.tables.machine_tables import (
    gpu_notes,
    gpu_processes_table,
    gpus_table,
    host_table,
    mig_table,
    processes_table,
)
from sysbench.core.tables.table import Table
from sysbench.tui.commands.output import page_width, print_json, print_lines
from sysbench.tui.commands.text_lines import Line, note, prose, table_lines, titled
from sysbench.tui.live.machine_watch import LastRun, last_run, machine_reader

SCHEMA = 1
BETWEEN_SECONDS = 0.5
"""Between the two readings that shares of time need."""
DEFAULT_PROCESSES = 10


def show_machine(arguments: argparse.Namespace) -> int:
    if sys.stdin.isatty() and sys.stdout.isatty() and not (arguments.once or arguments.json):
        from sysbench.tui.cli import open_workstation  # lazy: import cycle

        return open_workstation("machine")
    with machine_reader() as reader:
        reader.take()
        time.sleep(BETWEEN_SECONDS)
        state = reader.take()
    if arguments.json:
        print_json(machine_document(state, last_run(), arguments.limit))
    else:
        width = page_width(in_full=True, wide=arguments.wide)
        limit = arguments.limit or DEFAULT_PROCESSES
        print_lines(machine_lines(state, last_run(), width, limit))
    return 0


def machine_document(state: MachineState, last: LastRun | None, limit: int | None) -> Any:
    """Return the JSON document; every list has its length before it was shortened."""
    shown = state.processes[:limit]
    document = msgspec.to_builtins(state)
    gpus = [{**gpu.pop("sample"), **gpu} for gpu in document["gpus"]]
    for gpu in gpus:
        del gpu["processes"]  # gpu_processes has them, with more facts
    return {
        "schema": SCHEMA,
        "command": "top",
        **{name: document[name] for name in ("t_ns", "driver", "cuda", "no_gpus")},
        "gpus": _listed(gpus, len(gpus)),
        "gpu_processes": _listed(document["gpu_processes"], len(state.gpu_processes)),
        "processes": _listed(msgspec.to_builtins(shown), state.process_count),
        "host": document["host"],
        "last_run": last
        and {
            **last._asdict(),
            "others": _listed([each._asdict() for each in last.others], len(last.others)),
        },
    }


def _listed(rows: Sequence[Any], total: int) -> dict[str, Any]:
    return {"total": total, "truncated": len(rows) < total, "rows": rows}


def machine_lines(
    state: MachineState, last: LastRun | None, width: int, limit: int
) -> Iterator[Line]:
    if state.gpus:
        yield from _section(gpus_table(state.gpus), width)
        yield from note(gpu_notes(state.gpus), width)
        if instances := [each for gpu in state.gpus for each in gpu.mig_instances]:
            yield from _section(mig_table(instances), width)
        if state.gpu_processes:
            yield from _section(gpu_processes_table(state.gpu_processes), width)
        elif not any("processes" in gpu.missing for gpu in state.gpus):
            yield from note(["the driver lists no process on a GPU"], width)
    else:
        yield from titled("GPUs", note([f"none: {state.no_gpus}"], width))
    yield from _section(processes_table(state.processes[:limit]), width)
    yield from _section(host_table(state.host), width)
    if last is not None:
        yield from titled("Last run", prose(f"  {last.id}: {last.words}", width, hang=2))


def _section(table: Table, width: int) -> Iterator[Line]:
    yield from titled(table.title, table_lines(table, width))
