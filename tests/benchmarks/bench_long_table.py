"""Opening a table: 100,000 rows beside 1,000, from the rows in memory to the painted screen.

In one process, warm: medians of several rounds at 160x48. Textual's own `DataTable` with 1,000 of
the rows is measured in the same run: a table that makes each row grows with their number, this one
only with what has to be looked at in every row.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable

os.environ["TEXTUAL_ANIMATIONS"] = "none"

from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable

from sysbench.core.tables.table import Table
from sysbench.tui.widgets.table_view import TableView

ROUNDS = 5
FEW, MANY = 1_000, 100_000
COLUMNS = ("name", "category", "exclusive_ns", "share", "calls", "mean_ns", "bytes", "phase")


class Tables(App[None]):
    """One table of each kind."""

    def compose(self) -> ComposeResult:
        yield TableView(flexible="name")
        yield DataTable(id="own", cursor_type="row")


def kernels(count: int) -> Table:
    """Rows as a trace has them, their names of a few hundred."""
    draw = random.Random(0)
    rows = tuple(
        (
            f"void at::native::elementwise_kernel<{row % 300}, 4>",
            draw.choice(("gemm", "softmax", "elementwise", "copy")),
            draw.uniform(1e3, 1e8),
            draw.random(),
            draw.randint(1, 5000),
            draw.uniform(1e3, 1e6),
            draw.choice((None, draw.randint(1, 2**34))),
            draw.choice(("forward", "backward", "optimizer")),
        )
        for row in range(count)
    )
    return Table(name="kernels", title="", columns=COLUMNS, rows=rows)


async def median_ms(work: Callable[[], Awaitable[None]]) -> float:
    """Median of the rounds, of the process's own CPU time: no other work is in it."""
    samples = []
    for _ in range(ROUNDS):
        began = time.process_time()
        await work()
        samples.append(1e3 * (time.process_time() - began))
    return statistics.median(samples)


async def measure(pilot: Pilot[None]) -> dict[str, float]:
    """Milliseconds of each way to show rows."""
    view, own = pilot.app.query_one(TableView), pilot.app.query_one("#own", DataTable)
    few, many = kernels(FEW), kernels(MANY)

    async def ours(table: Table) -> None:
        view.show(table)
        await pilot.pause()

    async def sort() -> None:
        view.sort_by_column(1)
        await pilot.pause()

    async def textual() -> None:
        own.clear(columns=True)
        own.add_columns(*COLUMNS)
        own.add_rows([Text(str(cell)) for cell in row] for row in few.rows)
        await pilot.pause()

    await ours(few)
    await textual()
    return {
        f"{FEW:,} rows": await median_ms(lambda: ours(few)),
        f"{MANY:,} rows": await median_ms(lambda: ours(many)),
        f"{MANY:,} rows, sorted": await median_ms(sort),
        f"{FEW:,} rows, DataTable": await median_ms(textual),
    }


async def main() -> None:
    async with Tables().run_test(size=(160, 48)) as pilot:
        figures = await measure(pilot)
    base = figures[f"{FEW:,} rows, DataTable"]
    for name, value in figures.items():
        print(f"  {name:<26} {value:8.1f} ms  {value / base:6.2f}×")


if __name__ == "__main__":
    asyncio.run(main())
