"""`inspect FOLDER` on three recorded gloo ranks: one slept, and two clocks were skewed."""

from __future__ import annotations

import gzip
import json
import pickle
import runpy
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sysbench.tui.cli import main
from tests.core.conftest import TraceWriter
from tests.core.trace.ledgers import GEMM, NCCL
from tests.envelope import content

pytestmark = pytest.mark.usefixtures("sysbench_home")
RECORDED = Path(__file__).parents[2] / "fixtures" / "ranks"
TRUTH = json.loads((RECORDED / "truth.txt").read_text())
NEAR_NS = 2_000_000


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_the_ranks_of_a_folder_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "merged.json.gz"
    found: dict[str, Any] = json.loads(printed(capsys, RECORDED, "--json", "--merged", output))
    rows = found["rows"]
    assert [row["rank"] for row in rows] == [0, 1, 2]
    for row, waiting_ns, skew_ns in zip(rows, TRUTH["waiting_ns"], TRUTH["skew_ns"], strict=True):
        assert abs(row["waiting_ns"] - waiting_ns) < NEAR_NS
        assert abs(row["clock_ahead_ns"] - skew_ns) <= row["clock_error_ns"] < NEAR_NS
        parts = ("compute_ns", "waiting_ns", "transfer_ns", "undivided_ns", "idle_ns")
        assert sum(row[part] for part in parts) == row["span_ns"]
    (finding,) = found["findings"]
    assert (finding["numbers"]["rank"], finding["numbers"]["cause"]) == (TRUTH["late"], "idle")
    assert len(found["steps"]) == 9
    assert {step["step"] for step in found["steps"]} == {1, 2, 3}
    assert found["left_out"] == ["truth.txt"] and found["absent"] == []

    text = printed(capsys, RECORDED)
    lines = text.splitlines()
    assert lines[1] == "3 ranks of 3 · chrome traces"
    assert "Rank 1 is a straggler" in text and "it ran nothing" in " ".join(text.split())
    assert "clocks aligned to rank 0 by collectives: error 0.4" in text
    assert max(map(len, lines[1:])) <= 100
    table = printed(capsys, RECORDED, "--section", "ranks", "--csv").splitlines()
    assert table[0].startswith("rank,span_ns,compute_ns,waiting_ns") and len(table) == 4
    assert "| step | rank 0 " in printed(capsys, RECORDED, "--section", "steps", "--md")
    assert "no memory in the folder" in complaint(capsys, RECORDED, "--section", "memory")
    assert "--steps requires a single file" in complaint(capsys, RECORDED, "--steps", "1-2")
    first = RECORDED / "rank0.json.gz"
    assert "requires a folder of ranks" in complaint(capsys, first, "--section", "ranks")
    assert_merged(output, rows)

    # The same files by other names are not decoded again.
    some = tmp_path / "some"
    some.mkdir()
    for name in ("rank0.json.gz", "rank2.json.gz"):
        (some / name).symlink_to(RECORDED / name)
    found = json.loads(printed(capsys, some, "--json"))
    assert (found["world_size"], found["absent"]) == (3, [1])
    assert "of 3 ranks, these have no file: 1" in printed(capsys, some)
    assert "is in the folder itself" in complaint(capsys, some, "--merged", some / "all.json")
    (some / "again.json.gz").symlink_to(RECORDED / "rank0.json.gz")
    assert "rank 0 has two files, again.json.gz and rank0" in complaint(capsys, some)


def assert_merged(output: Path, rows: list[dict[str, Any]]) -> None:
    """Every event of every rank, on the clock of rank 0, under numbers of its rank."""
    with gzip.open(output) as file:
        merged = json.load(file, parse_float=Decimal)["traceEvents"]
    names = [event for event in merged if event["name"] == "process_name"]
    rank_of = {event["pid"]: event["args"]["name"].split(":")[0] for event in names}
    for row in rows:
        with gzip.open(RECORDED / row["file"]) as file:
            events = json.load(file, parse_float=Decimal)["traceEvents"]
        timed = [event for event in events if event["ph"] == "X"]
        own = [event for event in merged if rank_of[event["pid"]] == f"rank {row['rank']}"]
        shifted = [event for event in own if event["ph"] == "X"]
        ahead_us = Decimal(row["clock_ahead_ns"]) / 1000
        assert [event["ts"] + ahead_us for event in shifted] == [event["ts"] for event in timed]
        assert [event["args"] for event in shifted] == [event["args"] for event in timed]


