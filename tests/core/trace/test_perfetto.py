"""Perfetto traces: the tables of the JSON of the same events, and what is refused."""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.core.errors import DamagedFileError
from sysbench.core.inspection.inspection import format_of
from sysbench.core.inspection.ranks_folder import FolderDecoding, merge_traces
from sysbench.core.inspection.reading import Tables, read_tables
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.lanes import LaneEvents, decode_lanes
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_reader import read_trace
from sysbench.tui.cli import main
from tests.core.trace.ledgers import GEMM, NCCL
from tests.core.trace.perfetto_writer import (
    BEGIN,
    BOOT_NS,
    CLEARED,
    END,
    INSTANT,
    SEQUENCE,
    PerfettoWriter,
    fixed64,
    message,
    number,
    text,
    varint,
)

STYLES: list[dict[str, Any]] = [
    {"layout": "blocks"},
    {"layout": "pairs", "interned": False},
    {"layout": "sorted", "delta_clock": True},
    {"layout": "sorted", "packed": True},
]
pytestmark = pytest.mark.usefixtures("sysbench_home")
TIMES = ("start", "end")
FIXTURES = Path(__file__).parents[2] / "fixtures"


def tables(path: Path) -> Tables:
    return read_tables(path, lambda *_: None)


def document(read: Tables) -> dict[str, Any]:
    """All tables of a file, without what names the file."""
    of_file: dict[str, Any] = {"file": "", "file_bytes": 0, "kind": "chrome-trace"}
    inspection = msgspec.structs.replace(read.inspection, **of_file)
    everything: dict[str, Any] = msgspec.to_builtins((inspection, read.layers))
    return {"tables": everything, "lanes": timeline(read)}


def timeline(read: Tables) -> list[object]:
    """The lanes with texts in place of their numbers."""
    if read.lanes is None:
        return []
    lanes = decode_lanes(read.lanes, Path("lanes"))
    texts = [*lanes.texts, None]
    columns = [name for name in LaneEvents.__dataclass_fields__ if name not in TIMES]
    shown: list[object] = [lanes.low, lanes.high, lanes.window, lanes.left_out]
    for lane in lanes.lanes:
        shown += [lane.name, lane.group, lane.kind]
        shown += [getattr(lane.events, name).tolist() for name in TIMES]
        shown += [[texts[at] for at in getattr(lane.events, name).tolist()] for name in columns]
    return shown


def assert_equal_tables(chrome: Path, tmp_path: Path, style: dict[str, Any]) -> Path:
    path = PerfettoWriter(**style).write(chrome, tmp_path / "any name.bin")
    assert format_of(path) == "perfetto-trace"
    ours, theirs = document(tables(path)), document(tables(chrome))
    assert ours["tables"] == theirs["tables"]
    assert ours["lanes"] == theirs["lanes"]
    return path


