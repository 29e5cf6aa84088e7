"""Warm seconds of compiling, and the device that two processes share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile import warm
from tests import factories

BLOCK = factories.compiled(scope="model", first_step_ms=1.0, compile_seconds=1.0)


def test_graphs_are_let_go_before_the_second_process_builds_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs belong to what was compiled, and keep their memory as long as that is there."""
    compilations = 0

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal compilations
        compilations += 1
        return graph.forward

    torch.compiler.reset()
    doubled = torch.compile(lambda x: x * 2, backend=backend)
    doubled(torch.ones(3))
    seen: list[int] = []

    def refuse(module: str, result: str) -> list[str]:
        doubled(torch.ones(3))  # in the second process's place
        seen.append(compilations)
        return ["false"]

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * 2**20)
    monkeypatch.setattr(warm, "python_child", refuse)
    job = Job(spec=RunSpec(device="cuda:0", compile="default"), name="timing", folder=str(tmp_path))
    block = warm.with_warm_seconds(job, BLOCK)
    assert seen == [2]
    assert "beside 5.00 MiB that this one held" in block.missing["warm_seconds"]