def test_snapshots_of_ranks_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        event = {"action": "alloc", "addr": 4096, "size": 2**20 + rank, "time_us": 1, "frames": []}
        snapshot = pickle.dumps({"segments": [], "device_traces": [[event]]})
        (tmp_path / f"rank{rank}.pickle").write_bytes(snapshot)
    found = json.loads(printed(capsys, tmp_path, "--json"))
    assert [row["peak_bytes"] for row in found["memory"]] == [2**20, 2**20 + 512]
    assert found["rows"] == [] and found["missing"]["rows"]
    assert "Memory of each rank's recording" in printed(capsys, tmp_path)
    assert "has no traces to merge" in complaint(capsys, tmp_path, "--merged", "a.json")


def write_rank(folder: Path, rank: int, calls: list[dict[str, Any]], steps: list[int]) -> None:
    """A trace with steps of 1,000 µs at these times, and calls by ``ts`` and ``dur`` in µs."""
    group = {"Process Group Name": "7", "Process Group Ranks": "[0, 1, 2]", "Group size": 3}
    sizes = {"In msg nelems": 256, "Out msg nelems": 256, "dtype": "Float", "device": 0}
    events: list[dict[str, Any]] = [
        {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": ts, "dur": 1000}
        | {"pid": 9, "tid": 9}
        for number, ts in enumerate(steps)
    ]
    for number, call in enumerate(calls, 1):
        times = {"ts": call.pop("ts"), "dur": call.pop("dur")}
        launch = {"ts": times["ts"] - 3, "dur": 1, "args": {"correlation": number}}
        arguments = {"correlation": number, "stream": 3} | group | sizes | call
        events += [
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9} | launch,
            {"cat": "kernel", "name": "ncclDevKernel", "pid": 0, "tid": 3, "args": arguments}
            | times,
        ]
    config = [{"pg_name": "7", "pg_desc": "mesh_pp", "ranks": [0, 1, 2]}]
    facts = {"rank": rank, "world_size": 3, "pg_config": config}
    document = {"distributedInfo": facts, "traceEvents": [{"ph": "X"} | one for one in events]}
    (folder / f"rank{rank}.json").write_text(json.dumps(document))


def test_the_first_collective_before_the_steps_is_the_longest_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reduce = {"Collective name": "allreduce"}
    for rank, late in enumerate((0, 700, 200)):
        first = {"ts": 100 + late, "dur": 750 - late} | reduce
        later = [{"ts": ts + 900, "dur": 50} | reduce for ts in (1000, 2000)]
        write_rank(tmp_path, rank, [first, *later], [1000, 2000])
    found = json.loads(printed(capsys, tmp_path, "--json"))
    assert [row["waiting_ns"] for row in found["rows"]] == [700_000, 0, 500_000]
    assert [row["transfer_ns"] for row in found["rows"]] == [150_000] * 3
    assert [row["matched"] for row in found["rows"]] == [3, 3, 3]
    (finding,) = found["findings"]
    assert finding["numbers"]["rank"] == 1
    assert "0.5 ms of it are in the first collective" in finding["why"]
    merged = tmp_path.with_suffix(".json")
    printed(capsys, tmp_path, "--merged", merged)
    once = json.loads(printed(capsys, merged, "--json"))["ranks"]["rows"]
    assert [row["waiting_ns"] for row in once] == [700_000, 0, 500_000]
    assert {row["purpose"] for row in found["collectives"]} == {"mesh_pp"}
    assert "mesh_pp" in printed(capsys, tmp_path)


