"""The timeline of a million events beside ten thousand: first picture, zoom, cursor.

From the file on disk to the painted screen, at 160x48, in one warm process: medians of the
process's own CPU time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

os.environ["TEXTUAL_ANIMATIONS"] = "none"

import numpy as np
from textual.app import App
from textual.pilot import Pilot

from sysbench.core.trace.classify import BETWEEN, CATEGORIES, HOST_LATE
from sysbench.core.trace.lanes import (
    Lane,
    LaneEvents,
    LaneKind,
    Lanes,
    decode_lanes,
    encode_lanes,
)
from sysbench.tui.widgets.lanes_view import LanesView

ROUNDS = 5
FEW, MANY = 10_000, 1_000_000
WIDTH, HEIGHT = 160, 48
STREAMS, NAMES = 4, 300
DEEP = 8
"""Times that the view is halved before a zoom is measured."""


def lanes_with(count: int) -> Lanes:
    """Streams of kernels, the idle time between them, and a thread's operators and calls."""
    chance = np.random.default_rng(0)
    texts = [*CATEGORIES, HOST_LATE, BETWEEN, *(f"kernel_{name}" for name in range(NAMES))]
    first_name, causes = len(texts) - NAMES, len(CATEGORIES)
    kinds: list[tuple[str, str, LaneKind]] = [
        *((f"stream {number} compute", "GPU 0", "work") for number in range(STREAMS)),
        ("idle", "GPU 0", "idle"),
        ("thread 1 operators", "CPU", "work"),
        ("thread 1 calls", "CPU", "calls"),
    ]
    size, lanes = count // len(kinds), []
    for name, group, kind in kinds:
        edges = np.cumsum(chance.integers(500, 10_000, 2 * size))
        category = chance.integers(0, len(CATEGORIES), size)
        if kind == "idle":
            category = causes + chance.integers(0, 2, size)
        label = category if kind == "idle" else first_name + chance.integers(0, NAMES, size)
        none = np.full(size, -1)
        events = LaneEvents(
            start=edges[::2],
            end=edges[1::2],
            label=label,
            category=category,
            operator=none,
            module=none,
            phase=none,
        )
        lanes.append(Lane(name=name, group=group, kind=kind, events=events))
    high = max(int(lane.events.end[-1]) for lane in lanes)
    return Lanes(texts=texts, low=0, high=high, window=(0, high), lanes=lanes, left_out=[])


async def median_ms(work: Callable[[], Awaitable[None]]) -> float:
    samples = []
    for _ in range(ROUNDS):
        began = time.process_time()
        await work()
        samples.append(1e3 * (time.process_time() - began))
    return statistics.median(samples)


async def measure(pilot: Pilot[None], path: Path) -> dict[str, float]:
    """Milliseconds of each step with the timeline of a file."""

    async def open_file() -> None:
        await pilot.app.query(LanesView).remove()
        await pilot.app.mount(LanesView({path.name: decode_lanes(path.read_bytes(), path)}))
        await pilot.pause()

    async def zoom() -> None:
        pilot.app.query_one(LanesView).action_zoom(1)
        await pilot.pause()

    async def move() -> None:
        pilot.app.query_one(LanesView).action_move(1)
        await pilot.pause()

    figures = {"first picture": await median_ms(open_file)}
    view = pilot.app.query_one(LanesView)
    view.action_event(1)
    figures["zoom"] = await median_ms(zoom)
    for _ in range(DEEP):
        view.action_zoom(1)
    figures["zoom, deep"] = await median_ms(zoom)
    figures["cursor"] = await median_ms(move)
    return figures


async def main() -> None:
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (FEW, MANY):
            lanes, path = lanes_with(count), Path(folder) / f"{count}.msgpack"
            path.write_bytes(encode_lanes(lanes))
            size = path.stat().st_size / 2**20
            async with App[None]().run_test(size=(WIDTH, HEIGHT)) as pilot:
                figures[count] = await measure(pilot, path)
    print(f"  {WIDTH}x{HEIGHT}, {size:.0f} MiB   {FEW:>11,}  {MANY:>12,}")
    for name, many in figures[MANY].items():
        few = figures[FEW][name]
        print(f"  {name:<16} {few:9.1f} ms  {many:9.1f} ms  {many / few:6.2f}×")


if __name__ == "__main__":
    asyncio.run(main())
