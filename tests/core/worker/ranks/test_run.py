"""A whole run of two ranks: its record, tables, findings and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.errors import SpecError
from sysbench.core.inspection.ranks_folder import by_rank, rank_files
from sysbench.core.record.record import Distributed, Record
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.tables.section_tables import tables_of

SPEC = RunSpec(
    device="cpu",
    ranks=2,
    parallel="naive",
    shard_optimizer=True,
    batch=2,
    context=16,
    threads=1,
    warmup=2,
    steps=8,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home of ranks")


@pytest.fixture(scope="module")
def record(home: Path) -> Record:
    run = create_run(SPEC, ["timing"], home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        list(supervise(run))
    return run.record()


@pytest.fixture(scope="module")
def block(record: Record) -> Distributed:
    assert record.status == "finished", record.passes[0].detail
    assert record.distributed is not None
    return record.distributed


def test_every_step_is_compute_and_waiting_and_transfer(block: Distributed) -> None:
    assert block.steps == block.step.n == 8
    assert block.compute is not None
    assert block.exposed is not None
    assert block.waiting is not None
    assert block.transfer is not None
    parts = block.compute.mean_ms + block.waiting.mean_ms + block.transfer.mean_ms
    assert parts == pytest.approx(block.step.mean_ms)
    assert block.exposed.mean_ms == pytest.approx(block.waiting.mean_ms + block.transfer.mean_ms)
    assert block.communication.mean_ms >= block.transfer.mean_ms
    assert block.disorder_ms == 0


def test_every_gradient_is_reduced_and_every_weight_sent(block: Distributed) -> None:
    weights = 4 * SPEC.dimensions.parameters
    rows = {row.kind: row for row in block.collectives}
    assert set(rows) == {"all-reduce", "broadcast"}
    assert rows["all-reduce"].calls == rows["broadcast"].calls
    assert rows["all-reduce"].bytes == rows["broadcast"].bytes == weights
    assert rows["all-reduce"].sent_bytes == weights
    assert rows["broadcast"].sent_bytes == weights / 2


def test_each_rank_is_a_process_with_half_of_the_optimizer_state(block: Distributed) -> None:
    assert [row.rank for row in block.rows] == [0, 1]
    assert len({row.pid for row in block.rows}) == 2
    assert sum(row.last_share for row in block.rows) == pytest.approx(1)
    weights = 4 * SPEC.dimensions.parameters
    for rank in (0, 1):
        init, before, after = [row for row in block.memory if row.rank == rank]
        assert [init.moment, before.moment, after.moment] == [
            "after init",
            "before step",
            "after step",
        ]
        assert (init.parameter_bytes, init.gradient_bytes, init.optimizer_bytes) == (weights, 0, 0)
        assert before.gradient_bytes == after.gradient_bytes == weights
        # Two moments for half of the parameters, and a step counter for each.
        assert after.optimizer_bytes == pytest.approx(weights, rel=0.05)
        assert after.total_bytes == 2 * weights + after.optimizer_bytes
        assert after.allocated_bytes is None


def test_the_timing_is_of_the_slowest_rank_and_of_all_tokens(
    record: Record, block: Distributed
) -> None:
    assert record.timing is not None
    assert record.timing.step.mean_ms >= block.step.mean_ms
    assert "sync" in record.timing.phases
    tokens = SPEC.ranks * SPEC.tokens_per_step
    assert record.timing.tokens_per_second == pytest.approx(
        tokens / record.timing.step.median_ms * 1e3
    )


def test_a_run_without_gpus_is_labelled(record: Record, block: Distributed) -> None:
    assert block.backend == "gloo"
    assert block.interconnect.startswith("none")
    assert "no-interconnect" in [finding.rule for finding in record.findings]


def test_its_tables_are_among_the_records(record: Record) -> None:
    tables = {table.name: table for table in tables_of(record)}
    split = tables["distributed-split"]
    means = dict(zip(split.column("part"), split.column("mean_ms"), strict=True))
    assert means["step"] == record.distributed.step.mean_ms if record.distributed else False
    assert len(tables["distributed-memory"].rows) == 6
    assert len(tables["distributed-ranks"].rows) == 2


def test_the_section_is_shown(record: Record, home: Path) -> None:
    show = ("show", record.id, "--section", "distributed")
    output = subprocess.run(
        [sys.executable, "-P", "-m", "sysbench.tui.cli", *show],
        env={HOME_VARIABLE: str(home), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "compute + waiting + transfer = step" in output
    assert "loopback" in output


def test_nothing_of_the_meeting_is_left_behind(record: Record, home: Path) -> None:
    left = {path.name for path in (home / "runs" / record.id / "timing").iterdir()}
    ranks = {f"rank-{rank}.{kind}" for rank in (0, 1) for kind in ("jsonl", "log")}
    assert left == {"job.json", "log.txt", *ranks}


def test_other_passes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="timing, trace and memory, the only passes of several"):
        create_run(SPEC, ["nsys"], tmp_path)


SHARING = RunSpec(device="cpu", ranks=2, parallel="ddp", batch=2, context=16, threads=1)


@pytest.fixture(scope="module")
def traced(home: Path) -> RunDirectory:
    run = create_run(SHARING, ["trace", "memory"], home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        list(supervise(run))
    return run


def test_each_rank_holds_what_its_dry_run_holds(traced: RunDirectory) -> None:
    memory = traced.record().memory
    assert memory is not None, [row.detail for row in traced.record().passes]
    assert [row.rank for row in memory.ranks] == [0, 1]
    for row in memory.ranks:
        assert sum(part.bytes for part in row.ledger) == row.peak_bytes
        # Scalars differ: the optimizer's number of steps, and what gloo leaves between steps.
        assert row.error == pytest.approx(0, abs=1e-3), row
    rows = {row.name: row for row in memory.reconciliation}
    for name in ("parameters", "gradients", "optimizer state", "communication buffers"):
        assert rows[name].measured_bytes == rows[name].predicted_bytes > 0, name
    (table,) = (one for one in tables_of(traced.record()) if one.name == "memory_ranks")
    assert table.column("peak_bytes") == [row.peak_bytes for row in memory.ranks]


def test_the_traces_of_all_ranks_are_one_folder(traced: RunDirectory) -> None:
    kernels = traced.record().kernels
    assert kernels is not None
    assert any(row.category == "communication" for row in kernels.categories)
    assert not any("module." in row.module for row in kernels.rows)
    files = rank_files(traced.path / "trace" / "ranks")
    assert [*by_rank((file, None) for file in files.traces)] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": "fsdp2"}, "fsdp2 shards all state"),
        ({"compile": "default"}, "off, with several ranks"),
        ({"comm_backend": "nccl"}, "on the CPU gloo"),
        ({"ranks": 1}, "at least 2"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SPEC.changed(**changes)
