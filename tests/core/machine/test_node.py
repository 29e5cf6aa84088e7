"""Inside a job of a cluster: locks are the node's own, and records name it by drawn digits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sysbench.core.machine.environment import describe_host
from sysbench.core.machine.node import describe_node, device_lock
from sysbench.core.record.environment import node
from sysbench.core.runs.supervisor import locked_devices

N1 = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu-node-17"}


def test_outside_a_job_nothing_is_told(sysbench_home: Path) -> None:
    environ = {"SLURMD_NODENAME": "gpu-node-17"}
    assert describe_node(environ) == {} and node({}) is None
    assert device_lock("cuda:0", environ) == sysbench_home / "locks" / "cuda-0.lock"
    assert "cluster" not in describe_host()


def test_a_node_keeps_its_digits_and_they_tell_no_name(sysbench_home: Path) -> None:
    told = node(describe_node(N1))
    assert told and re.fullmatch("[0-9a-f]{6}", told)
    assert node(describe_node(N1)) == told
    assert node(describe_node(N1 | {"SLURMD_NODENAME": "n2"})) != told
    with_gpus = node(describe_node(N1 | {"SLURM_JOB_GPUS": "2,3"}))
    assert with_gpus == f"{told} gpu 2,3"


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
