"""The graphs that Inductor compiles, each with its own kernel calls and no other's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.graphs import watched_graphs

COMPILED = RunSpec(device="cpu", compile="default")
EAGER_FLEX = RunSpec(device="cpu", attention="flex", step="inference")


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Broken(nn.Module):
    """Two products with a graph break in between: two graphs, each with its backward.

    Products are library calls, so that no kernel needs a C++ compiler.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12, bias=False)
        self.second = nn.Linear(12, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, 8) to (…, 4)."""
        x = self.first(x)
        torch._dynamo.graph_break()
        y: Tensor = self.second(x)
        return y


def test_a_backward_has_the_calls_of_its_own_code() -> None:
    model = Broken()
    with watched_graphs(COMPILED, model) as graphs:
        model.compile(backend="inductor")
        torch.autograd.backward(model(torch.randn(3, 8)), torch.ones(3, 4))
    found = [(graph.phase, len(graph.calls)) for graph in graphs]
    # The gradient of the input is wanted of the second layer only.
    assert found == [("forward", 1), ("forward", 1), ("backward", 2), ("backward", 1)]
    assert {call.name for graph in graphs for call in graph.calls} == {"extern_kernels.mm"}
    assert [_numbers_in(graph.file) for graph in graphs] == [
        [call.number for call in graph.calls] for graph in graphs
    ]


def _numbers_in(path: str) -> list[int]:
    lines = Path(path).read_text().splitlines()
    comments = [line.strip() for line in lines if "[Provenance debug handles]" in line]
    return [int(comment.rpartition(":")[2]) for comment in comments]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (EAGER_FLEX, 1),
        (EAGER_FLEX.changed(attention="sdpa"), 0),
        (COMPILED.changed(compile_backend="eager"), 0),
    ],
)
def test_only_what_a_spec_compiles_is_watched(spec: Any, count: int) -> None:
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    with watched_graphs(spec, nn.Identity()) as graphs, torch.inference_mode():
        torch.compile(product)(torch.ones(3, 8), torch.ones(8, 4))
    assert len(graphs) == count
