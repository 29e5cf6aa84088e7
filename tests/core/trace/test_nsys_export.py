"""Exports written row by row, and a real one beside what NVIDIA's own program says of it."""

from __future__ import annotations

import csv
import itertools
import re
import runpy
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.core.findings.files_rules import findings_of_file
from sysbench.core.record.steps import NvtxRange
from sysbench.core.tables.nsys_tables import range_table, record_tables
from sysbench.core.trace.classify import GRAD_ACCUMULATE, HOST_LATE, ON_SYNC, UNKNOWN
from sysbench.core.trace.lanes import decode_lanes
from sysbench.core.trace.nsys_export import NsysExport, read_export
from sysbench.core.trace.scopes import STEPS_RANGE

BUILD = runpy.run_path(str(Path(__file__).parents[2] / "nsys_double" / "build.py"))
MAIN, AUTOGRAD, PROCESS = BUILD["MAIN"], BUILD["AUTOGRAD"], BUILD["PROCESS"]
OTHER_PROCESS = MAIN + (1 << 24)
START_END, MARK, DOMAIN = BUILD["START_END"], BUILD["MARK"], BUILD["DOMAIN"]


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    return BUILD["ExportWriter"](tmp_path / "export.sqlite")


def ranges_of(export: NsysExport) -> dict[str, NvtxRange]:
    return {row.range: row for row in (*export.nvtx.rows, *export.nvtx.elsewhere)}


@pytest.fixture(scope="module")
def real(shared_data: Path) -> NsysExport:
    return read_export(shared_data / "nsys" / "h100_2gpu_1s.sqlite")


def oracle(folder: Path, report: str) -> list[dict[str, str]]:
    text = (folder / "nsys" / f"h100_2gpu_1s.{report}.nvidia.csv").read_text()
    return list(csv.DictReader(line for line in text.splitlines() if line.strip()))


@pytest.mark.parametrize(
    ("report", "name", "number", "block"),
    [
        ("cuda_gpu_kern_sum", "Name", "Instances", "kernel_summary"),
        ("cuda_gpu_mem_time_sum", "Operation", "Count", "memory_summary"),
    ],
)
def test_every_row_of_a_real_summary_is_nvidias(
    real: NsysExport, shared_data: Path, report: str, name: str, number: str, block: str
) -> None:
    theirs = oracle(shared_data, report)
    ours = getattr(real, block)
    assert [row.name for row in ours] == [row[name] for row in theirs]
    for row, expected in zip(ours, theirs, strict=True):
        assert row.instances == int(expected[number])
        assert row.total_ns == int(expected["Total Time (ns)"])
        assert (row.min_ns, row.max_ns) == (
            int(expected["Min (ns)"]),
            int(expected["Max (ns)"]),
        )
        assert row.mean_ns == pytest.approx(float(expected["Avg (ns)"]), abs=0.051)
        assert row.median_ns == pytest.approx(float(expected["Med (ns)"]), abs=0.051)
        assert row.std_ns == pytest.approx(float(expected["StdDev (ns)"]), abs=0.051)
        assert 100 * row.share == pytest.approx(float(expected["Time (%)"]), abs=0.051)


def test_every_call_of_a_real_summary_is_nvidias(real: NsysExport, shared_data: Path) -> None:
    theirs = {
        re.sub(r"_v\d+$", "", row["Name"]): tuple(
            int(row[name]) for name in ("Num Calls", "Total Time (ns)", "Min (ns)", "Max (ns)")
        )
        for row in oracle(shared_data, "cuda_api_sum")
    }
    assert theirs == {
        row.name: (row.instances, row.total_ns, row.min_ns, row.max_ns) for row in real.api_summary
    }


def test_calls_of_an_operator_that_differ_in_their_number_are_one_row(
    real: NsysExport,
) -> None:
    """The rows stay NVIDIA's; the table that is shown has a row an operator."""
    every, folded = (*real.nvtx.rows, *real.nvtx.elsewhere), real.nvtx.folded
    assert len(folded) < len(every) / 10
    assert not any("op_id" in row.range for row in folded)
    for name in ("projected_ns", "operations", "kernels", "kernel_ns", "process_kernels"):
        totals = [sum(getattr(row, name) for row in rows) for rows in (every, folded)]
        assert totals[0] == totals[1], name
    assert len(range_table(real).rows) == len(folded)


