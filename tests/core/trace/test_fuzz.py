"""Hundreds of damaged and hostile traces: a typed error or a table that closes, in bounded memory.

All are read in one child process that may not grow by more than `MOST_BYTES`; a crash, a hang,
another exception or an allocation beyond that fails the test with what the child said.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.core.errors import SysbenchError
from sysbench.core.trace import trace_json as chrome_json
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace

CASES = 600
MOST_BYTES = 512 * 2**20
SECONDS = 120

Event = dict[str, Any]
HOSTILE: tuple[Any, ...] = (
    *(None, True, "", "x", [], {}, [[]], -1, 0, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(
        0.5,
        -0.5,
        1e-300,
        1e15,
        4e15,
        1e308,
        -1e18,
        "NaN",
        "1e999",
        "kernel",
        "\x00",
        "\ud7ff\x1b[2J",
    ),
    *("phase:" + "a" * 3000, "mod:a.0.b", "nn.Module: M_0", "sysbench:steps:3"),
    *("sysbench:steps:999999", "autograd::engine::evaluate_function: X", "Optimizer.step#AdamW"),
    *("triton_poi_fused__to__to_copy_copy_copy__copy_0", "nccl[bold]", "cudaGraphLaunch"),
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENTS = ("correlation", "device", "Sequence number", "Input Dims", "Input type", "External id")


def whole_trace() -> list[Event]:
    """Two steps of three phases with modules, operators, launches, kernels on two streams."""
    events: list[Event] = []

    def add(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
            | {"args": {key.replace("_", " "): value for key, value in args.items()}}
        )

    add("user_annotation", "sysbench:steps:2", 0, 400)
    for step in (0, 200):
        for number, phase in enumerate(("forward", "backward", "optimizer")):
            begin = step + 60 * number
            add("cpu_op", f"phase:{phase}", begin, 55)
            add("cpu_op", "mod:blocks.0.ffn", begin + 1, 50)
            for call in range(3):
                at, correlation = begin + 2 + 15 * call, step + 10 * number + call + 1
                sequence = {"Sequence_number": correlation}
                add("cpu_op", "aten::mm", at, 12, 1 + number % 2, **sequence)
                add("cuda_runtime", "cudaLaunchKernel", at + 2, 3, 1, correlation=correlation)
                add("kernel", "gemm", at + 9, 8, 7, device=0, correlation=correlation)
            add("gpu_memcpy", "Memcpy DtoH", begin + 40, 9, 14, device=0, correlation=9000 + begin)
    return events


def mutations(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Endlessly what may befall a trace, and the file that results."""
    while True:
        kind = chance.choice(list(MUTATIONS))
        yield kind, MUTATIONS[kind](chance, whole_trace())


def _dumped(events: Any) -> bytes:
    return json.dumps({"traceEvents": events}).encode()


def _wrong_values(chance: random.Random, events: list[Event]) -> bytes:
    for _ in range(chance.randrange(1, 6)):
        event = chance.choice(events)
        if chance.random() < 0.6 or not isinstance(event["args"], dict):
            event[chance.choice(FIELDS)] = chance.choice(HOSTILE)
        else:
            event["args"][chance.choice(ARGUMENTS)] = chance.choice(HOSTILE)
    return _dumped(events)


def _wrong_times(chance: random.Random, events: list[Event]) -> bytes:
    """Ranges that enclose each other in turns, begin before the trace, end before they begin."""
    for event in chance.sample(events, 12):
        event["ts"] = chance.choice([chance.randrange(-50, 500), event["ts"], -(10**14)])
        event["dur"] = chance.choice([chance.randrange(-50, 500), 0, 1e-3, 1e11])
    return _dumped(events)


def _repeated(chance: random.Random, events: list[Event]) -> bytes:
    """Correlation ids and sequence numbers that many share; events in any order."""
    events += chance.choices(events, k=30)
    for event in events:
        if chance.random() < 0.2:
            event["args"] = {"correlation": 3, "Sequence number": 3, "device": chance.randrange(3)}
    chance.shuffle(events)
    return _dumped(events[chance.randrange(40) :])


def _deep(chance: random.Random, events: list[Event]) -> bytes:
    """Nested brackets, far deeper than any decoder's stack, or not quite."""
    depth = chance.choice([50, 900, 20_000])
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nested = opening * depth + b"0" + closing * depth
    return _dumped(events).replace(b'"dur"', b'"deep": ' + nested + b', "dur"', 1)


