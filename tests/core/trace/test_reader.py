from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.trace import columns as trace_columns
from sysbench.core.trace import trace_json as chrome_json
from sysbench.core.trace.trace_events import Kind, Trace
from sysbench.core.trace.trace_reader import read_trace

HOSTILE = 'k<[bold]> "}, {" \\ \x1b[31m }\n,{ ]'


def _fill(writer: Any) -> None:
    writer.op("phase:forward", 0, 900)
    for number in range(20):
        writer.op(f"aten::op{number}", number * 40, 30, sequence=number)
        writer.launch(number * 40 + 5, HOSTILE, number * 40 + 20, 15)
    writer.events.append('{"ph": "s", "cat": "ac2g", "id": 1, "ts": 1, "name": "ac2g"}')
    writer.events.append('{"ph": "M", "name": "thread_name", "args": {"device": "GPU 0"}}')


def _named(trace: Trace) -> list[tuple[str, int, int]]:
    return [
        (trace.names[name], start + trace.base_ns, end - start)
        for events in (trace.host, trace.device)
        for name, start, end in zip(
            events.name.tolist(), events.start.tolist(), events.end.tolist(), strict=True
        )
    ]


def test_events_keep_every_nanosecond(writer: Any) -> None:
    writer.op("aten::mm", 0, 1)
    writer.launch(1, "kernel", 7, 3)
    trace = read_trace(writer.write())
    start = 1_700_000_000_123_456_789
    assert _named(trace) == [
        ("aten::mm", start, 1),
        ("cudaLaunchKernel", start + 1, 2),
        ("kernel", start + 7, 3),
    ]
    assert trace.device.kind.tolist() == [Kind.KERNEL]
    assert trace.device.correlation.tolist() == [1]


@pytest.mark.parametrize(
    ("category", "name", "cbid", "read"),
    [
        ("cuda_runtime", "INVALID", 505, "__cudaLaunchKernel"),
        ("cuda_runtime", "INVALID", 211, "cudaLaunchKernel"),
        ("Runtime", "INVALID", 311, "cudaGraphLaunch"),
        ("cuda_runtime", "INVALID", 504, "INVALID"),  # finds the kernel, and launches nothing
        ("cuda_driver", "INVALID", 505, "INVALID"),  # the driver's numbers are others
        ("cuda_runtime", "INVALID", "505", "INVALID"),
        ("cuda_runtime", "cudaMemcpyAsync", 505, "cudaMemcpyAsync"),
        ("cpu_op", "INVALID", 505, "INVALID"),
    ],
)
def test_a_launch_that_the_profiler_cannot_name_is_named_by_its_number(
    writer: Any, category: str, name: str, cbid: object, read: str
) -> None:
    writer.add(category, name, 0, 1, cbid=cbid, correlation=1)
    assert read_trace(writer.write()).names == [read]


FORMS: dict[str, Callable[[str], bytes]] = {
    "object": str.encode,
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "one line": lambda text: json.dumps(json.loads(text)).encode(),
    "indented": lambda text: json.dumps(json.loads(text), indent=1).encode(),
    "list": lambda text: json.dumps(json.loads(text)["traceEvents"]).encode(),
    "open list": lambda text: json.dumps(json.loads(text)["traceEvents"])[:-1].encode() + b",\n",
    "keys around": lambda text: json.dumps(
        {"meta": [{"a": [1]}], **json.loads(text), "end": [{"b": 1}, {"c": 2}]}
    ).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk_bytes", [97, 1000, 2**20])
def test_all_forms_and_chunk_sizes_give_the_same_events(
    form: str, chunk_bytes: int, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(writer)
    expected = _named(read_trace(writer.write()))
    assert len(expected) == 1 + 20 * 3
    if form in ("one line", "indented", "list", "open list", "keys around"):
        # json.dumps goes through floats, which is what the exact reading is not about
        writer.path.write_text(json.dumps(json.loads(writer.text())))
        expected = _named(read_trace(writer.path))
    monkeypatch.setattr(chrome_json, "CHUNK_BYTES", chunk_bytes)
    writer.path.write_bytes(FORMS[form](writer.text()))
    assert _named(read_trace(writer.path)) == expected


def test_progress_reaches_the_end_of_the_file(writer: Any) -> None:
    _fill(writer)
    reports: list[tuple[int, int]] = []
    path = writer.write()
    read_trace(path, lambda done, size: reports.append((done, size)))
    assert reports[-1] == (path.stat().st_size, path.stat().st_size)


DAMAGED = {
    "empty": b"",
    "not json": b"hello",
    "a number": b"17",
    "no events": b'{"schemaVersion": 1}',
    "events are no list": b'{"traceEvents": {}}',
    "nested events": b'{"a": {"traceEvents": [{"ph": "X"}]}}',
    "events are numbers": b'{"traceEvents": [1, 2]}',
    "a name that is a number": b'[{"ph": "X", "cat": "kernel", "name": 1, "ts": 1, "dur": 1}]',
    "arguments that are a list": b'[{"ph": "X", "cat": "kernel", "name": "a", "args": [1]}]',
    "a time that is a list": b'[{"ph": "X", "cat": "kernel", "name": "a", "ts": [], "dur": 1}]',
    "a huge time": b'[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1e300, "dur": 1}]',
    "a duration of a year": b'[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 3e13}]',
    "a huge integer": b'[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1' + b"0" * 5000 + b"}]",
    "a thread that is an object": b'[{"ph": "X", "cat": "cpu_op", "tid": {}, "ts": 1, "dur": 1}]',
    "not a number": b'[{"ph": "X", "cat": "kernel", "name": "a", "ts": NaN, "dur": 1}]',
    "deep": b'{"traceEvents": ' + b"[" * 100_000,
    "cut gzip": gzip.compress(b"[" + b"{}," * 1000)[:-20],
    "bad gzip": b"\x1f\x8b" + b"\x00" * 30,
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused_by_name(case: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(DAMAGED[case])
    with pytest.raises(DamagedFileError, match="not a valid chrome trace"):
        read_trace(path)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("MAX_EVENTS", "more than 30 timed events"), ("MAX_CHARACTERS", "more than 30 characters")],
)
def test_more_than_a_real_trace_holds_is_refused(
    limit: str, reason: str, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a small packed file could otherwise fill the memory with."""
    monkeypatch.setattr(trace_columns, limit, 30)
    _fill(writer)
    with pytest.raises(DamagedFileError, match=reason):
        read_trace(writer.write())


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no-such"):
        read_trace(tmp_path / "no-such.json")


def test_odd_arguments_are_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": -4, "args": '
        '{"correlation": "x", "device": null, "Sequence number": 99999999999999999999}},'
        '{"ph": "X", "cat": "kernel", "name": "b", "ts": 1, "dur": 2, "args": null}]'
    )
    device = read_trace(path).device
    assert (device.end - device.start).tolist() == [0, 2000]
    assert device.correlation.tolist() == device.device.tolist() == [-1, -1]
