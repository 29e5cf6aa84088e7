"""Rows of ranks: sums to the nanosecond, waiting, and the straggler."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.ranks.ranks_block import ranks_block
from sysbench.core.record.record import Finding
from sysbench.core.tables.ranks_tables import ranks_tables
from sysbench.core.trace.nsys_export import read_export
from sysbench.core.trace.rank_summary import RankTrace, decode_rank, encode_rank, rank_trace
from sysbench.core.trace.time_ledger import time_ledger
from sysbench.core.trace.trace_json import TraceOrigin, read_origin
from sysbench.core.trace.trace_reader import read_trace

NSYS_DOUBLE = Path(__file__).parents[2] / "nsys_double" / "build.py"
MakeRank = Callable[..., RankTrace]
MS = 1_000_000
SPANS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 90)), min_size=1, max_size=8)


def block(*ranks: RankTrace) -> Ranks:
    return ranks_block("folder", {i: f"rank{i}" for i in range(len(ranks))}, dict(enumerate(ranks)))


def named(found: Ranks) -> Finding | None:
    return next((each for each in found.findings if each.rule == "ranks-straggler"), None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(SPANS, SPANS, SPANS, SPANS, st.integers(-200, 200))
def test_the_parts_of_each_rank_and_step_add_up(
    make_rank: MakeRank,
    calls: list[tuple[int, int]],
    others: list[tuple[int, int]],
    work: list[tuple[int, int]],
    other_work: list[tuple[int, int]],
    ahead: int,
) -> None:
    def ends(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return sorted((start, start + length) for start, length in pairs)

    def alone(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        kept: list[tuple[int, int]] = []
        for start, end in ends(pairs):
            if end > start and (not kept or start > kept[-1][1]):
                kept.append((start, end))
        return kept

    parts = [(1, 0, 200), (2, 200, 500)]
    found = block(
        make_rank(ends(calls), alone(work), high=500, parts=parts),
        make_rank(ends(others), alone(other_work), high=500, parts=parts, ahead=ahead),
    )
    for row in found.rows:
        exposed = [row.waiting_ns, row.transfer_ns, row.undivided_ns]
        assert min(row.compute_ns, row.idle_ns, *exposed) >= 0
        assert row.exposed_ns == sum(exposed)
        assert row.span_ns == 500 == row.compute_ns + row.exposed_ns + row.idle_ns
        steps = [step for step in found.steps if step.rank == row.rank]
        assert sum(step.exposed_ns for step in steps) == row.exposed_ns
        assert sum(step.waiting_ns for step in steps) == row.waiting_ns


def test_waiting_ends_with_the_last_arrival_and_transfer_begins(make_rank: MakeRank) -> None:
    # Rank 1 comes 40 late to the second; both transfer 10. Half of the waiting is hidden.
    found = block(
        make_rank([(100, 110), (200, 250)], [(0, 100), (215, 235)]),
        make_rank([(100, 110), (240, 250)], [(0, 100), (110, 240)], ahead=12 * MS),
    )
    assert [(row.waiting_ns, row.transfer_ns) for row in found.rows] == [(20 + 5 - 5, 20), (0, 20)]
    assert [row.clock_ahead_ns for row in found.rows] == [0, 12 * MS]
    assert [row.clock_error_ns for row in found.rows] == [0, 10]
    row = found.collectives[0]
    assert (row.calls, row.ranks, row.waiting_ns, row.transfer_ns) == (2, 2, 10, 10)
    assert row.most_waiting_ns == 40
    assert row.bus_gbs is None  # 10 ns of transfer, on clocks known to 10 ns


def test_communication_that_no_file_divides_is_unknown_and_not_zero(make_rank: MakeRank) -> None:
    kinds = (["all-reduce"], ["broadcast"])
    found = block(
        *(make_rank([(100, 150)], [(0, 90)], kinds=kind, parts=[(1, 0, 150)]) for kind in kinds)
    )
    ranks, steps = ranks_tables(found)["ranks"][0], ranks_tables(found)["steps"][-1]
    for table in (ranks, steps):
        for row in table.mappings():
            assert row["exposed_ns"] == 50
            assert (row["waiting_ns"], row["transfer_ns"]) == (None, None)
    for row in ranks.mappings():
        assert (row["undivided_ns"], row["matched"]) == (50, 0)
        assert (row["last"], row["late_ns"], row["bounded_ns"]) == (None, None, None)


def late(make_rank: MakeRank, work: list[tuple[int, int]], **more: Any) -> Ranks:
    """Rank 1 reaches the second of two collectives 40 ms after the others."""
    on_time = [(10 * MS, 11 * MS), (20 * MS, 61 * MS)]
    own = [(10 * MS, 11 * MS), (60 * MS, 61 * MS)]
    usual = [(0, 10 * MS), (11 * MS, 20 * MS)]
    return block(make_rank(on_time, usual), make_rank(own, work, **more), make_rank(on_time, usual))


def test_the_straggler_is_named_with_what_it_did(make_rank: MakeRank) -> None:
    slept = named(late(make_rank, [(0, 10 * MS), (51 * MS, 60 * MS)]))
    assert slept and slept.numbers["rank"] == 1 and slept.numbers["cause"] == "idle"
    assert slept.numbers["cause_ns"] == 40 * MS
    assert "Rank 1 is a straggler: others wait 40 ms" in slept.verdict
    computed = named(late(make_rank, [(0, 10 * MS), (11 * MS, 60 * MS)]))
    assert computed and computed.numbers["cause"] == "compute"


def test_communication_of_another_group_is_a_cause(make_rank: MakeRank) -> None:
    on_time = [(10 * MS, 11 * MS), (20 * MS, 61 * MS)]
    kinds = ["all-reduce", "send-receive", "all-reduce"]
    own = [(10 * MS, 11 * MS), (12 * MS, 60 * MS), (60 * MS, 61 * MS)]
    found = named(block(make_rank(on_time), make_rank(own, kinds=kinds), make_rank(on_time)))
    assert found and found.numbers["cause"] == "communication"


def test_no_straggler_among_equals_or_within_the_clock_error(
    make_rank: MakeRank,
) -> None:
    turns = block(
        make_rank([(10, 90), (180, 190)], [(0, 10)], high=200),
        make_rank([(80, 90), (110, 190)], [(0, 80)], high=200),
    )
    assert named(turns) is None
    # Each file has one collective, and rank 1 comes late to it: or its clock is ahead.
    assert named(block(make_rank([(0, 50 * MS)]), make_rank([(45 * MS, 50 * MS)]))) is None


def test_a_rank_that_is_late_to_all_is_named_with_what_that_rests_on(make_rank: MakeRank) -> None:
    # Only the ends distinguish 40 ms of lateness from a clock that is 40 ms ahead.
    starts = [100 * MS * step for step in range(4)]
    usual = [(at, at + 10 * MS) for at in starts]
    on_time = [(at + 10 * MS, at + 51 * MS) for at in starts]
    late_to_all = [(at + 50 * MS, at + 51 * MS + step * 1000) for step, at in enumerate(starts)]
    found = block(make_rank(on_time, usual), make_rank(late_to_all, usual), make_rank(on_time))
    finding = named(found)
    assert finding and (finding.severity, finding.numbers["rank"]) == ("note", 1)
    assert "if collectives end on all ranks together" in finding.verdict
    row = found.rows[1]
    assert row.clock_error_ns is not None and row.clock_error_ns > 39 * MS
    assert row.clock_spread_ns is not None and row.clock_spread_ns < 5000
    assert (row.bounded_ns, finding.numbers["bounded_ns"]) == (0, 0)


def test_files_that_contradict_each_other_are_not_trusted(make_rank: MakeRank) -> None:
    found = block(
        make_rank([(50 * MS, 60 * MS), (100 * MS, 101 * MS)]),
        make_rank([(10 * MS, 30 * MS), (100 * MS, 101 * MS)]),
    )
    assert [each.rule for each in found.findings][:1] == ["ranks-clock-conflict"]
    assert found.clock_conflict_ns > MS


def test_a_sender_that_did_not_wait_transferred(make_rank: MakeRank) -> None:
    """All sends fit into buffers, and the clocks are tied by an all-reduce at the end."""
    kinds = ["send-receive", "send-receive", "all-reduce"]

    def stage(times: list[tuple[int, int]], *, sends: bool) -> RankTrace:
        trace = make_rank(times, kinds=kinds)
        ends = [replace(call, source=0, target=1, sends=sends) for call in trace.calls[:2]]
        return replace(trace, calls=[*ends, trace.calls[2]])

    found = block(
        stage([(0, 50), (100, 150), (900, 1000)], sends=True),
        stage([(300, 350), (120, 180), (980, 1000)], sends=False),
    )
    first, second = found.rows
    assert (first.waiting_ns, first.transfer_ns) == (20 + 80, 50 + 30 + 20)
    assert (second.waiting_ns, second.transfer_ns) == (0, 50 + 60 + 20)
    assert [each.rule for each in found.findings if "clock" in each.rule] == []


def test_a_summary_is_what_its_trace_says_of_a_device(writer: Any) -> None:
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
    sizes = {"In msg nelems": 500, "Out msg nelems": 500, "dtype": "Float"}
    arguments = {"Collective name": "allreduce"} | group | sizes
    writer.add("user_annotation", "ProfilerStep#3", 0, 60)
    writer.add("cpu_op", "record_param_comms", 2, 3, Seq=40)
    writer.add("cpu_op", "record_param_comms", 8, 10, Seq=41)
    writer.call("cudaLaunchKernel", 10, 2)
    writer.add("kernel", "ncclDevKernel_Generic_1", 100, 50, device=0, correlation=1, **arguments)
    writer.work("ampere_sgemm_128x64_tn", 120, 60, correlation=0)
    writer.work("Memcpy DtoH", 200, 10, correlation=0, cat="gpu_memcpy")
    trace = read_trace(writer.write())
    found = rank_trace(trace, time_ledger(trace), TraceOrigin(clock_base_ns=5))
    assert found is not None
    assert decode_rank(encode_rank(found), Path("rank")) == found
    (call,) = found.calls
    assert (call.kind, call.bytes, call.group_size) == ("all-reduce", 2000, 2)
    assert (call.group, call.position, call.step) == ("0 [0, 1]", 41, 3)
    assert call.end_ns - call.start_ns == 50
    assert found.low_ns == call.start_ns == trace.base_ns + 100 + 5
    assert (found.compute.total, found.work.total) == (60, 70)


def test_exports_of_nsys_are_ranks_by_the_names_of_their_kernels(tmp_path: Path) -> None:
    write = runpy.run_path(str(NSYS_DOUBLE))["ExportWriter"]
    ranks = []
    for rank, late in enumerate((0, 400)):
        writer = write(tmp_path / f"report.{rank}.sqlite")
        for step in range(3):
            at = 5000 * step + 70_000 * rank  # each export's clock begins with its capture
            writer.range(f"step {step}", at, at + 2000)
            writer.launch("ampere_sgemm", at + 10, at + 100, at + 600)
            writer.launch("ncclKernel_AllReduce", at + 20, at + 600 + late, at + 1100)
            writer.launch("ncclKernel_AllGather", at + 30, at + 1100, at + 1110)
        summary = read_export(writer.write()).rank
        assert summary is not None
        ranks.append(summary)
    found = block(*ranks)
    assert [row.clock_ahead_ns for row in found.rows] == [0, 70_000]
    assert [row.waiting_ns for row in found.rows] == [1200, 0]
    assert {(row.kind, row.calls) for row in found.collectives} == {
        ("all-reduce", 3),
        ("all-gather", 3),
    }
    assert len(found.steps) == 6
    finding = named(found)
    assert finding and finding.numbers["rank"] == 1


def test_a_trace_without_collectives_is_no_rank(writer: Any) -> None:
    writer.work("ampere_sgemm_128x64_tn", 120, 60, correlation=0)
    trace = read_trace(writer.write())
    assert rank_trace(trace, time_ledger(trace), read_origin(writer.path)) is None
    assert read_origin(writer.path) == TraceOrigin()