def test_stages_of_a_pipeline_wait_in_their_receives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in range(3):
        calls = []
        for batch in range(4):
            at = 1000 * batch + 600 * stage
            if stage:  # waits for the first batch, then the data are there
                begin = 10 if batch == 0 else at + 500
                ends = {"Src Rank": stage - 1, "Dst Rank": stage, "Collective name": "recv"}
                calls.append({"ts": begin, "dur": at + 520 - begin} | ends)
            if stage < 2:
                ends = {"Src Rank": stage, "Dst Rank": stage + 1, "Collective name": "send"}
                calls.append({"ts": at + 1100, "dur": 20} | ends)
        write_rank(tmp_path, stage, calls, [])
    found = json.loads(printed(capsys, tmp_path, "--json"))
    assert [row["matched"] for row in found["rows"]] == [4, 8, 4]
    assert [row["waiting_ns"] for row in found["rows"]] == [0, 1_090_000, 1_690_000]
    assert all(row["clock_error_ns"] is not None for row in found["rows"])
    pairs = [(row["source"], row["target"]) for row in found["collectives"]]
    assert sorted(pairs) == [(0, 1), (1, 2)]
    (finding,) = found["findings"]
    assert finding["verdict"].startswith("Rank 2 waits 1.69 ms")


def test_folders_of_others(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = shared_data / "cases/files"
    first = json.loads(printed(capsys, cases / "f01_first_collective_outside_steps", "--json"))
    assert [(row["matched"], row["waiting_ns"]) for row in first["rows"]] == [(4, 10**6), (4, 0)]
    assert [row["transfer_ns"] for row in first["rows"]] == [160_000, 160_000]
    stages = json.loads(printed(capsys, cases / "f02_pipeline_send_recv", "--json"))
    assert [row["matched"] for row in stages["rows"]] == [3, 3]
    assert stages["rows"][1]["waiting_ns"] == 900_000
    assert [row["transfer_ns"] for row in stages["rows"]] == [200_000, 200_000]
    assert stages["collectives"][0]["purpose"] == "mesh_pp"


NSYS_DOUBLE = Path(__file__).parents[2] / "nsys_double" / "build.py"


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)])
def test_processes_of_one_export_are_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], devices: tuple[int, int]
) -> None:
    """Each process has a GPU of its own, or calls its GPU 0; the second one comes 300 ns late."""
    build = runpy.run_path(str(NSYS_DOUBLE))
    writer = build["ExportWriter"](tmp_path / f"{devices[1]}.sqlite")
    for rank, device in enumerate(devices):
        thread = build["MAIN"] + (rank << 24)
        for step in range(4):
            at, late = 5000 * step, 300 * rank
            writer.range(f"step {step}", at + 10 * rank, at + 4000 + 10 * rank, thread=thread)
            own = {"thread": thread, "device": device}
            writer.launch("ampere_sgemm", at + 20, at + 100, at + 600 + late, **own)
            writer.launch("ncclDevKernel_AllReduce", at + 50, at + 700 + late, at + 1100, **own)
            if step < 3:  # the files end in another place
                writer.launch("ncclDevKernel_AllGather", at + 60, at + 1200, at + 1300, **own)
        writer.call("cudaStreamSynchronize", 16_000, 16_050, thread=thread)
    writer.launch("ncclDevKernel_AllGather", 15_060, 16_200, 16_300, device=devices[0])
    path = writer.write()
    found = json.loads(printed(capsys, path, "--json"))
    rows = found["ranks"]["rows"]
    assert [(row["rank"], row["matched"]) for row in rows] == [(0, 7), (1, 7)]
    assert [row["waiting_ns"] for row in rows] == [1200, 0]
    assert [row["transfer_ns"] for row in rows] == [100 * 4 + 100 * 3, 100 * 4 + 100 * 3]
    assert [row["clock_error_ns"] for row in rows] == [0, 0]
    for row in rows:
        parts = ("compute_ns", "waiting_ns", "transfer_ns", "undivided_ns", "idle_ns")
        assert sum(row[part] for part in parts) == row["span_ns"]
    assert any(each["rule"] == "ranks-straggler" for each in found["findings"])
    kernels = found["kernels"]
    assert len(kernels["marked_steps"]["rows"]) == 4
    if devices == (0, 1):
        assert kernels["coverage"]["launches"] == kernels["coverage"]["kernels"] == 12
        exposed = next(each for each in found["findings"] if "exposed" in each["rule"])
        assert "0.0012 ms wait for other ranks" in exposed["why"]
        assert {row["calls"] for row in kernels["host"]["annotations"]} == {4}
        other = json.loads(printed(capsys, path, "--json", "--device", "1"))["kernels"]
        assert other["marked_steps"]["rows"][0]["host_start_ns"] == 10
        assert other["coverage"]["launches"] == 11
    assert "with one clock" in printed(capsys, path, "--section", "ranks")