@pytest.fixture
def varied(writer: Any) -> Path:
    """A trace with every kind of event and argument that is read."""
    shapes = {"Input Dims": [[64, 32], [], [32, 16]], "Input type": ["float", "", "float"]}
    collective = {
        **{"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 2**20},
        **{"Out msg nelems": 2**20, "Group size": 4, "Process Group Name": "tp"},
        "Process Group Ranks": "[0, 1, 2, 3]",
    }
    writer.add("user_annotation", "ProfilerStep#1", 0, 5_000)
    writer.add("python_function", "nn.Module: Linear_0", 10, 900)
    writer.add("python_function", "train.py(12): step", 5, 4_000)
    writer.add("cpu_op", "aten::linear", 20, 800, sequence=7, **shapes)
    writer.launch(30, GEMM, 100, 500, **{"blocks per SM": 2.5, "grid": [1, 2, 3]})
    writer.call("cudaDeviceSynchronize", 1_000, 40)
    # Both kernels of the stream overlap: a dependent launch.
    writer.launch(1_100, GEMM, 1_200, 300)
    writer.launch(1_110, "elementwise", 1_450, 200)
    writer.launch(1_120, NCCL, 1_300, 900, stream=14, **collective)
    writer.launch(1_130, "Memcpy HtoD (Pinned -> Device)", 2_300, 50, cat="gpu_memcpy", bytes=4096)
    writer.launch(1_140, "Memset (Device)", 2_360, 0, cat="gpu_memset")
    writer.add("gpu_user_annotation", "phase", 100, 3_000, tid=7, device=0, stream=7)
    writer.add("cuda_runtime", "hipLaunchKernel", 2_500, 5, correlation=99, kernel="named_kernel")
    writer.work("named_kernel", 2_600, 30, correlation=99)
    writer.add("cpu_op", "record_param_comms", 2_700, 20, Seq=5)
    writer.add("cuda_runtime", "INVALID", 2_730, 5, cbid=430, correlation=100)
    writer.work("by_a_compiler", 2_800, 30, correlation=100)
    writer.add("user_annotation", "ProfilerStep#2", 6_000, 2_000)
    writer.launch(6_100, GEMM, 6_200, 700, device=1)
    writer.launch(6_200, GEMM, 6_300, 900)
    return Path(writer.write())


@pytest.mark.parametrize("style", STYLES)
def test_every_table_is_that_of_the_json(
    varied: Path, tmp_path: Path, style: dict[str, Any]
) -> None:
    assert_equal_tables(varied, tmp_path, style)


@pytest.mark.parametrize("style", STYLES)
def test_operators_and_allocations_of_a_cpu_are_those_of_the_json(
    tmp_path: Path, style: dict[str, Any]
) -> None:
    chrome = tmp_path / "trace.json"
    place = {"pid": 1, "tid": 1, "args": {}}
    called = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 90} | place
    function = {"ph": "X", "cat": "python_function", "name": "a.py(3): f", "ts": 5, "dur": 100}
    moves = [(20, 4096), (30, 512), (60, -512), (90, -4096)]
    memory = [
        {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": at}
        | place
        | {"args": {"Bytes": size, "Addr": 2**47 + abs(size), "Device Type": 0, "Device Id": -1}}
        for at, size in moves
    ]
    events = [called, function | place, *memory]
    chrome.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10**18}))
    path = assert_equal_tables(chrome, tmp_path, style)
    found = tables(path).inspection.memory
    assert found is not None and found.peak_allocated_bytes == 4608


@pytest.mark.parametrize("style", STYLES)
def test_tables_of_a_recorded_trace_are_equal(tmp_path: Path, style: dict[str, Any]) -> None:
    assert_equal_tables(FIXTURES / "ranks" / "rank0.json.gz", tmp_path, style)


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("traces/qwen15_0.5b_h100_fwd", STYLES[0]),
        ("more/hta_rank0", STYLES[1]),
        ("more/tl_mi300_qwen", STYLES[2]),
        ("more/switch_moe_a", STYLES[3]),
    ],
)
def test_tables_of_public_traces_are_equal(
    shared_data: Path, tmp_path: Path, name: str, style: dict[str, Any]
) -> None:
    assert_equal_tables(shared_data / f"{name}.json.gz", tmp_path, style)


def test_a_packed_file_is_read_and_its_name_does_not_matter(varied: Path, tmp_path: Path) -> None:
    plain = PerfettoWriter().write(varied, tmp_path / "trace.json")
    packed = tmp_path / "trace"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert format_of(plain) == format_of(packed) == "perfetto-trace"
    assert document(tables(packed)) == document(tables(varied))


def test_a_slice_without_an_end_is_left_out_and_reported(varied: Path, tmp_path: Path) -> None:
    writer = PerfettoWriter("sorted")
    writer.write(varied, tmp_path / "trace.pftrace")
    opened = [text(22, "kernel"), text(23, "still_running")]
    writer.event(BEGIN, 9_000_000, 2**62, *opened)
    (tmp_path / "trace.pftrace").write_bytes(writer.encoded())
    found = tables(tmp_path / "trace.pftrace").inspection
    assert found.findings[0].verdict == "1 event without a start or an end is left out."
    assert found.kernels == tables(varied).inspection.kernels


def test_text_that_begins_with_a_line_break_is_json(varied: Path) -> None:
    varied.write_text("\n" + varied.read_text())
    assert format_of(varied) == "chrome-trace"


