from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.core.machine.host_sampler import cpu_quota, memory_limit_bytes


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    """A process in a job of version 2, and in version 1 groups beside it."""
    path = tmp_path / "membership"
    path.write_text("4:memory:/box\n3:cpu,cpuacct:/box/\n0::/slurm/job_7/step_0\n")
    return path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_no_files_mean_no_limits(tmp_path: Path, membership: Path) -> None:
    assert memory_limit_bytes(tmp_path, membership) is None
    assert cpu_quota(tmp_path, membership) is None


def test_no_membership_means_no_limits(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path, tmp_path / "absent") is None


def test_the_least_limit_on_the_way_up_counts(tmp_path: Path, membership: Path) -> None:
    put(tmp_path / "slurm/job_7/step_0/memory.max", "max")
    put(tmp_path / "slurm/job_7/memory.max", "4096")
    put(tmp_path / "slurm/memory.max", "8192")
    put(tmp_path / "elsewhere/memory.max", "1")
    assert memory_limit_bytes(tmp_path, membership) == 4096


def test_version_1_keeps_each_controller_under_its_own_folder(
    tmp_path: Path, membership: Path
) -> None:
    put(tmp_path / "memory/box/memory.limit_in_bytes", "2048")
    put(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712")
    put(tmp_path / "cpu/box/cpu.cfs_quota_us", "150000")
    put(tmp_path / "cpu/box/cpu.cfs_period_us", "100000")
    put(tmp_path / "cpu/cpu.cfs_quota_us", "-1")
    put(tmp_path / "cpu/cpu.cfs_period_us", "100000")
    assert memory_limit_bytes(tmp_path, membership) == 2048
    assert cpu_quota(tmp_path, membership) == 1.5


def test_version_2_quota(tmp_path: Path, membership: Path) -> None:
    put(tmp_path / "slurm/cpu.max", "max 100000")
    put(tmp_path / "slurm/job_7/cpu.max", "400000 100000")
    assert cpu_quota(tmp_path, membership) == 4
