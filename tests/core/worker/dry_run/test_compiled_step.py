"""Compiled steps on meta tensors: what the partitioner saves, and what is left to kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

from sysbench.core.errors import ModelError
from sysbench.core.predict.dry_run_client import why_not_played
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.spec import parse_spec
from sysbench.core.worker.dry_run.compiled_step import KernelPlan
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.workloads.model_workload import Workload

SMALL = {
    **{"vocab": 32, "d_model": 16, "d_ff": 48, "layers": 2, "heads": 2, "batch": 2, "context": 8},
    **{"device": "cpu", "compile": "default"},
}


@pytest.mark.parametrize(("precision", "attention"), [("fp32", "sdpa-math"), ("bf16", "naive")])
def test_saved_bytes_are_those_of_a_real_partitioned_graph(precision: str, attention: str) -> None:
    one_layer = {**SMALL, "layers": 1, "step": "forward"}
    spec = parse_spec({**one_layer, "precision": precision, "attention": attention})
    predicted = exact_prediction(spec)
    workload = Workload(spec.changed(compile="off"))
    torch.compile(workload.model, backend="eager")(workload.batch)
    assert exact_prediction(spec.changed(batch=3)).saved_activation_bytes > 0  # of other sizes
    # torch's own backend with Inductor's decompositions and partitioner, on real tensors.
    compiled = torch.compile(workload.model, backend="aot_eager_decomp_partition", fullgraph=True)
    with workload._casting():
        output = compiled(workload.batch)
    lasting = [*workload.model.parameters(), *workload.model.buffers(), *workload.inputs]
    known = {one.untyped_storage()._cdata for one in lasting}
    saved = {
        one.untyped_storage()._cdata: one.untyped_storage().nbytes()
        for one in output.grad_fn.saved_tensors
    }
    torch.compiler.reset()
    total = sum(size for address, size in saved.items() if address not in known)
    copies = sum(row.bytes for row in predicted.ledger if row.name == "autocast weight copies")
    assert predicted.saved_activation_bytes + copies == total
    assert predicted.eager is not None
    assert predicted.eager.saved_activation_bytes > predicted.saved_activation_bytes


@pytest.mark.parametrize("changes", [{}, {"compile_scope": "block", "device": "cuda:0"}])
def test_a_compiled_step_is_shown_beside_the_eager_one(changes: dict[str, str]) -> None:
    spec = parse_spec({**SMALL, "precision": "bf16", "attention": "sdpa", **changes})
    predicted, eager = exact_prediction(spec), exact_prediction(spec.changed(compile="off"))
    assert sum(row.bytes for row in predicted.ledger) == predicted.peak_bytes
    assert predicted.method.startswith("not exact") and predicted.limits
    assert predicted.requests is None
    assert eager.eager is None and predicted.eager is not None
    assert predicted.eager.peak_bytes == eager.peak_bytes
    assert predicted.eager.saved_activation_bytes == eager.saved_activation_bytes
    optimizer = [phases.phases[-1] for phases in (predicted, eager)]
    assert optimizer[0].peak_bytes == optimizer[1].peak_bytes


def test_only_what_kernels_write_is_allocated() -> None:
    def computed(x: Tensor, y: Tensor) -> Tensor:
        product = torch.mm(x, y)
        return torch.relu(torch.relu(product) + 1).sum(dim=0)

    wide = torch.empty(8, 8, device="meta")
    graph = fx.experimental.proxy_tensor.make_fx(computed)(wide, wide)
    for node in graph.graph.nodes:
        node.meta.setdefault("val", node.meta.get("tensor_meta"))
    plan = KernelPlan(graph)
    made = [node.name for node in plan._written if node.op == "call_function"]
    assert sorted(made) == ["mm", "sum_1"]
    values = [wide, wide]
    assert plan.run(values).shape == (8,)
    assert not values  # so that a backward frees what its forward saved


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compile_backend": "eager"}, "inductor"),
        ({"compile_dynamic": "on"}, "fixed shapes"),
        ({"device": "cuda:0", "compile": "reduce-overhead"}, "CUDA graphs"),
        ({"step": "inference"}, "keeps no graph"),
        ({"attention": "flex", "device": "cuda:0"}, "covers eager code"),
        ({"device": "cuda:0", "precision": "fp8"}, "fp8 layers"),
        ({"compile": "off"}, None),
        ({}, None),
    ],
)
def test_what_is_not_played_has_a_reason(changes: dict[str, str], reason: str | None) -> None:
    why = why_not_played(parse_spec({**SMALL, **changes}))
    assert (why is None) == (reason is None)
    assert reason is None or (why is not None and reason in why)


BREAKS = """
import torch
from torch import nn

class Breaks(nn.Embedding):
    def forward(self, ids):
        torch._dynamo.graph_break()
        return super().forward(ids)

def make():
    return Breaks(9, 8)
"""


def test_a_graph_break_is_named(tmp_path: Path) -> None:
    path = tmp_path / "breaks.py"
    path.write_text(BREAKS)
    model = {"model": f"{path}:make", "batch": 2, "context": 4}
    spec = locate(parse_spec({**model, "device": "cpu", "compile": "default"}))
    with pytest.raises(Exception) as raised:
        exact_prediction(spec)
    assert isinstance(raised.value.__cause__, ModelError)
    assert "as one graph" in str(raised.value.__cause__)