def test_a_folder_of_ranks_is_that_of_the_json(tmp_path: Path) -> None:
    (tmp_path / "perfetto").mkdir()
    chrome = FIXTURES / "ranks"
    for path in chrome.glob("*.json.gz"):
        name = path.name.replace(".json.gz", ".pftrace")
        PerfettoWriter().write(path, tmp_path / "perfetto" / name)
    theirs, ours = (
        FolderDecoding(folder).run(lambda *_: None) for folder in (chrome, tmp_path / "perfetto")
    )
    assert (theirs.kind, ours.kind) == ("chrome-trace", "perfetto-trace")

    def shown(ranks: Ranks) -> object:
        rows = [msgspec.structs.replace(row, file="") for row in ranks.rows]
        return ranks.world_size, ranks.reference, rows, ranks.steps, ranks.collectives

    assert shown(ours) == shown(theirs)
    merged = tmp_path / "all.json"
    merge_traces(tmp_path / "perfetto", ours, merged, lambda _: None)
    of_merged = document(tables(merged))
    merge_traces(chrome, theirs, merged, lambda _: None)
    assert of_merged == document(tables(merged))


def test_it_is_inspected_compared_and_exported(
    varied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(PerfettoWriter().write(varied, tmp_path / "trace.pftrace"))
    assert main(["inspect", path]) == 0
    assert f"{path}\nPerfetto trace · " in capsys.readouterr().out
    assert main(["compare", str(varied), path, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["difference"]["time"]
    assert compared["a_ns"] == compared["b_ns"] > 0
    page = tmp_path / "page.html"
    assert main(["export", path, "html", "-o", str(page)]) == 0
    assert "Perfetto trace" in page.read_text() or "perfetto trace" in page.read_text()


def render_stages(path: Path) -> Path:
    """The form in which torch writes the work of GPUs: render stages with texts as arguments."""
    writer = PerfettoWriter()
    writer.start({"baseTimeNanoseconds": 10**18})
    names = {1: "Kernel", 2: "Memcpy", 3: "Annotation", 9: "Channel #1"}
    stages = [message(24, number(1, iid), text(2, name)) for iid, name in names.items()]
    kernels = [message(1000, number(1, 5), text(3, GEMM))]
    writer.packet(message(12, *stages, *kernels), number(13, CLEARED))
    track = writer.track(10, 11, 0)
    for correlation, at in ((1, 1_000), (2, 1_020)):
        arguments = message(4, text(10, "correlation"), number(4, correlation))
        category = text(22, "cuda_runtime")
        writer.event(BEGIN, at, track, text(23, "cudaLaunchKernel"), category, arguments)
        writer.event(END, at + 5, track)

    def stage(at: int, duration: int, kind: int, *parts: bytes, **extra: object) -> None:
        said = [
            message(6, text(1, key.replace("_", " ")), text(2, f"{extra[key]}")) for key in extra
        ]
        fields = [number(1, 77), number(2, duration), number(11, 3), number(13, 9)]
        writer.packet(number(8, at), message(53, *fields, number(14, kind), *parts, *said))

    stage(1_010, 400, 1, number(19, 5), stream_id=7, device_id=3, correlation=1)
    stage(1_500, 100, 2, stream_id=8, device_id=3, correlation=2, bytes=4096)
    stage(1_010, 600, 3, text(17, "forward"), stream_id=7, device_id=3)
    path.write_bytes(writer.encoded())
    return path


def test_work_of_gpus_in_render_stages_is_read(tmp_path: Path) -> None:
    inspection = tables(render_stages(tmp_path / "trace.pftrace")).inspection
    kernels = inspection.kernels
    assert kernels is not None and kernels.device == 3
    assert {(row.name, row.category, row.exclusive_ns) for row in kernels.rows} == {
        (GEMM, "gemm", 400),
        ("Memcpy", "copy", 100),
    }
    assert (kernels.coverage.launches, kernels.coverage.unlinked) == (2, 0)
    assert [row.bytes for row in kernels.copies] == [4096]


def test_a_render_stage_without_a_duration_is_left_out_and_reported(tmp_path: Path) -> None:
    path = render_stages(tmp_path / "trace.pftrace")
    whole = tables(path).inspection
    stage = message(53, number(1, 78), number(11, 3), number(13, 9), number(14, 1), number(19, 5))
    path.write_bytes(path.read_bytes() + message(1, number(8, 1_900), stage, number(10, SEQUENCE)))
    found = tables(path).inspection
    assert found.kernels == whole.kernels
    assert found.findings[0].verdict == "1 event without a start or an end is left out."


def test_a_launch_is_linked_by_its_flow_if_no_argument_does(tmp_path: Path) -> None:
    writer = PerfettoWriter(interned=False)
    writer.start({})
    host, device = writer.track(1, 1, 0), writer.track(0, 7, 0)
    for at, flow in ((100, 2**40), (200, 2**40 + 1)):
        launch = [text(23, "cudaLaunchKernel"), text(22, "cuda_runtime"), fixed64(47, flow)]
        writer.event(BEGIN, at, host, *launch)
        writer.event(END, at + 5, host)
        kernel = [text(23, GEMM), text(22, "kernel"), fixed64(48, flow)]
        number_of = message(4, text(10, "device"), number(3, 0))
        writer.event(BEGIN, at + 10, device, *kernel, number_of)
        writer.event(END, at + 60, device)
    path = tmp_path / "trace.pftrace"
    path.write_bytes(writer.encoded())
    coverage = kernel_rows(time_ledger(read_trace(path))).coverage
    assert (coverage.launches, coverage.kernels, coverage.unlinked) == (2, 2, 0)


def test_numbers_of_texts_end_where_a_sequence_clears_its_state(tmp_path: Path) -> None:
    writer = PerfettoWriter()
    writer.start({})
    track = writer.track(1, 1, 0)
    for round_, name in enumerate(("aten::mm", "aten::add")):
        entries = [message(2, number(1, 1), text(2, name))]
        entries.append(message(1, number(1, 1), text(2, "cpu_op")))
        writer.packet(message(12, *entries), number(13, CLEARED))
        writer.event(BEGIN, 100 * round_ + 100, track, number(10, 1), number(3, 1))
        writer.event(END, 100 * round_ + 150, track)
    path = tmp_path / "trace.pftrace"
    path.write_bytes(writer.encoded())
    rows = kernel_rows(time_ledger(read_trace(path))).rows
    assert {row.name: row.exclusive_ns for row in rows} == {"aten::mm": 50, "aten::add": 50}


def test_slices_in_the_older_form_have_their_length(tmp_path: Path) -> None:
    writer = PerfettoWriter(interned=False)
    track = writer.track(1, 1, 0)
    legacy = message(6, number(2, ord("X")), number(3, 3))
    writer.packet(
        number(8, 1_000),
        message(11, number(11, track), text(23, "aten::mm"), text(22, "cpu_op"), legacy),
    )
    path = tmp_path / "trace.pftrace"
    path.write_bytes(writer.encoded())
    (row,) = kernel_rows(time_ledger(read_trace(path))).rows
    assert (row.name, row.exclusive_ns) == ("aten::mm", 3_000)


def test_a_trace_of_another_program_is_refused_as_what_it_is(tmp_path: Path) -> None:
    writer = PerfettoWriter(interned=False)
    writer.start({})
    track = writer.track(1, 1, 0)
    writer.event(BEGIN, BOOT_NS, track, text(23, "Choreographer"), text(22, "gfx"))
    writer.event(END, BOOT_NS + 5, track)
    writer.event(INSTANT, BOOT_NS, track, text(23, "vsync"))
    path = tmp_path / "trace.pftrace"
    path.write_bytes(writer.encoded())
    with pytest.raises(DamagedFileError, match="a Perfetto trace without any kernel or operator"):
        tables(path)


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_truncated_file_is_refused_with_its_place(
    varied: Path, tmp_path: Path, share: float
) -> None:
    path = PerfettoWriter().write(varied, tmp_path / "trace.pftrace")
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedFileError, match=r"truncated \(copy or record it again\), at byte"):
        read_trace(path)
    path.write_bytes(gzip.compress(data)[:-200])
    with pytest.raises(DamagedFileError, match=r"truncated \(copy or record it again\)"):
        read_trace(path)


def whole(*parts: bytes) -> bytes:
    """A valid file, and packets after it."""
    writer = PerfettoWriter()
    writer.start({})
    writer.track(1, 1, 0)
    return writer.encoded() + b"".join(parts)


NESTED = b""
for _ in range(3000):
    NESTED = message(12, NESTED)
NESTED = message(11, text(22, "cpu_op"), number(9, 1), message(4, text(10, "kernel"), NESTED))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (whole(b"\x12\x02ab"), "something else than a packet"),
        (whole(b"\x0a" + b"\xff" * 8), "length of a packet is out of range"),
        (whole(b"\x0a" + varint(2**28) + b"ab"), "a packet exceeds 67,108,864 bytes"),
        (whole(message(1, b"\x58" + b"\xff" * 12)), "more than 64 bits"),
        (whole(message(1, b"\x5a" + varint(2**62) + b"ab")), "a field exceeds its message"),
        (whole(message(1, b"\x5b\x01")), "unknown type"),
        (whole(message(1, number(8, 2**63), message(11, number(9, 1)))), "a time is out of range"),
        (whole(message(1, NESTED)), "nested too deep"),
        (whole(message(1, message(133, b"zstd"))), "zstd"),
        (whole(message(1, message(50, b"no deflate"))), "compressed packets are damaged"),
    ],
)
def test_damage_is_refused_in_one_sentence(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=reason) as refusal:
        read_trace(path)
    assert "\n" not in str(refusal.value)


