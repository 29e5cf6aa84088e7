"""Small faults of a trace's JSON are repaired and counted, or refused with their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.reading import read_tables
from sysbench.core.trace import json_repair as repair
from sysbench.core.trace import trace_json as chrome_json
from sysbench.core.trace.trace_events import Trace
from sysbench.core.trace.trace_reader import read_trace

EVENTS = 40


def whole(**around: object) -> str:
    """Kernels of 3 µs each, one every 5 µs; ``after`` stands behind the events."""
    after = {"after": around.pop("after")} if "after" in around else {}
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{number}", "ts": 7 + 5 * number, "dur": 3}
        | {"args": {"device": 0, "stream": 2, "occupancy": 0.5}}
        for number in range(EVENTS)
    ]
    return json.dumps({**around, "traceEvents": events, **after})


def replaced(old: str, new: str, count: int = 1) -> Callable[[], bytes]:
    return lambda: whole().replace(old, new, count).encode("latin-1")


BROKEN: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "a bad byte": (replaced('"k30"', '"k\xff30"'), repair.NOT_UTF8, "k\N{REPLACEMENT CHARACTER}30"),
    "NaN": (replaced('"occupancy": 0.5', '"occupancy": NaN', 3), repair.NOT_FINITE, "k0"),
    "infinity": (replaced("0.5", "-Infinity"), repair.NOT_FINITE, "k0"),
    "not a number as C prints it": (replaced("0.5", "-nan"), repair.NOT_FINITE, "k0"),
    "a comma after the last event": (replaced("}}]}", "}},\n]}"), repair.EXTRA_COMMA, "k39"),
    "a comma after an argument": (replaced("0.5}", "0.5,}", 30), repair.EXTRA_COMMA, "k0"),
    "a path of Windows": (
        replaced('"k7"', r'"C:\Users\ann\train.py(3): run"'),
        repair.BACKSLASHES,
        r"C:\Users\ann\train.py(3): run",
    ),
    "a path of Windows that ends with a backslash": (
        replaced('"k7"', r'"E:\Work\new\"'),
        repair.BACKSLASHES,
        "E:\\Work\\new\\",
    ),
    "a path of a network": (
        replaced('"k7"', r'"\\server\share\x"'),
        repair.BACKSLASHES,
        r"\server\share\x",
    ),
    "a path of Windows before the events": (
        lambda: whole(name="path").replace('"path"', r'"D:\x\y"').encode(),
        repair.BACKSLASHES,
        "k0",
    ),
    "a bracket before the object": (lambda: f"]{whole()}".encode(), repair.BEFORE_EVENTS, "k0"),
    "broken text before the events": (
        lambda: whole(info="i").replace('"i"', '["a "b" c"]').encode(),
        repair.BEFORE_EVENTS,
        "k0",
    ),
    "broken text after the events": (
        lambda: whole(after=["x"]).replace('["x"]', '["id "7": "a"}, {"]').encode(),
        repair.AFTER_EVENTS,
        "k39",
    ),
    "text cut after the events": (
        lambda: whole(after="x").encode()[:-4],
        repair.AFTER_EVENTS,
        "k0",
    ),
    "durations as text": (replaced('"dur": 3', '"dur": "3.0"', 99), repair.TEXT_NUMBERS, "k0"),
    "starts as text": (replaced('"ts": 7', '"ts": "7"'), repair.TEXT_NUMBERS, "k0"),
    "a quote in a name": (
        lambda: whole().replace('"name": "k9", ', '"name": "k"9", "pid": 3, ').encode(),
        repair.QUOTES,
        "k\N{REPLACEMENT CHARACTER}9",
    ),
}


def spans(trace: Trace) -> list[tuple[int, int]]:
    return list(zip(trace.device.start.tolist(), trace.device.end.tolist(), strict=True))


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("chunk_bytes", [200, 2**20])
def test_small_faults_are_repaired_and_counted(
    case: str, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_json, "CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "trace.json"
    path.write_text(whole())
    expected = spans(read_trace(path))
    assert len(expected) == EVENTS
    text, what, name = BROKEN[case]
    path.write_bytes(text())
    trace = read_trace(path)
    assert spans(trace) == expected
    assert name in trace.names
    assert [cause for cause, count in trace.repairs.items() if count] == [what]


@pytest.mark.parametrize("chunk_bytes", [200, 2**20])
@pytest.mark.parametrize("indent", [None, 1])
def test_other_faults_are_refused_with_line_and_column(
    chunk_bytes: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_json, "CHUNK_BYTES", chunk_bytes)
    text = json.dumps(json.loads(whole()), indent=indent).replace('"k9"', "k9")
    # A repair before the fault does not move its place.
    text = text.replace("0.5", "NaN", 3)
    line = text[: text.index("k9")].count("\n") + 1
    column = text.index("k9") - text.rfind("\n", 0, text.index("k9"))
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(DamagedFileError, match=f"value in line {line:,}, column {column:,}"):
        read_trace(path)


@pytest.mark.parametrize("chunk_bytes", [200, 2**20])
@pytest.mark.parametrize("form", ["{}", '{{"traceEvents": {}}}'])
def test_values_of_another_type_are_refused_with_their_event(
    form: str, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_json, "CHUNK_BYTES", chunk_bytes)
    events = json.loads(whole())["traceEvents"]
    events[33]["name"] = 5
    path = tmp_path / "trace.json"
    path.write_text(form.format(json.dumps(events)))
    with pytest.raises(DamagedFileError, match=r"got `int` in event 34 \(key name\)"):
        read_trace(path)


@pytest.mark.parametrize("cut", [3, 60, 2000])
def test_a_cut_list_of_events_is_truncated(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(whole()[:-cut])
    with pytest.raises(DamagedFileError, match="it is truncated"):
        read_trace(path)


def test_a_cut_trace_with_requests_is_refused_once(tmp_path: Path) -> None:
    """The second reading once took a time that grew with the square of the size."""
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    events = [memory | {"ts": 3.5, "args": {"Addr": 1, "Bytes": 64, "Device Type": 0}}]
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 5.0}
    events += [operator | {"ts": 10 * number, "args": {}} for number in range(20_000)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events})[:-40])
    with pytest.raises(DamagedFileError, match="it is truncated"):
        read_tables(path, lambda *_: None)


REAL = {
    "f19a_bad_utf8_in_a_name": repair.NOT_UTF8,
    "f19b_quotes_in_metadata_after_the_events": repair.AFTER_EVENTS,
    "f19d_nan": repair.NOT_FINITE,
    "f20_numbers_as_strings": repair.TEXT_NUMBERS,
}


@pytest.mark.parametrize("case", REAL)
def test_public_cases(case: str, shared_data: Path) -> None:
    trace = read_trace(shared_data / "cases" / "files" / f"{case}.json")
    (span,) = spans(trace)
    assert span[1] - span[0] == (40_000 if case.startswith("f20") else 30_000)
    assert [cause for cause, count in trace.repairs.items() if count] == [REAL[case]]
