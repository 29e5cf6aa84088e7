"""Five hundred damaged files, from the first look at them to their printed tables.

One child with a memory limit, the one that decodes foreign files, reads them all: each is
refused with an error of ours, or read into tables that can be kept, exported and printed.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from sysbench.core.errors import SysbenchError
from sysbench.core.export.report_document import inspection_tables
from sysbench.core.export.text_formats import tables_as_markdown, tables_as_tidy_csv
from sysbench.core.inspection.inspection import decode_inspection, encode_inspection
from sysbench.core.inspection.reading import read_tables
from sysbench.core.machine.host_sampler import limit_data_memory
from sysbench.core.ranks.ranks_block import ranks_block
from sysbench.core.trace.module_tree import kernel_tree
from sysbench.core.trace.rank_summary import decode_rank, encode_rank
from sysbench.tui.commands.inspect_report import inspection_lines, ranks_lines

CASES = 500
MOST_BYTES = 512 * 2**20
PATIENCE_SECONDS = 120
NSYS_DOUBLE = Path(__file__).parents[2] / "nsys_double" / "build.py"

HOSTILE: tuple[Any, ...] = (
    *(None, True, "", [], {}, [[]], -1, 0, 1, 2**31, 2**62, 2**63, -(2**63), 10**30, 0.5, 1e300),
    *("\x00\x1b[2J[bold]", "x" * 10_000, "\u202egnp.exe", "nn.Module: a.0.b", "[memory]", "kernel"),
    *("phase:forward", "sysbench:steps:9", "cpu_op", "python_function", "alloc", "free_completed"),
    *("triton_poi_fused__to_copy_0", "nccl", "c10::BFloat16", "a.py(3): f", "segment_alloc"),
)


def trace(*, on_device: bool) -> dict[str, Any]:
    """Three phases of products with shapes, and what the CPU's allocator was asked for."""
    place = {"ph": "X", "pid": 1, "tid": 1}
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    events: list[dict[str, Any]] = []
    for number, phase in enumerate(("forward", "backward", "optimizer")):
        at = 1e9 + 1000 * number
        ranges = (f"phase:{phase}", 900), ("mod:blocks.0.ffn", 800), ("aten::mm", 700)
        events += [
            place | {"cat": "cpu_op", "name": name, "ts": at, "dur": dur, "args": shapes}
            for name, dur in ranges
        ]
        stack = place | {"cat": "python_function", "name": f"a.py({number}): f"}
        events.append(stack | {"ts": at, "dur": 950})
        for moment, change in ((5, 4096), (600, -4096)):
            args = {"Addr": 64 * number, "Bytes": change, "Device Type": 0}
            instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "tid": 1}
            events.append(instant | {"ts": at + moment, "args": args})
        if on_device:
            link = {"correlation": number, "device": 0, "stream": 7}
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 10, "dur": 3}
            kernel = {"cat": "kernel", "name": "sgemm", "ts": at + 400, "dur": 300, "tid": 7}
            events += [place | call | {"args": link}, place | kernel | {"args": link}]
            collective = {"Collective name": "allreduce", "Process Group Name": "0"}
            comms = {"cat": "cpu_op", "name": "record_param_comms", "ts": at + 9, "dur": 9}
            events.append(place | comms | {"args": {"Seq": number}})
            sum_up = {"cat": "kernel", "name": "ncclDevKernel", "ts": at + 650, "dur": 90, "tid": 9}
            events.append(place | sum_up | {"args": link | collective})
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    return {"baseTimeNanoseconds": 10**18, "deviceProperties": devices, "traceEvents": events}


def snapshot() -> dict[str, Any]:
    """Twenty blocks, half of them freed, in one segment."""
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    events: list[dict[str, Any]] = [
        {"action": "segment_alloc", "addr": 0, "size": 2**20, "time_us": 1, "frames": frames}
    ]
    for number in range(20):
        block = {"addr": 1024 * number, "size": 1000, "time_us": 10 + number, "frames": frames}
        events.append(block | {"action": "alloc"})
        if number % 2:
            events.append(block | {"action": "free_completed", "time_us": 40 + number})
    left = [{"size": 1024, "requested_size": 1000, "address": 0, "state": "active_allocated"}]
    segment = {"device": 0, "address": 0, "total_size": 2**20, "blocks": left}
    return {"segments": [segment], "device_traces": [events, []]}


