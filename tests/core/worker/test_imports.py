"""Importing without garbage collection, and when torch's compiler is imported ahead of a pass."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from typing import Any

import pytest

from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.imports import import_compiler, uncollected


def test_nothing_is_collected_in_the_block_and_what_it_made_is_never_walked() -> None:
    frozen = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made: list[Any] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(made)


def test_a_failed_import_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_a_process_that_starts_a_program_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from sysbench.core.runs.worker_process import Job\n"
        "from sysbench.core.spec.spec import RunSpec\n"
        "from sysbench.core.worker import __main__\n"
        "__main__.measure_of(Job(spec=RunSpec(device='cpu'), name='nsys', folder=''))\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-P", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "changes", "asked"),
    [
        ("timing", {"step": "train"}, True),
        ("timing", {"step": "inference"}, False),
        ("timing", {"step": "inference", "attention": "flex"}, True),
        ("timing", {"step": "inference", "compile": "default"}, True),
        ("timing", {"workload": "all-reduce", "ranks": 2, "payload_mib": 1.0}, False),
        ("trace", {"step": "inference"}, True),
        ("memory", {"step": "forward+backward"}, False),
    ],
)
def test_the_compiler_is_imported_for_passes_that_would_import_it_themselves(
    name: Any, changes: Any, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(spec=RunSpec(device="cpu", **changes), name=name, folder="")
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    import_compiler(job)
    assert imported == ["torch._dynamo"] * asked
