"""Small files as other programs write them: traces with marked steps, snapshots."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STEP_US, LAUNCH_US, DEVICE_LATE_US = 1000, 5, 10
Frame = tuple[str, int, str]
"""File, line and function."""


def write_trace(path: Path, steps: Sequence[Sequence[tuple[str, int]]], first: int = 0) -> Path:
    """A GPU trace of steps that the profiler marked, from number ``first``.

    Args:
        steps: Kernels of each step: name and duration in µs.
    """
    events: list[dict[str, Any]] = []
    host = {"ph": "X", "pid": 1000, "tid": 1000}
    for at, kernels in enumerate(steps):
        begin = 1000 + at * STEP_US
        name = f"ProfilerStep#{first + at}"
        events.append(
            {**host, "cat": "user_annotation", "name": name, "ts": begin, "dur": STEP_US - 20}
        )
        start = begin + LAUNCH_US
        for kernel, duration in kernels:
            linked = {"correlation": len(events)}
            events += [
                {
                    **host,
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "ts": start,
                    "dur": LAUNCH_US,
                    "args": linked,
                },
                {
                    **{"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": kernel},
                    "ts": start + DEVICE_LATE_US,
                    "dur": duration,
                    "args": {**linked, "device": 0, "stream": 7},
                },
            ]
            start += DEVICE_LATE_US + duration
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events})
    )
    return path


def write_snapshot(path: Path, blocks: Sequence[tuple[int, Sequence[Frame]]]) -> Path:
    """A snapshot of CUDA's allocator: bytes and stack, innermost frame first, of each block."""
    address, held, trace = 1 << 40, [], []
    whole = sum(size for size, _ in blocks)
    for at, (size, stack) in enumerate(blocks):
        frames = [{"filename": file, "line": line, "name": name} for file, line, name in stack]
        block = {"address": address, "size": size, "requested_size": size, "frames": frames}
        held.append({**block, "state": "active_allocated"})
        event = {"action": "alloc", "addr": address, "size": size, "stream": 0, "time_us": at}
        trace.append({**event, "frames": frames})
        address += size
    segment = {
        **{"device": 0, "address": 1 << 40, "total_size": whole, "allocated_size": whole},
        **{"active_size": whole, "requested_size": whole, "stream": 0, "segment_type": "large"},
        **{"segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": held},
    }
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}, protocol=4))
    return path
