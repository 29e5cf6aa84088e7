from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.machine.read_environment import relevant_variables

RunPython = Callable[..., Any]

DESCRIBE = """
import sys, msgspec
from sysbench.core.machine.read_environment import describe_host
facts = describe_host()
assert "torch" not in sys.modules
sys.stdout.buffer.write(msgspec.json.encode(facts))
"""


def test_a_machine_with_gpus(on_stub: RunPython) -> None:
    facts = on_stub(DESCRIBE, NVML_STUB_GPUS="2", NVML_STUB_MIG="1")
    nvidia = facts["nvidia"]
    assert (nvidia["driver"], nvidia["cuda"]) == ("580.95.05", "13.0")
    assert nvidia["device0"] == {
        "name": "NVIDIA Stub [red]H[/]",
        "memory_total_bytes": 79 * 2**30,
        "power_limit_watts": 700.0,
        "sm_clock_max_mhz": 1980,
        "mig": False,
        "compute_capability": "9.0",
        "ecc": True,
        "memory_bus_bits": 5120,
        "memory_clock_max_mhz": 2619,
    }
    assert nvidia["device1"]["mig"] is True
    assert "0000-4000" not in str(facts), "a serial number"
    assert "nvidia" not in facts["missing"]


def test_what_a_gpu_does_not_report_has_a_reason(on_stub: RunPython) -> None:
    facts = on_stub(DESCRIBE, NVML_STUB_REFUSE="nvmlDeviceGetEccMode:3")
    assert facts["nvidia"]["device0"]["ecc"] is None
    assert facts["missing"]["nvidia.device0.ecc"] == "not reported"


def test_a_machine_without_nvml(without_nvml: RunPython) -> None:
    facts = without_nvml(DESCRIBE)
    assert facts["nvidia"] is None
    assert "no NVIDIA driver" in facts["missing"]["nvidia"]
    assert facts["cpu"]["model"]
    assert facts["cpu"]["threads_allowed"] == len(os.sched_getaffinity(0))
    assert 0 < facts["memory"]["capacity_bytes"] <= facts["memory"]["total_bytes"]
    assert facts["packages"]["msgspec"]


def test_every_null_has_a_reason(without_nvml: RunPython) -> None:
    facts = without_nvml(DESCRIBE)
    missing = facts.pop("missing")

    def nulls(values: dict[str, Any], prefix: str) -> set[str]:
        found = set()
        for key, value in values.items():
            if isinstance(value, dict):
                found |= nulls(value, f"{prefix}{key}.")
            elif value is None:
                found.add(prefix + key)
        return found

    assert set(missing) == nulls(facts, "")
    assert all(missing.values())


def test_nothing_identifies_the_user(without_nvml: RunPython, tmp_path: Path) -> None:
    marks = {"HOME": str(tmp_path / "alice"), "USER": "alice", "LOGNAME": "alice"}
    text = str(without_nvml(DESCRIBE, **marks, TORCHINDUCTOR_CACHE_DIR="/tmp/cache_alice"))
    assert "alice" not in text
    assert os.uname().nodename not in text.replace("'", " ").split()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("CUDA_VISIBLE_DEVICES", "", ""),
        ("TORCHINDUCTOR_CACHE_TOKEN", "hunter2", "(hidden)"),
        ("TORCHINDUCTOR_REDIS_HOST", "10.0.0.7", "(an address)"),
        ("TRITON_REMOTE", "cache.example.org:6379", "(an address)"),
        ("TRITON_REMOTE", "anna@host", "(an address)"),
        ("TORCH_LOGS", "+dynamo,graph_breaks:DEBUG", "+dynamo,graph_breaks:DEBUG"),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937,1", "GPU-(a UUID),1"),
        ("CUDA_VISIBLE_DEVICES", "MIG-0a1b-4000-8000", "MIG-(a UUID)"),
        ("NVIDIA_TF32_OVERRIDE", "0", "0"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments:True"),
        ("OMP_NUM_THREADS", "4", "4"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2", "AVX2"),
        ("ATEN_CPU_CAPABILITY", "avx2", "avx2"),
        ("NCCL_P2P_DISABLE", "1", "1"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1", "1"),
        ("TORCHINDUCTOR_CACHE_DIR", "/home/alice/cache", "(a path)"),
    ],
)
def test_variables_that_change_numbers_are_recorded(name: str, value: str, expected: str) -> None:
    assert relevant_variables({name: value}) == {name: expected}


@pytest.mark.parametrize(
    "name", ["HOME", "HOSTNAME", "NCCL_COMM_ID", "NCCL_HOSTID", "HF_TOKEN", "MY_OMP_NUM_THREADS"]
)
def test_other_variables_are_not(name: str) -> None:
    assert relevant_variables({name: "1"}) == {}
