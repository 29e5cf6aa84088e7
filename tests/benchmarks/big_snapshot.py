"""A large allocator snapshot in the form that torch writes, from a fixed seed."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

STACKS = 3_000
DEPTH = 24
LIVE = 5_000
"""About how many blocks are alive at any time."""

KINDS = ("forward", "backward", "step")


def write_snapshot(path: str | Path, events: int, seed: int = 0) -> None:
    """Write a snapshot with N events: takes and gives of random sizes and lives."""
    Path(path).write_bytes(pickle.dumps(snapshot(events, seed), protocol=4))


def snapshot(events: int, seed: int = 0) -> dict[str, Any]:
    """Segments and one device's trace; a free is two events, as in torch."""
    rng = random.Random(seed)
    stacks = _stacks(rng)
    live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
    trace: list[dict[str, Any]] = []
    address, time_us = 1 << 40, 1_700_000_000_000_000
    while len(trace) < events:
        time_us += rng.randrange(1, 20)
        if len(live) < LIVE or rng.random() < 1 / 3:
            size = rng.choice((64, 4_000, 20_480, 2**20, 2**22)) + rng.randrange(4_000)
            frames = rng.choice(stacks)
            live[address] = size, frames
            trace.append(_event("alloc", address, size, time_us, frames))
            address += -(-size // 512) * 512
        else:
            gone = next(iter(live))
            size, frames = live.pop(gone)
            trace.append(_event("free_requested", gone, size, time_us, rng.choice(stacks)))
            trace.append(_event("free_completed", gone, size, time_us + 1, frames))
    blocks: list[dict[str, Any]] = [
        {
            "address": at,
            "size": -(-size // 512) * 512,
            "requested_size": size,
            "state": "active_allocated",
            "frames": frames,
        }
        for at, (size, frames) in live.items()
    ]
    total = sum(one["size"] for one in blocks)
    segment = {"device": 0, "address": 1 << 40, "total_size": total, "blocks": blocks}
    return {"segments": [segment], "device_traces": [trace[:events]]}


def _stacks(rng: random.Random) -> list[list[dict[str, Any]]]:
    """Distinct stacks that share their frames."""
    frames = [
        {"filename": f"/model/part_{n % 40}.py", "line": n, "name": f"{KINDS[n % 3]}_{n}"}
        for n in range(2_000)
    ]
    return [[rng.choice(frames) for _ in range(DEPTH)] for _ in range(STACKS)]


def _event(
    action: str, address: int, size: int, time_us: int, frames: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": list(frames),  # torch shares the frames, and makes a list for each event
    }
