"""Inside a job of a cluster: locks are the node's own, and records name it by drawn digits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import ClusterError, DeviceBusyError, SpecError
from sysbench.core.machine.devices import (
    describe_node,
    device_lock,
    hosts_of,
    locked_devices,
    shares,
)
from sysbench.core.machine.read_environment import describe_host
from sysbench.core.record.environment import node
from sysbench.core.runs.run_directory import create_run
from sysbench.core.runs.supervisor import supervise
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import locked

N1 = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu-node-17"}


def test_outside_a_job_there_are_no_node_facts(sysbench_home: Path) -> None:
    environ = {"SLURMD_NODENAME": "gpu-node-17"}
    assert describe_node(environ) == {} and node({}) is None
    assert device_lock("cuda:0", environ) == sysbench_home / "locks" / "cuda-0.lock"
    assert "cluster" not in describe_host()


def test_a_node_keeps_its_digits_which_hide_its_name(sysbench_home: Path) -> None:
    result = node(describe_node(N1))
    assert result and re.fullmatch("[0-9a-f]{6}", result)
    assert node(describe_node(N1)) == result
    assert node(describe_node(N1 | {"SLURMD_NODENAME": "n2"})) != result
    with_gpus = node(describe_node(N1 | {"SLURM_JOB_GPUS": "2,3"}))
    assert with_gpus == f"{result} gpu 2,3"


def test_the_record_of_a_job_has_the_node(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in N1.items():
        monkeypatch.setenv(name, value)
    facts = describe_host()
    assert node(facts) == node(describe_node(N1)) is not None
    assert "gpu-node-17" not in str(facts)
    with locked_devices(["cpu"]):
        assert (sysbench_home / "locks" / "gpu-node-17" / "cpu.lock").exists()


def test_jobs_of_one_node_lock_the_gpus_that_they_have(sysbench_home: Path) -> None:
    locks = sysbench_home / "locks" / "gpu-node-17"
    assert device_lock("cuda:1", N1 | {"SLURM_JOB_GPUS": "4,6"}) == locks / "cuda-6.lock"
    assert device_lock("cuda:0", N1 | {"SLURM_STEP_GPUS": "5", "SLURM_JOB_GPUS": "4"}) == (
        locks / "cuda-5.lock"
    )
    assert device_lock("cuda:1", N1) == locks / "cuda-1.lock"
    assert device_lock("cpu", N1 | {"SLURM_JOB_GPUS": "4"}) == locks / "cpu.lock"


def test_a_name_that_is_a_path_is_none(sysbench_home: Path) -> None:
    hostile = N1 | {"SLURMD_NODENAME": "../../x"}
    assert describe_node(hostile) == {}
    assert device_lock("cpu", hostile) == sysbench_home / "locks" / "cpu.lock"


@pytest.fixture
def hostnames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's ``scontrol show hostnames LIST``, of lists without brackets."""
    path = tmp_path / "scontrol"
    path.write_text('#!/bin/sh\necho "$3" | tr , "\\n"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURMD_NODENAME": "n2",
    "SLURM_NNODES": "3",
    "SLURM_JOB_NODELIST": "n1,n2,n3",
}


def test_ranks_are_spread_over_the_nodes_of_the_job_from_this_one_on(hostnames: None) -> None:
    assert hosts_of(8, BATCH) == ("n2", "n1", "n3")
    assert hosts_of(2, BATCH) == ("n2", "n1")
    assert hosts_of(1, BATCH) == ()
    assert hosts_of(8, BATCH | {"SLURM_NNODES": "1"}) == ()
    assert hosts_of(8, {}) == hosts_of(8, N1) == ()


def test_in_a_step_they_are_the_nodes_of_the_step(hostnames: None) -> None:
    step = BATCH | {"SLURM_NNODES": "2", "SLURM_STEP_NODELIST": "n2,n3"}
    assert hosts_of(4, step) == ("n2", "n3")
    # The variables of the job, kept in a step of one task.
    assert hosts_of(4, BATCH | {"SLURM_STEP_NODELIST": "n2"}) == ("n2", "n1", "n3")


def test_a_process_outside_its_nodes_gets_the_command_to_start_there(hostnames: None) -> None:
    login = {name: value for name, value in BATCH.items() if name != "SLURMD_NODENAME"}
    for environ in (login, BATCH | {"SLURMD_NODENAME": "n9"}):
        with pytest.raises(ClusterError, match="on none of them: start it there, by sbatch"):
            hosts_of(2, environ)


def test_the_refusal_is_of_the_key(hostnames: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURMD_NODENAME")
    spec = RunSpec(device="cpu", ranks=2, parallel="flat")
    with pytest.raises(SpecError, match="start it there"):
        resolve(spec)
    assert resolve(spec.changed(ranks=1, parallel="none")).device == "cpu"


def test_each_rank_has_a_device_of_its_own_node(
    hostnames: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)

    def find(device: str) -> str:
        if device not in ("cuda:0", "cuda:1"):
            raise SpecError("device", device, "cuda:0 or cuda:1")
        return device

    spec = RunSpec(device="cuda:0", ranks=6, parallel="ddp")
    assert resolve(spec, find) == spec
    with pytest.raises(SpecError, match="at most 6 on 3 nodes like this one"):
        resolve(spec.changed(ranks=7), find)


@given(st.integers(1, 100), st.integers(1, 16))
def test_shares_are_as_even_as_they_go(ranks: int, hosts: int) -> None:
    result = shares(ranks, hosts)
    assert sum(result) == ranks and max(result) - min(result) <= 1
    assert result == sorted(result, reverse=True)


def test_a_record_names_all_nodes_of_its_ranks(sysbench_home: Path, hostnames: None) -> None:
    result = node(describe_node(BATCH, ranks=8))
    digits = [node(describe_node(BATCH | {"SLURMD_NODENAME": name})) for name in ("n2", "n1", "n3")]
    assert result == "+".join(map(str, digits))
    assert node(describe_node(BATCH)) == digits[0]


def test_the_devices_of_all_nodes_are_held_while_a_run_measures(
    sysbench_home: Path, hostnames: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    run = create_run(RunSpec(device="cpu", ranks=2, parallel="flat"), ["timing"])
    other = sysbench_home / "locks" / "n1" / "cpu.lock"
    with locked(other, who="another"), pytest.raises(DeviceBusyError, match="cpu of n1"):
        list(supervise(run, wait=False))