def test_devices_of_one_trace_are_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = TraceWriter(tmp_path / "trace.json")
    for device, late in enumerate((0, 40, 10)):
        for step in range(3):
            at = 1000 * step + late
            writer.launch(at, GEMM, at + 10, 100, device=device)
            end = 1000 * step + 300
            writer.launch(at + 5, NCCL, at + 120, end - at - 120, device=device, stream=14)
        name, start = "ncclDevKernel_Broadcast_RING_LL", 3000 - late
        writer.launch(2500, name, start, 10 + late, device=device, stream=14)
    found = json.loads(printed(capsys, writer.write(), "--json"))
    rows = found["ranks"]["rows"]
    assert [row["waiting_ns"] for row in rows] == [120, 40, 100]
    assert [row["transfer_ns"] for row in rows] == [430, 430, 430]
    assert found["kernels"]["coverage"]["launches"] == 7
    text = printed(capsys, writer.path)
    assert "GPU 0 (others: 1, 2)" in text.splitlines()[1]


def test_an_export_of_others_with_both_ranks(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared_data / "cases/files/f09_both_ranks_in_one_export.sqlite"
    rows = content(printed(capsys, path, "--section", "ranks", "--json"))
    assert [(row["waiting_ns"], row["transfer_ns"]) for row in rows] == [
        (600_000, 600_000),
        (0, 600_000),
    ]
    assert "6 kernels" in printed(capsys, path)


def test_doubtful_files_are_named_before_the_ranks_and_in_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reduce = {"Collective name": "allreduce"}
    for rank in range(3):
        calls = [{"ts": ts, "dur": 50} | reduce for ts in (1000, 2000, 2000)]
        write_rank(tmp_path, rank, calls[: 3 if rank else 2], [900, 1900])
        path = tmp_path / f"rank{rank}.json"
        # The third call is the second one again.
        path.write_text(path.read_text().replace('"correlation": 3', '"correlation": 2'))
    copies = "1 of 3 kernels are exact copies and count once."
    found = json.loads(printed(capsys, tmp_path, "--json"))["findings"]
    assert [each["rule"] for each in found] == ["health-duplicates", "ranks-waiting"]
    text = printed(capsys, tmp_path).splitlines()
    assert text[3] == f"Warning: rank1.json: {copies}"
    assert text[4].split(maxsplit=1)[1] == f"rank2.json: {copies}"

    assert main(["compare", *(str(tmp_path / f"rank{rank}.json") for rank in (0, 1))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5:7] == ["Doubtful in the files", f"  B: {copies}"]


def test_ranks_without_a_straggler_say_who_waits_and_how_long_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ranks 1 and 2 come last once each.
    for rank, late in enumerate(((0, 0), (400, 0), (0, 300))):
        calls = [
            {"ts": ts + ns, "dur": 450 - ns, "Collective name": "allreduce"}
            for ts, ns in zip((1000, 2000), late, strict=True)
        ]
        write_rank(tmp_path, rank, calls, [990, 1990])
    text = printed(capsys, tmp_path).splitlines()
    assert " ".join(" ".join(text[3:5]).split()) == (
        "Note: No rank is a straggler: rank 0 waits most for the others, 0.7 ms, 48 % of its span, "
        "0.35 ms a step."
    )