def test_every_row_of_a_real_projection_is_nvidias(real: NsysExport, shared_data: Path) -> None:
    theirs = {
        row["Range"].removeprefix(":"): tuple(
            int(row[column])
            for column in (
                *("Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances"),
                *("Total GPU Ops", "Proj Min (ns)", "Proj Max (ns)"),
            )
        )
        for row in oracle(shared_data, "nvtx_gpu_proj_sum")
    }
    assert len(theirs) == 3212
    assert theirs == {
        row.range: (
            *(row.projected_ns, row.range_ns, row.instances),
            *(row.operations, row.min_ns, row.max_ns),
        )
        for row in real.nvtx.rows
    }


def test_a_real_export_keeps_the_kernels_that_were_launched_before_it(real: NsysExport) -> None:
    kernels = sum(row.instances for row in real.kernel_summary)
    assert (kernels, kernels - real.nvtx.unlinked_kernels) == (3442, 1632)
    assert real.folded.coverage.explained < 0.98
    assert sum(row.calls for row in real.folded.rows) == 1721 + 463
    assert [(one.busy_ns, one.span_ns) for one in real.devices] == [
        (22_385_163, 960_485_009),
        (22_444_359, 960_307_663),
    ]
    assert (real.clocks.span_ns, real.clocks.busy_ns) == (960_307_663, 22_444_359)


def test_a_real_export_without_nvtx_says_so(shared_data: Path) -> None:
    export = read_export(shared_data / "nsys" / "mock.sqlite")
    assert "no NVTX ranges" in export.missing["nvtx"]
    assert [row.instances for row in export.kernel_summary] == [1, 1]
    assert export.devices[0].name == "NVIDIA GeForce RTX 3080"
    assert export.schema == "3.24.14"


def test_a_range_is_projected_from_its_first_work_to_its_last(writer: Any) -> None:
    writer.range("step", 0, 100)
    writer.range("inner", 10, 40, registered=True)
    writer.range("empty", 50, 60)
    writer.launch("k1", 20, 1000, 1100)
    writer.copy(30, 1200, 1210)
    writer.fill(70, 1300, 1310)
    writer.launch("late", 98, 2000, 2010)
    writer.launch("after", 99, 3000, 3010)  # ends after the range
    rows = ranges_of(read_export(writer.write()))
    assert set(rows) == {"step", "inner"}
    assert (rows["step"].projected_ns, rows["step"].range_ns) == (1010, 100)
    assert (rows["step"].operations, rows["step"].kernels, rows["step"].kernel_ns) == (4, 2, 110)
    assert (rows["inner"].projected_ns, rows["inner"].operations) == (210, 2)


def test_work_launched_by_another_thread_is_shown_beside_the_projection(writer: Any) -> None:
    writer.range("backward", 0, 100)
    writer.range("waits", 200, 300)
    writer.launch("ones", 10, 1000, 1001)
    writer.launch("gemm", 20, 1100, 1200, thread=AUTOGRAD)
    writer.launch("gemm", 220, 1300, 1400, thread=AUTOGRAD)
    writer.launch("foreign", 30, 1000, 1900, thread=OTHER_PROCESS)
    export = read_export(writer.write())
    backward, waits = (ranges_of(export)[name] for name in ("backward", "waits"))
    assert (backward.projected_ns, backward.kernels) == (1, 1)
    assert (backward.process_kernels, backward.process_kernel_ns) == (2, 101)
    assert (waits.operations, waits.projected_ns, waits.process_kernels) == (0, 0, 1)
    assert export.nvtx.elsewhere == [waits]  # NVIDIA's report does not have it
    assert (export.nvtx.outside_kernels, export.nvtx.outside_kernel_ns) == (3, 1100)


