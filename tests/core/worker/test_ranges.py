from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from sysbench.core.worker.ranges import (
    LISTENER_VARIABLES,
    module_ranges,
    nvtx_ranges,
    phase_markers,
)

STUB = Path(__file__).parents[2] / "nvtx_stub" / "stub.c"
NVTX_CODE = """
import torch
from torch import nn
from sysbench.core.worker.ranges import phase_markers, module_ranges, nvtx_ranges
make, found = nvtx_ranges()
model, enter = nn.Sequential(nn.Linear(2, 2)), phase_markers(make)
with module_ranges(model, make):
    enter("forward")
    model(torch.ones(1, 2))
    enter("")
print(found)
"""


class Log:
    """Ranges that write down when they open and close."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.lines.append(name)
        yield
        self.lines.append("end")


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = 2 * self.inner(x)
        return doubled


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("as asked")


def test_every_module_has_a_range_and_none_afterwards() -> None:
    log, model = Log(), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with module_ranges(model, log.range):
        model(torch.ones(1, 2))
    assert log.lines == ["mod:model", "mod:0", "end", "mod:1", "end", "end"]
    model(torch.ones(1, 2))
    assert len(log.lines) == 6


def test_a_layer_that_runs_as_one_operator_still_does() -> None:
    log, model = Log(), nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True))

    def operators() -> set[str]:
        with torch.profiler.profile() as profiler, torch.inference_mode():
            model(torch.ones(1, 3, 8))
        return {event.name for event in profiler.events() or () if "encoder" in event.name}

    with module_ranges(model.eval(), log.range):
        assert operators() == {"aten::_transformer_encoder_layer_fwd"}
    assert log.lines == ["mod:model", "mod:0", "end", "end"]
    with module_ranges(model.train(), log.range):
        assert operators() == set()
    assert {"mod:0.self_attn", "mod:0.linear1"} <= set(log.lines)
    assert "forward" not in vars(model[0])


def test_ranges_close_when_a_module_fails() -> None:
    log, model = Log(), nn.Sequential(Fails())
    with module_ranges(model, log.range), pytest.raises(ValueError, match="as asked"):
        model(torch.ones(1, 2))
    assert log.lines == ["mod:model", "mod:0", "end", "end"]


def test_a_compiled_module_has_one_range_around_and_is_compiled_once() -> None:
    log, model = Log(), nn.Sequential(Doubles(), nn.ReLU())
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    model[0].compile(backend=backend)
    with module_ranges(model, log.range):
        for _ in range(2):
            model(torch.ones(1, 2))
    assert log.lines == 2 * ["mod:model", "mod:0", "end", "mod:1", "end", "end"]
    model(torch.ones(1, 2))
    assert len(graphs) == 1


def test_phases_follow_each_other() -> None:
    log = Log()
    enter = phase_markers(log.range)
    for phase in ("forward", "backward", "", "forward", ""):
        enter(phase)
    assert log.lines == ["phase:forward", "end", "phase:backward", "end", "phase:forward", "end"]


def test_nvtx_ranges_reach_a_profiler_that_listens(tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler to build a listener with")
    library, log = tmp_path / "listener.so", tmp_path / "log.txt"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, STUB], check=True)
    listening = {"NVTX_INJECTION64_PATH": str(library), "NVTX_STUB_LOG": str(log)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", NVTX_CODE],
        env=os.environ | listening,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "nvtx package" in done.stdout
    opened = ["push phase:forward", "push mod:model", "push mod:0"]
    assert log.read_text().splitlines() == [*opened, "pop", "pop", "pop"]


def test_without_a_listener_there_are_no_nvtx_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in LISTENER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    make, found = nvtx_ranges()
    assert make is None
    assert "no profiler listens" in found


def test_a_listener_that_the_nvtx_package_does_not_reach_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nonexistent")
    make, found = nvtx_ranges()
    if torch.version.cuda:
        assert make is torch.cuda.nvtx.range
        assert "the nvtx package records nothing" in found
    else:
        assert make is None
        assert "neither nvtx nor torch reaches it" in found
