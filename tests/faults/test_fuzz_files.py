"""The fuzz of imported files, shortly; ``python -m tests.faults.fuzz_files`` is the long one."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.faults.fuzz_files import broken_sums, fuzz

COUNT = 8


def test_damaged_files_of_every_kind_keep_what_is_promised(tmp_path: Path) -> None:
    seed, said = secrets.randbelow(2**32), list[str]()
    failed = fuzz(COUNT, seed, tmp_path / "kept", tmp_path, said.append)
    assert not failed, "\n".join(said)
    assert said[-1] == f"{COUNT} inputs, 0 with a fault; seed {seed}"


KERNELS = {
    **{"rows": [{"exclusive_ns": 60}], "categories": [{"exclusive_ns": 60}]},
    **{"idle": [{"ns": 30}], "unattributed_ns": 10, "step_ms": 1e-4, "phases_ns": {"forward": 100}},
    "marked_steps": {
        "rows": [{"name": "s", "busy_ns": 3, "idle": {"a": 1}, "unattributed_ns": 0, "ns": 4}]
    },
}
MEMORY = {"ledger": [{"bytes": 5}, {"bytes": 7}], "peak_allocated_bytes": 12}


@pytest.mark.parametrize(
    ("kernels", "memory", "broken"),
    [
        ({}, {}, []),
        ({"unattributed_ns": 0}, {}, ["rows + idle + unattributed: 90, not 100"]),
        ({"categories": []}, {}, ["categories: 0, not 60"]),
        ({"phases_ns": {"forward": 90}}, {}, ["phases: 90, not 100"]),
        ({}, {"peak_allocated_bytes": 13}, ["ledger: 12, not 13"]),
    ],
)
def test_the_oracle_sees_sums_that_do_not_hold(
    kernels: dict[str, object], memory: dict[str, object], broken: list[str]
) -> None:
    document = {"kernels": KERNELS | kernels, "memory": MEMORY | memory}
    assert list(broken_sums(document)) == broken