def test_names_carry_their_domain_and_styles_do_not_mix(writer: Any) -> None:
    writer.range("tool", 0, None, domain=3, kind=DOMAIN)
    writer.range("alien", 0, None, domain=3, kind=DOMAIN, thread=OTHER_PROCESS)
    for thread in (MAIN, OTHER_PROCESS):
        writer.range("x", 10, 20, domain=3, thread=thread)
        writer.launch("k", 12, 100, 110, thread=thread)
    writer.range("x", 30, 40)
    writer.range("x", 30, 40, kind=START_END)
    writer.range("x", 30, None, kind=MARK)
    writer.launch("k", 32, 200, 210)
    export = read_export(writer.write())
    assert [(row.range, row.style) for row in export.nvtx.rows] == [
        ("alien:x", "push/pop"),
        ("tool:x", "push/pop"),
        ("x", "push/pop"),
        ("x", "start/end"),
    ]


def test_a_range_that_was_open_at_the_end_ends_with_the_last(writer: Any) -> None:
    writer.range("open", 10, None)
    writer.range("last", 80, 90)
    writer.launch("k", 50, 100, 110)
    row = ranges_of(read_export(writer.write()))["open"]
    assert (row.range_ns, row.projected_ns) == (80, 10)


def test_a_process_finds_only_its_own_work(writer: Any) -> None:
    writer.range("step", 0, 100)
    correlation = writer.call("cudaLaunchKernel_v7000", 10, 12)
    writer.kernel("mine", 200, 210, correlation=correlation)
    writer.kernel("theirs", 900, 990, correlation=correlation, process=PROCESS + (1 << 24))
    export = read_export(writer.write())
    assert ranges_of(export)["step"].projected_ns == 10
    assert (export.nvtx.unlinked_kernels, export.nvtx.unlinked_kernel_ns) == (1, 90)


Spans = list[tuple[int, int]]
NUMBERS = itertools.count()


def spans(most: int) -> st.SearchStrategy[Spans]:
    edge = st.integers(0, 60)
    return st.lists(st.tuples(edge, edge).map(lambda two: (min(two), max(two))), max_size=most)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), ranges=spans(8), calls=spans(12))
def test_any_projection_is_what_counting_one_by_one_finds(
    tmp_path: Path, data: st.DataObject, ranges: Spans, calls: Spans
) -> None:
    writer = BUILD["ExportWriter"](tmp_path / f"{next(NUMBERS)}.sqlite")
    threads = st.sampled_from([MAIN, AUTOGRAD, OTHER_PROCESS])
    work = []
    for start, end in calls:
        thread = data.draw(threads)
        begin, length = data.draw(st.tuples(st.integers(0, 500), st.integers(0, 50)))
        correlation = writer.call("cudaLaunchKernel_v7000", start, end, thread=thread)
        writer.kernel(
            "k", begin, begin + length, correlation=correlation, process=thread & ~0xFFFFFF
        )
        work.append((thread, start, end, begin, begin + length))
    expected: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
    for start, end in ranges:
        thread, name = data.draw(threads), data.draw(st.sampled_from("ab"))
        writer.range(name, start, end, thread=thread)
        own = [one for one in work if one[0] == thread and start <= one[1] and one[2] <= end]
        if own:
            found = (
                max(one[4] for one in own) - min(one[3] for one in own),
                *(end - start, 1, len(own), sum(one[4] - one[3] for one in own)),
            )
            expected[name] = [a + b for a, b in zip(expected[name], found, strict=True)]
    export = read_export(writer.write())
    assert expected == {
        row.range: [
            *(row.projected_ns, row.range_ns, row.instances),
            *(row.operations, row.kernel_ns),
        ]
        for row in export.nvtx.rows
    }


def test_our_own_ranges_give_phase_module_and_steps(writer: Any) -> None:
    writer.range(f"{STEPS_RANGE}2", 0, 1000)
    for step in (0, 500):
        writer.range("phase:forward", step, step + 200)
        writer.range("mod:blocks.0.head", step + 10, step + 100)
        writer.range(f"aten::mm, seq = {step}, op_id = {step + 1}", step + 15, step + 60)
        writer.launch("void gemm<int>(int)", step + 20, step + 50, step + 250)
        writer.range("phase:backward", step + 200, step + 450)
        for node in ("autograd::engine::evaluate_function: MmBackward0", "MmBackward0"):
            writer.range(
                f"{node}, seq = {step}, op_id = 7", step + 210, step + 290, thread=AUTOGRAD
            )
        writer.launch("void gemm<float>(int)", step + 220, step + 260, step + 400, thread=AUTOGRAD)
    export = read_export(writer.write())
    rows = {row.phase: row for row in export.kernels.rows}
    assert set(rows) == {"forward", "backward"}
    assert {row.module for row in rows.values()} == {"blocks.0.head"}
    assert [row.module for row in export.folded.rows] == ["blocks.*.head"] * 2
    assert (rows["forward"].op, rows["forward"].calls, rows["forward"].total_ns) == (
        *("aten::mm", 1.0),
        200.0,
    )
    assert rows["backward"].op == "MmBackward0"
    assert export.kernels.phases_ns == {"forward": 235.0, "backward": 265.0}
    assert (export.kernels.steps, export.kernels.step_ms) == (2, 500e-6)
    assert export.block().kernels == export.folded