def test_a_long_message_takes_no_longer_than_its_bytes(tmp_path: Path) -> None:
    """Each of 300,000 empty annotations, and of as many fields of one packet, is a round alone."""
    path = tmp_path / "trace.pftrace"
    fields = number(13, 2) * 300_000
    event = message(11, number(9, 1), text(22, "cpu_op"), message(4) * 300_000)
    path.write_bytes(whole(message(1, fields), message(1, event)))
    assert len(read_trace(path).host) == 0  # the slice has no end


def test_compressed_packets_between_others_are_read_in_their_place(tmp_path: Path) -> None:
    def packets(at: int, name: str) -> bytes:
        writer = PerfettoWriter(interned=False)
        writer.event(BEGIN, at, 1, text(23, name), text(22, "cpu_op"))
        writer.event(END, at + 10, 1)
        return writer.encoded()

    inner = message(1, message(50, zlib.compress(packets(2_000, "aten::add"))))
    path = tmp_path / "trace.pftrace"
    path.write_bytes(whole(packets(1_000, "aten::mm"), inner, packets(3_000, "aten::mul"), inner))
    trace = read_trace(path)
    names = [trace.names[number] for number in trace.host.name]
    assert names == ["aten::mm", "aten::add", "aten::mul", "aten::add"]
    assert set((trace.host.end - trace.host.start).tolist()) == {10}


def test_an_archive_of_archives_is_refused(tmp_path: Path) -> None:
    once = PerfettoWriter(packed=True)
    once.start({})
    twice = PerfettoWriter(packed=True, packets=[once.encoded()])
    path = tmp_path / "trace.pftrace"
    path.write_bytes(twice.encoded())
    with pytest.raises(DamagedFileError, match="compressed twice"):
        read_trace(path)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_any_damage_ends_in_tables_or_a_typed_refusal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    source = folder / "perfetto-source.pftrace"
    if not source.exists():
        render_stages(source)
    chance = random.Random(seed)
    data = bytearray(source.read_bytes())
    for _ in range(count):
        at = chance.randrange(len(data))
        change = chance.choice((b"", b"\xff", b"\x80", struct.pack("<Q", chance.getrandbits(64))))
        data[at : at + chance.randrange(3)] = change
    path = folder / "perfetto-damaged.pftrace"
    path.write_bytes(data)
    try:
        ledger = time_ledger(read_trace(path))
    except DamagedFileError:
        return
    parts = [*ledger.exclusive.tolist(), *ledger.idle.values(), ledger.unattributed]
    assert min(parts) >= 0 and sum(parts) == ledger.window.length
