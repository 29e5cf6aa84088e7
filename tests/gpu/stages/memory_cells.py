"""Cells of the null GPU's memory table on this card: allocated and reserved, to the byte?

The null GPU of ``tests/validation/null_gpu/cells.csv`` is an H100 of 80 GB. A card of another
compute capability has other cuBLAS workspaces, and one of another size runs out elsewhere.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sysbench.core import RunSpec, run
from sysbench.core.record.memory import LedgerRow
from tests.gpu.stages.stage import ROOT, Bench, Row, header, line

CELLS = ROOT / "tests" / "validation" / "null_gpu" / "cells.csv"
AXES = ("model", "context", "step", "precision", "attention")
MIB = 2**20
SECONDS_A_CELL = 15.0
QUICK = 2
SAME = "(+0.00)"


def in_order(path: Path = CELLS) -> list[dict[str, str]]:
    """The cells, each model and kind of step once, at mixed contexts, before the next ones."""
    with path.open() as file:
        cells = list(csv.DictReader(file))
    kinds: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for cell in cells:
        kinds.setdefault((cell["step"], cell["precision"], cell["model"]), []).append(cell)
    mixed = []
    for at, kind in enumerate(sorted(kinds, reverse=True)):
        own, first = kinds[kind], 3 * at % len(kinds[kind])
        mixed.append([*own[first:], *own[:first]])
    turns = itertools.zip_longest(*mixed)
    return [cell for turn in turns for cell in turn if cell is not None]


def lines(bench: Bench) -> Iterator[str]:
    """A snapshot, a row a cell as long as there is time, then what they come to."""
    tiny = run(RunSpec(device=bench.device, model="tiny", precision="bf16"), ["memory"])
    path = tiny.directory.snapshot_path
    yield bench.keep(path.read_bytes(), path.name) if path.is_file() else "No snapshot was written."
    yield ""
    yield "MiB; in brackets the difference from the null GPU. Residual is the allocator's counter"
    yield "less all rows of the ledger; context what the driver holds beside the allocator."
    yield ""
    yield from header("cell", "outcome", "allocated", "reserved", "context", "residual", "clock µs")
    rows: list[Row] = []
    for cell in in_order()[: QUICK if bench.is_quick else None]:
        if bench.seconds_left < SECONDS_A_CELL:
            break
        name = " ".join(cell[axis] for axis in AXES)
        rows.append(bench.once(name, partial(_row, bench, cell, name)))
        yield line(rows[-1])
    yield ""
    exact = sum(row[2].endswith(SAME) and row[3].endswith(SAME) for row in rows)
    ended = sum(row[1] == "as there" for row in rows)
    yield f"{len(rows)} cells: {ended} ended as there, {exact} have its allocated and reserved MiB."


def _row(bench: Bench, cell: dict[str, str], name: str) -> Row:
    settings = {axis: cell[axis] for axis in AXES} | {"context": int(cell["context"])}
    settings["model"] = f"cs336-2025/{cell['model']}"
    spec = RunSpec(device=bench.device, batch=4).changed(**settings)
    record = run(spec, ["memory"]).record
    reported = "out of memory" if cell["refused"] else "finished"
    passed = record.passes[0]
    found = {"oom": "out of memory"}.get(passed.outcome, passed.outcome)
    outcome = "as there" if found == reported else f"{found}, there {reported}"
    memory = record.memory
    if memory is None or cell["refused"]:
        detail = "" if found in ("finished", reported) else f": {passed.detail}"
        return [name, outcome + detail, "–", "–", "–", "–", "–"]
    return [
        name,
        outcome,
        _beside(memory.peak_allocated_bytes, cell["allocated_bytes"]),
        _beside(memory.peak_reserved_bytes, cell["reserved_bytes"]),
        _context(memory.card),
        "–" if memory.residual_bytes is None else f"{memory.residual_bytes / MIB:.1f}",
        bench.time(memory.clock_offset_us, "{:+.1f}"),
    ]


def _beside(measured_bytes: int | None, there: str) -> str:
    """MiB, and in brackets the difference from the null GPU's bytes."""
    if measured_bytes is None:
        return "–"
    return f"{measured_bytes / MIB:.1f} ({(measured_bytes - int(there)) / MIB:+.2f})"


def _context(card: list[LedgerRow]) -> str:
    found = [row.bytes for row in card if row.name.startswith("context")]
    return f"{found[0] / MIB:.0f}" if found else "–"