def test_gradients_that_are_accumulated_are_named_so(writer: Any) -> None:
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 3"
    writer.range(node, 0, 50, thread=AUTOGRAD)
    writer.launch("add", 10, 20, 30, thread=AUTOGRAD)
    (row,) = read_export(writer.write()).kernels.rows
    assert (row.module, row.phase) == (GRAD_ACCUMULATE, "backward")


def test_idle_time_has_its_cause_although_calls_carry_versions(writer: Any) -> None:
    writer.launch("k", 0, 10, 20)
    writer.call("cudaStreamSynchronize_v3020", 15, 40)
    writer.launch("k", 50, 60, 70)
    writer.launch("k", 90, 100, 110)
    idle = {row.cause: row.ns for row in read_export(writer.write()).folded.idle}
    assert (idle[ON_SYNC], idle[HOST_LATE]) == (20, 30)


def test_the_clocks_count_what_overlaps_once(writer: Any) -> None:
    writer.range("all", 0, 5000)
    writer.launch("gemm", 10, 100, 200)
    writer.launch("gemm", 20, 150, 300)
    writer.launch("ncclDevKernel_AllReduce", 30, 250, 400)
    writer.copy(40, 350, 450)
    writer.launch("gemm", 50, 1000, 1010, device=1)
    export = read_export(writer.write())
    first, second = export.devices
    assert (first.span_ns, first.busy_ns, first.summed_ns) == (300, 300, 400)
    assert (first.busy_with_copies_ns, first.kernels, first.copies) == (350, 3, 1)
    assert (first.communication_ns, first.exposed_communication_ns) == (150, 100)
    assert (second.device, second.busy_ns) == (1, 10)
    assert (export.clocks.wall_ns, export.clocks.busy_ns) == (5000, 300)


def test_a_graph_traced_as_one_block_is_time_without_kernels(writer: Any) -> None:
    writer.range("replay", 0, 100)
    writer.graph(10, 200, 900)
    export = read_export(writer.write())
    assert "--cuda-graph-trace=node" in export.missing["graphs"]
    assert [(row.name, row.total_ns) for row in export.folded.rows] == [("[CUDA graph]", 700.0)]
    assert (export.kernel_summary, export.nvtx.rows) == ([], [])


def test_kernels_of_one_graph_launch_are_one_operation(writer: Any) -> None:
    writer.range("replay", 0, 100)
    correlation = writer.call("cudaGraphLaunch_v10000", 10, 12)
    for node, start in enumerate((200, 300)):
        writer.kernel("k", start, start + 10, correlation=correlation, graph_node=node)
    row = ranges_of(read_export(writer.write()))["replay"]
    assert (row.operations, row.kernels, row.projected_ns) == (1, 2, 110)


def test_an_empty_report_says_that_it_is(writer: Any) -> None:
    export = read_export(writer.write())
    assert (export.kernel_summary, export.devices, export.nvtx.rows) == ([], [], [])
    assert (export.clocks.wall_ns, export.clocks.busy_ns) == (None, None)
    assert {"kernels", "nvtx"} <= set(export.missing)
    assert "--trace=cuda" in export.folded.missing["rows"]
    assert [table.name for table in record_tables(export.block()) if table.rows] == ["nsys-clocks"]


CUDA_FAILED = "CUDA profiling might have not been started correctly."


def no_kernels(writer: Any) -> str:
    export = read_export(writer.write())
    assert [found.rule for found in findings_of_file(export.folded)] == ["file-no-kernels"]
    return findings_of_file(export.folded)[0].verdict


