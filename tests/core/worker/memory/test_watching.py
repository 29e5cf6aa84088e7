"""The watcher of autocast's casts, which sits between a step's code and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from sysbench.core.record.events import AnyEvent, OutOfMemory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.failures import report_failure
from sysbench.core.worker.memory.tagger import Tagger
from sysbench.core.worker.workloads import attention
from sysbench.core.worker.workloads.make_workload import Workload

SPEC = RunSpec(model="tiny", device="cpu", precision="bf16", step="inference", batch=1, context=8)


def test_what_a_step_compiles_is_compiled_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention has no way to run but compiled."""
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def mixed(q: Tensor, k: Tensor, v: Tensor, block_mask: object) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.compiler.reset()
    compiled = torch.compile(mixed, backend=backend, dynamic=False)
    monkeypatch.setattr(attention, "_compiled_flex", lambda: compiled)
    spec = SPEC.changed(attention="flex")
    workload, tagger = Workload(spec), Tagger()
    tagger.begin_step(0)
    with tagger.watching(workload):
        workload.step(tagger.enter)
    assert len(graphs) == 1, "one graph serves every layer"
    copies = [tag for tag in tagger.notes.tags if tag.owner == "autocast weight copies"]
    assert len(copies) == 7 * spec.dimensions.layers + 1


class Hungry(nn.Module):
    """Asks for more than there is."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; it never returns."""
        return torch.empty(2**60, dtype=torch.uint8)


def test_it_is_not_blamed_for_running_out_of_memory() -> None:
    workload, tagger = Workload(SPEC), Tagger()
    workload.model.norm = Hungry()
    tagger.begin_step(0)
    events: list[AnyEvent] = []
    with tagger.watching(workload):
        try:
            workload.step(tagger.enter)
        except Exception as error:
            report_failure(error, SPEC, events.append)
    (event,) = events
    assert isinstance(event, OutOfMemory)
    assert event.stack[0].startswith("test_watching.py:")
    assert event.expression == "torch.empty(2**60, dtype=torch.uint8)"
    assert not any("tagger" in frame for frame in event.stack)
