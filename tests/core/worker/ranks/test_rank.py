"""Several ranks on the CPU: the same gradients as one process, and times that add up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.record.events import OutOfMemory, WorkerFailed
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.ranks.launcher import first_failure
from sysbench.core.worker.ranks.merged_block import ring_share, slowest
from sysbench.core.worker.ranks.rank_timing import owners_of
from sysbench.core.worker.ranks.strategies import grouped
from sysbench.core.worker.ranks.torchrun import RankPlace, environment_of
from sysbench.core.worker.step_clock import TimedSteps
from tests.core.worker.ranks.ranks_for_test import OWN

SCRIPT = Path(__file__).with_name("ranks_for_test.py")
REPLICATED = ("naive", "flat", "overlap", "bucketed", "ddp")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of rank 0 of one torchrun for every strategy."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "own.py").write_text(OWN)
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(SCRIPT), str(folder)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "0.json").read_text())
    return found


@pytest.mark.parametrize("way", [*REPLICATED, "fsdp2", "sharded", "sharded-ddp"])
def test_gradients_are_those_of_one_process_with_the_combined_batch(
    results: dict[str, Any], way: str
) -> None:
    assert results["ways"][way]["gradients"] < 1e-5


@pytest.mark.parametrize("way", ["naive", "bucketed", "ddp", "fsdp2"])
def test_ranks_of_a_model_of_ones_own_share_the_mean_of_their_gradients(
    results: dict[str, Any], way: str
) -> None:
    assert results["own"][way] < 1e-5


def test_a_part_that_a_step_leaves_unused_is_named(results: dict[str, Any]) -> None:
    assert results["unused"].startswith("parameter spare.weight got no gradient in a step")


@pytest.mark.parametrize("way", ["flat", "fsdp2", "sharded", "sharded-ddp"])
def test_all_weights_are_updated_as_in_one_process(results: dict[str, Any], way: str) -> None:
    # A first step of Adam moves by the learning rate in the direction of the gradient's sign,
    # which may differ where the gradient is nearly zero: 2e-4 of weights that reach 3.
    assert results["ways"][way]["weights"] < 1e-4


def test_each_way_has_its_number_of_collectives(results: dict[str, Any]) -> None:
    calls = {way: found["calls"] for way, found in results["ways"].items()}
    parameters = calls["naive"]
    assert calls["flat"] == 1
    assert calls["overlap"] == parameters
    assert 1 < calls["bucketed"] < parameters
    assert 1 <= calls["ddp"] < parameters
    assert calls["sharded"] == 1 + parameters


def test_a_sharded_optimizer_keeps_half_of_the_state(results: dict[str, Any]) -> None:
    whole, sharded = (results["ways"][way]["memory"] for way in ("flat", "sharded"))
    assert len(whole) == 2
    assert 0.45 * whole[0] < sharded[0] < 0.55 * whole[0]
    assert results["ways"]["fsdp2"]["memory"][0] < 0.55 * whole[0]


def test_sharing_after_the_backward_pass_is_a_phase_of_its_own(results: dict[str, Any]) -> None:
    for way in ("naive", "flat", "overlap", "bucketed"):
        phases = results["ways"][way]["phases"]
        assert phases[phases.index("backward") + 1] == "sync"
    assert "sync" not in results["ways"]["ddp"]["phases"]


def test_waiting_for_a_late_rank_is_not_transfer(results: dict[str, Any]) -> None:
    for early, late in results["late"][1:]:
        (_, waited, moved), (_, waited_late, _) = early, late
        assert waited > 50e6
        assert moved < waited
        assert waited_late < waited


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 2000))
def test_buckets_hold_everything_once_in_order_and_no_more_than_their_size(
    sizes: list[int], most: int
) -> None:
    groups = grouped(sizes, most)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    assert all(len(group) == 1 or sum(sizes[one] for one in group) <= most for group in groups)


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(2, 8))
def test_shards_differ_by_no_more_than_the_largest_parameter(sizes: list[int], ranks: int) -> None:
    owners = owners_of(sizes, ranks)
    held = [
        sum(s for s, o in zip(sizes, owners, strict=True) if o == rank) for rank in range(ranks)
    ]
    assert sum(held) == sum(sizes)
    assert max(held) - min(held) <= max(sizes)


def batch(step_ms: list[float]) -> TimedSteps:
    return TimedSteps(
        step_ms=step_ms, phases_ms={"forward": step_ms}, issue_ms=[], wall_ms=sum(step_ms)
    )


def test_a_step_is_as_long_as_on_its_slowest_rank_with_that_ranks_phases() -> None:
    merged = slowest([batch([1.0, 4.0]), batch([2.0, 3.0])])
    assert merged.step_ms == [2.0, 4.0]
    assert merged.phases_ms == {"forward": [2.0, 4.0]}
    assert merged.wall_ms == 5.0


def test_a_ring_sends_an_all_reduce_nearly_twice() -> None:
    assert ring_share("all-reduce", 2) == 1.0
    assert ring_share("all-reduce", 4) == 1.5
    assert ring_share("all-gather", 4) == 0.75


def failed(message: str, t_ns: int) -> WorkerFailed:
    return WorkerFailed(
        kind="RuntimeError", message=message, traceback="", is_cuda_error=False, t_ns=t_ns
    )


OOM = OutOfMemory(
    phase="forward",
    requested_bytes=1,
    free_bytes=None,
    allocated_bytes=None,
    message="",
    stack=[],
    t_ns=2,
)
LOST = failed("[../pair.cc:545] Connection closed by peer [127.0.0.1]:31337", 1)


@pytest.mark.parametrize(
    ("codes", "told_by", "culprit"),
    [
        ({0: 1, 1: -signal.SIGKILL}, {0: LOST}, 1),
        ({0: -signal.SIGTERM, 1: -signal.SIGTERM}, {0: LOST}, 1),
        ({0: 1, 1: 1}, {0: LOST, 1: LOST}, 0),
        ({0: -signal.SIGTERM, 1: 1}, {1: failed("ours", 5)}, 1),
        ({0: 1, 1: 1}, {0: failed("ours", 7), 1: LOST}, 0),
        ({0: -signal.SIGABRT, 1: 1}, {1: failed("ours", 5)}, 1),
        ({0: 1, 1: -signal.SIGTERM}, {0: OOM}, 0),
        ({0: 1, 1: 1}, {0: failed("later", 9), 1: failed("first", 8)}, 1),
    ],
)
def test_the_rank_that_failed_first_is_blamed(
    codes: dict[int, int], told_by: dict[int, Any], culprit: int, tmp_path: Path
) -> None:
    rank, failure = first_failure(codes, told_by, "measure", tmp_path)
    assert rank == culprit
    assert told_by.get(rank, failure) == failure


def test_a_rank_that_said_nothing_is_told_by_its_signal_and_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "rank-1.log").write_text("one\nlast words\n")
    _, failure = first_failure({1: -signal.SIGKILL}, {}, "warmup", tmp_path)
    assert isinstance(failure, WorkerFailed)
    assert (failure.killed, failure.rank, failure.kind) == (True, 1, "SIGKILL")
    assert failure.message == "killed by SIGKILL in stage warmup; its log ends: last words"


def test_ranks_talk_over_loopback_and_divide_the_processors() -> None:
    spec = RunSpec(device="cpu", ranks=2, parallel="flat")
    wanted = environment_of(spec, {})
    name = wanted["GLOO_SOCKET_IFNAME"]
    assert wanted["NCCL_SOCKET_IFNAME"] == name
    assert "127.0.0.1" in [one.address for one in psutil.net_if_addrs()[name]]
    assert int(wanted["OMP_NUM_THREADS"]) * 2 <= max(2, os.cpu_count() or 1)
    kept = environment_of(spec, {"GLOO_SOCKET_IFNAME": "eth7", "OMP_NUM_THREADS": "3"})
    assert not {"GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"} & kept.keys()
    assert kept["NCCL_SOCKET_IFNAME"] == name
    assert "NCCL_SOCKET_IFNAME" not in environment_of(spec, {"NCCL_SOCKET_IFNAME": "eth7"})
    assert "OMP_NUM_THREADS" not in environment_of(spec.changed(threads=4), {})


def test_ranks_of_several_hosts_take_the_interface_between_them() -> None:
    spec = RunSpec(device="cpu", ranks=3, parallel="flat")
    places = [RankPlace(host, 2) for host in range(2)]
    assert [[*place.ranks(spec)] for place in places] == [[0, 1], [2]]
    first, second = (environment_of(spec, {}, place, "127.0.0.1") for place in places)
    # NCCL knows faster ways between hosts than gloo's.
    assert "GLOO_SOCKET_IFNAME" in first and "NCCL_SOCKET_IFNAME" not in first
    assert int(first["OMP_NUM_THREADS"]) <= int(second["OMP_NUM_THREADS"])
    assert "GLOO_SOCKET_IFNAME" not in environment_of(spec, {}, places[1], "192.0.2.1")


LOST_HOST = WorkerFailed(
    kind="agent", message="no agent", traceback="", is_cuda_error=False, killed=True
)


@pytest.mark.parametrize(
    ("codes", "told_by", "culprit"),
    [
        ({0: 1}, {0: LOST}, 2),
        ({}, {}, 2),
        ({0: 1, 1: -signal.SIGKILL}, {0: LOST}, 1),
        ({0: 1}, {0: failed("ours", 3)}, 0),
    ],
)
def test_a_lost_host_is_blamed_unless_a_rank_has_an_error_of_its_own(
    codes: dict[int, int], told_by: dict[int, Any], culprit: int, tmp_path: Path
) -> None:
    rank, failure = first_failure(codes, told_by, "measure", tmp_path, {2: LOST_HOST})
    assert rank == culprit
    assert (failure.message == "no agent") == (culprit == 2)
    assert culprit != 2 or failure.rank == 2