def _nested_calls(chance: random.Random, events: list[Event]) -> bytes:
    """One call inside of another, hundreds deep, ending in any order."""
    cat, name = chance.choice([("python_function", "nn.Module: M"), ("cpu_op", "aten::mm")])
    for level in range(150):
        dur = 1000 - 2 * level + chance.randrange(4)
        events.append({"ph": "X", "cat": cat, "name": name, "ts": level, "dur": dur, "tid": 1})
    return _dumped(events)


def _garbled(chance: random.Random, events: list[Event]) -> bytes:
    text = bytearray(_dumped(events))
    for _ in range(chance.randrange(1, 4)):
        start = chance.randrange(len(text))
        end = min(len(text), start + chance.choice([0, 1, 5, 50]))
        pieces = [
            b"",
            b"}",
            b"]",
            b'"',
            b"{",
            b"NaN",
            b"-Infinity",
            b"1e99",
            b"\\",
            b"\xff",
            b"null",
        ]
        text[start:end] = chance.choice([*pieces, text[end : end + 40]])
    return bytes(text)


def _cut(chance: random.Random, events: list[Event]) -> bytes:
    text = _dumped(events)
    text = gzip.compress(text, 1) if chance.random() < 0.5 else text
    return text[: chance.randrange(len(text))]


def _bomb(chance: random.Random, events: list[Event]) -> bytes:
    """A file of kilobytes that unpacks to many megabytes, of which little is to be kept."""
    filler = chance.choice([b" ", b"{},", b'{"ph": "i"},', b'{"name": "x"},', b"[", b'"'])
    text = b"[" + filler * (8 * 2**20 // len(filler)) + json.dumps(events)[1:].encode()
    return gzip.compress(text, 1)


MUTATIONS: dict[str, Callable[[random.Random, list[Event]], bytes]] = {
    "wrong values": _wrong_values,
    "wrong times": _wrong_times,
    "repeated": _repeated,
    "deep": _deep,
    "nested calls": _nested_calls,
    "garbled": _garbled,
    "cut": _cut,
}


def check_table(path: Path, *, by_layer: bool) -> None:
    """Read a file whose table must close: every part at least 0, all of them the window."""
    ledger = time_ledger(read_trace(path))
    parts = [*ledger.exclusive.tolist(), *ledger.idle.values(), ledger.unattributed]
    assert min(parts) >= 0
    assert sum(parts) == ledger.window.length
    table = kernel_rows(ledger, by_layer=by_layer)
    calls = len(set(ledger.work.call.tolist()))
    assert sum(row.calls for row in table.rows) * table.steps == pytest.approx(calls)
    assert all(row.exclusive_ns <= row.total_ns for row in table.rows)
    assert 0 <= table.coverage.explained <= 1


def main() -> None:
    """Read them all; print how many of each kind were refused."""
    chance = random.Random(sys.argv[1])
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
    refused: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    made = mutations(chance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for number in range(CASES):
            if number % 200 == 0:
                kind, data = "bomb", _bomb(chance, whole_trace())
            else:
                kind, data = next(made)
            path.write_bytes(data)
            # So that the small files, too, are read in pieces.
            chrome_json.CHUNK_BYTES = 2**20 if kind == "bomb" else 2**14
            seen[kind] += 1
            try:
                check_table(path, by_layer=number % 2 == 0)
            except SysbenchError:
                refused[kind] += 1
            except BaseException:
                print(f"case {number}, {kind}", file=sys.stderr)
                raise
    print(json.dumps({kind: [refused[kind], seen[kind]] for kind in seen}))


def test_hostile_traces_are_read_or_refused() -> None:
    from tests.drawn import seed  # not at the top: the child has no such package

    done = subprocess.run(
        [sys.executable, "-P", __file__, seed()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused = json.loads(done.stdout)
    assert sum(seen for _, seen in refused.values()) == CASES
    assert set(refused) == {*MUTATIONS, "bomb"}
    # Each kind is dangerous in earnest: some are refused, and but for cuts, some are read.
    for kind in ("wrong values", "deep", "garbled"):
        assert 0 < refused[kind][0] < refused[kind][1], kind
    assert refused["cut"][0] >= refused["cut"][1] - 5
    for kind in ("wrong times", "repeated", "nested calls"):
        assert refused[kind][0] < refused[kind][1], kind


if __name__ == "__main__":
    main()