def test_what_nsys_warned_of_is_why_there_are_no_kernels(writer: Any) -> None:
    writer.message("Profiling has started.", severity=1)
    writer.message("CPU backtraces are not available.", severity=3)
    writer.message(CUDA_FAILED, severity=2)
    writer.message("The CUDA driver is too old.", severity=3)
    assert no_kernels(writer) == (
        f'The export has no kernels: nsys warned "The CUDA driver is too old." and "{CUDA_FAILED}".'
    )


def test_launch_calls_without_kernels_are_counted(writer: Any) -> None:
    for number in range(3):
        writer.call("cudaLaunchKernel_v7000", 10 * number, 10 * number + 2)
    writer.call("cudaDeviceSynchronize_v3020", 40, 50)
    assert no_kernels(writer) == (
        "The export has no kernels: it has 3 launch calls, and their kernels were not recorded."
    )


def test_calls_without_a_launch_are_no_lost_kernels(writer: Any) -> None:
    writer.call("cudaMalloc_v3020", 0, 5)
    assert no_kernels(writer).endswith("it has 1 CUDA call, none of which launched a kernel.")


def test_pages_of_unified_memory_have_the_files_own_name_and_need_no_launch(writer: Any) -> None:
    writer.add("ENUM_CUDA_MEMCPY_OPER", id=21, name="ANY", label="Unified Device-to-Host")
    writer.launch("add<float>", 0, 5, 60)
    for start, kind in ((70, 11), (90, 11), (120, 21), (140, 99)):
        writer.migration(start, start + 10, kind=kind)
    export = read_export(writer.write())
    assert {row.name: (row.instances, row.total_ns) for row in export.memory_summary} == {
        "[CUDA memcpy Unified Host-to-Device]": (2, 20),
        "[CUDA memcpy Unified Device-to-Host]": (1, 10),
        "[CUDA memcpy Unknown]": (1, 10),
    }
    # The last one is of an unknown kind: its launch is missing.
    assert export.folded.coverage.unlinked == 1
    assert {row.cause: row.ns for row in export.folded.idle} == {HOST_LATE: 40, UNKNOWN: 10}
    rows = {(row.direction, row.memory): (row.calls, row.bytes) for row in export.folded.copies}
    assert rows == {
        ("HtoD", "unified"): (2, 8192),
        ("DtoH", "unified"): (1, 4096),
        ("", ""): (1, 4096),
    }


def test_copies_that_hold_most_of_the_span_are_the_finding(writer: Any) -> None:
    for number in range(4):
        writer.copy(100 * number, 100 * number + 5, 100 * number + 93, kind=2)
    writer.launch("k", 400, 403, 410)
    first = findings_of_file(read_export(writer.write()).folded)[0]
    assert (first.rule, first.numbers["share"]) == ("file-copies", 352 / 359)
    assert first.verdict.startswith("98 % of the GPU's busy time is copies, mostly from the GPU")


def test_ranges_without_a_gpu_give_phases_and_claim_no_idle_time(writer: Any) -> None:
    writer.range(f"{STEPS_RANGE}1", 0, 1000)
    writer.range("phase:forward", 0, 600)
    kernels = read_export(writer.write()).folded
    assert kernels.phases_ns == {"forward": 600, "other": 400}
    assert (kernels.idle, kernels.unattributed_ns, kernels.coverage.explained) == ([], 1000, 0)


def test_marked_steps_without_work_were_idle(writer: Any) -> None:
    writer.range(f"{STEPS_RANGE}1", 0, 100)
    writer.launch("k", 200, 210, 220)
    kernels = read_export(writer.write()).folded
    assert (kernels.rows, sum(row.ns for row in kernels.idle)) == ([], 100)


def test_a_lane_of_a_device_has_the_steps_of_its_process(writer: Any) -> None:
    for rank in range(2):
        thread = MAIN + (rank << 24)
        writer.range("step 1", 10 + rank, 500 + rank, thread=thread)
        writer.launch("gemm", 20, 100, 200 + rank, thread=thread, device=rank)
    lanes = decode_lanes(read_export(writer.write()).lanes, Path("lanes"))
    steps = {lane.group: lane.events.start.tolist() for lane in lanes.lanes if lane.kind == "steps"}
    assert steps == {"GPU 0": [0], "GPU 1": [1]}