def export(folder: Path) -> bytes:
    """Ten kernels in a range."""
    writer = runpy.run_path(str(NSYS_DOUBLE))["ExportWriter"](folder / "whole.sqlite")
    writer.range("step", 0, 100)
    for at in range(0, 100, 10):
        writer.launch("k", at, 200 + at, 205 + at)
    return Path(writer.write()).read_bytes()


def with_wrong_values(chance: random.Random, data: Any) -> Any:
    """Some values in a nest of lists and dictionaries replaced, dropped or doubled."""
    for _ in range(chance.randrange(1, 6)):
        place = data
        while True:
            keys = [*place] if isinstance(place, dict) else [*range(len(place))]
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.9:
                place = place[key]
                continue
            if chance.random() < 0.8:
                place[key] = deepcopy(chance.choice(HOSTILE))
            elif isinstance(place, list):
                place.insert(key, place[key])
            else:
                del place[key]
            break
    return data


def with_wrong_bytes(chance: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut out or repeated; or the end is missing."""
    text = bytearray(data)
    if chance.random() < 0.3:
        return bytes(text[: chance.randrange(len(text))])
    for _ in range(chance.choice((1, 3, 30))):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((0, 1, 8, 200)))
        text[start:end] = chance.choice((b"", b"\xff", b"0", text[end : end + 40], bytes(8)))
    return bytes(text)


def files(folder: Path) -> dict[str, Callable[[random.Random], bytes]]:
    """What makes a damaged file of each kind."""
    whole = export(folder)

    def json_trace(chance: random.Random) -> bytes:
        made = with_wrong_values(chance, trace(on_device=chance.random() < 0.5))
        text = json.dumps(made).encode()
        return gzip.compress(text, 1) if chance.random() < 0.3 else text

    def garbled_trace(chance: random.Random) -> bytes:
        return with_wrong_bytes(chance, json.dumps(trace(on_device=False)).encode())

    def garbled_snapshot(chance: random.Random) -> bytes:
        return with_wrong_bytes(chance, pickle.dumps(snapshot(), protocol=4))

    return {
        "trace": json_trace,
        "garbled trace": garbled_trace,
        "snapshot": lambda chance: pickle.dumps(with_wrong_values(chance, snapshot()), protocol=4),
        "garbled snapshot": garbled_snapshot,
        "garbled export": lambda chance: with_wrong_bytes(chance, whole),
    }


def print_all(path: Path) -> None:
    """Everything that `inspect` may be asked for."""
    found, layers, rank, *_ = read_tables(path, lambda stage, done, total: None)
    assert decode_inspection(encode_inspection(found), path) == found
    tree = kernel_tree(layers) if layers else None
    tables = [one for some in inspection_tables(found, tree).values() for one in some]
    assert tables
    tables_as_tidy_csv(tables)
    tables_as_markdown(tables)
    lines = ["".join(text for text, _ in line) for line in inspection_lines(found, 80)]
    if rank:
        assert decode_rank(encode_rank(rank), path) == rank
        ranks = ranks_block("folder", {0: "a", 1: "b"}, {0: rank, 1: rank})
        lines += ["".join(text for text, _ in line) for line in ranks_lines(ranks, 80)]
        for row in ranks.rows:
            assert row.compute_ns + row.exposed_ns + row.idle_ns == row.span_ns
    assert all(line.isprintable() for line in lines)


def main() -> None:
    """Read them all; print how many of each kind there were and how many were read."""
    chance = random.Random(0)
    seen: Counter[str] = Counter()
    read: Counter[str] = Counter()
    limit_data_memory(MOST_BYTES)
    with tempfile.TemporaryDirectory() as name:
        kinds = files(Path(name))
        path = Path(name) / "file"
        for number in range(CASES):
            kind = list(kinds)[number % len(kinds)]
            path.write_bytes(kinds[kind](chance))
            seen[kind] += 1
            try:
                print_all(path)
            except SysbenchError as error:
                assert str(error)
            except BaseException:
                print(f"case {number}, {kind}", file=sys.stderr)
                raise
            else:
                read[kind] += 1
    print(json.dumps({kind: [read[kind], seen[kind]] for kind in seen}))


def test_damaged_files_are_refused_or_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[int]] = json.loads(done.stdout)
    assert sum(seen for _, seen in found.values()) == CASES
    for kind, (read, seen) in found.items():
        assert 0 < read < seen, kind


if __name__ == "__main__":
    main()
