"""The predicted reserve of a run, against what PyTorch's own allocator reserved in as much memory.

Recorded with PyTorch 2.12.0 (cu130) on an "H100" that computes nothing, under limits of its
process: where the room ends, segments that are cached are given back.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest
import torch

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run import exact, reserve
from sysbench.core.worker.dry_run.reserve import with_dry_run
from tests.conftest import MEMORY

MIB = 2**20
SPEC = RunSpec(
    vocab=10_000,
    d_model=256,
    d_ff=1024,
    heads=8,
    layers=4,
    batch=4,
    context=512,
    device="cuda:0",
)


# The memory that there is changes no request: one dry run is enough.
predicted_once = cache(exact.exact_prediction)


@pytest.fixture
def free_mib(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the device has left, in MiB, beside 100 that this process has reserved."""
    left = [80_000]
    monkeypatch.setattr(reserve, "exact_prediction", predicted_once)
    answers = {
        "get_device_properties": lambda device: SimpleNamespace(major=9, minor=0),
        "mem_get_info": lambda device: (left[0] * MIB, 80_000 * MIB),
        "memory_reserved": lambda device: 100 * MIB,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return left


@pytest.mark.parametrize(
    ("free", "limit", "reserved"),
    [
        *((80_000, 0, 962_592_768), (80_000, 896, 939_524_096)),
        *((800, 0, 943_718_400), (800, 896, 939_524_096)),
    ],
)
def test_the_reserve_is_of_the_memory_that_there_was(
    free_mib: list[int], free: int, limit: int, reserved: int
) -> None:
    free_mib[0] = free
    memory = with_dry_run(MEMORY, SPEC.changed(memory_limit=limit * MIB))
    assert memory.predicted_reserved_bytes == reserved
    assert "predicted_reserved_bytes" not in memory.missing
    # What is allocated is compared with what is allocated, not with what was requested.
    assert memory.predicted_allocated_bytes == 901_353_472
    assert memory.prediction_error == 901_353_472 / memory.peak_allocated_bytes - 1


def test_a_step_that_does_not_fit_by_the_model_has_no_predicted_reserve(
    free_mib: list[int],
) -> None:
    memory = with_dry_run(MEMORY, SPEC.changed(memory_limit=884 * MIB))
    assert memory.predicted_reserved_bytes is None
    assert "cannot place 78.1 MiB in backward" in memory.missing["predicted_reserved_bytes"]
