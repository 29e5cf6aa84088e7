"""FLOPs of twenty architectures, predicted and in a run's table, against a count from shapes.

The count is this file's own: it sees the operations of a real step, and knows only the sizes of
what goes in and comes out.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sysbench.core.predict.dry_run_client import ExactPrediction, canonical_spec
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Kernels
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.passes.trace_pass import measure
from sysbench.core.worker.workloads.make_workload import make_workload
from tests.core.predict import architectures

_aten = torch.ops.aten
NAMES = [
    name
    for name, made in vars(architectures).items()
    if inspect.isfunction(made) and made.__module__ == architectures.__name__
]


class ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs of products from the sizes of operands and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: int = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if count := COUNTS.get(func.overloadpacket):
            self.flops += count(args, result)
        return result


def product(args: Sequence[Any], result: Any) -> int:
    return int((8 if result.is_complex() else 2) * result.numel() * args[0].shape[-1])


def added_product(args: Sequence[Any], result: Any) -> int:
    return product(args[1:], result)


def dot(args: Sequence[Any], result: Any) -> int:
    return int(2 * args[0].numel())


def grouped(args: Sequence[Any], result: Any) -> int:
    rows, matrices = args[0].shape, args[1].shape
    if len(rows) == len(matrices):  # the inner dimension is cut into groups
        return int(2 * rows[0] * rows[1] * matrices[1])
    return int(2 * rows[0] * rows[1] * matrices[2])


def one_of(weight: Any) -> int:
    """Products of one number of the input, or of the result, with the weights that it meets."""
    return int(2 * weight.numel() // weight.shape[0])


def convolution(args: Sequence[Any], result: Any) -> int:
    x, weight, is_transposed = args[0], args[1], args[6]
    return int((x if is_transposed else result).numel() * one_of(weight))


def convolution_backward(args: Sequence[Any], result: Any) -> int:
    gradient, x, weight, is_transposed = *args[:3], args[7]
    each = (x if is_transposed else gradient).numel() * one_of(weight)
    return int(sum(one is not None for one in result[:2]) * each)


def layer_of_lstm(args: Sequence[Any], result: Any) -> int:
    steps, sequences, width = args[0].shape
    return int(2 * steps * sequences * args[1].shape[0] * (width + args[2].shape[1]))


def layer_of_lstm_backward(args: Sequence[Any], result: Any) -> int:
    steps, sequences, width = args[0].shape
    gates, hidden = args[2].shape
    of_inputs, of_states = 2 * steps * width, (steps + steps - 1) * hidden
    return int(2 * sequences * gates * (of_inputs + of_states))


def attention(args: Sequence[Any], result: Any) -> int:
    q, k, v = args[:3]
    pairs = math.prod(q.shape[:3]) * k.shape[2]
    return int(2 * pairs * (q.shape[3] + v.shape[3]))


def attention_backward(args: Sequence[Any], result: Any) -> int:
    _, q, k, v = args[:4]
    pairs = math.prod(q.shape[:3]) * k.shape[2]
    return int(2 * pairs * (3 * q.shape[3] + 2 * v.shape[3]))


COUNTS: dict[Any, Callable[[Sequence[Any], Any], int]] = {
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv), product),
    **dict.fromkeys((_aten.addmm, _aten.baddbmm, _aten.addmv), added_product),
    _aten.dot: dot,
    _aten._grouped_mm: grouped,
    _aten.convolution: convolution,
    _aten.convolution_backward: convolution_backward,
    _aten.mkldnn_rnn_layer: layer_of_lstm,
    _aten.mkldnn_rnn_layer_backward: layer_of_lstm_backward,
    _aten._scaled_dot_product_flash_attention_for_cpu: attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
}


def spec_of(name: str, **settings: object) -> RunSpec:
    path = Path(architectures.__file__)
    given = {"batch": 2, "context": 12, "device": "cpu", "precision": "fp32", "threads": 1}
    return locate(parse_spec({"model": f"{path}:{name}", **given, **settings}))


def predicted(name: str, **settings: object) -> ExactPrediction:
    return exact_prediction(canonical_spec(spec_of(name, **settings)))


def kernels_of(spec: RunSpec, folder: Path) -> Kernels:
    """The kernel table of the trace pass."""
    events: list[AnyEvent] = []
    measure(Job(spec=spec, name="trace", folder=str(folder)), events.append)
    (block,) = [one for one in events if isinstance(one, ResultReported) and one.block == "kernels"]
    return msgspec.convert(block.data, Kernels)


def counted(name: str) -> int:
    workload = make_workload(spec_of(name))
    counter = ProductCounter()
    with counter:
        workload.step(lambda phase: None)
    return counter.flops


@pytest.mark.parametrize("name", NAMES)
def test_estimate_and_run_count_what_the_shapes_give(name: str, tmp_path: Path) -> None:
    expected = counted(name)
    assert expected > 0
    prediction = predicted(name)
    assert (prediction.step_flops, prediction.uncounted) == (expected, [])
    kernels = kernels_of(spec_of(name, warmup=1), tmp_path)
    assert kernels.counted_flops is not None
    assert sum(kernels.counted_flops.values()) == expected
    assert "counted_flops" not in kernels.missing
    # Devices differ in kernels, not in products: fused ones recompute the scores on both.
    assert predicted(name, device="cuda").step_flops == expected


def test_there_are_twenty() -> None:
    assert len(NAMES) >= 20


OTHERS = """
import torch
from torch import nn

@torch.library.custom_op("counts_of_tests::mixed", mutates_args=())
def mixed(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@mixed.register_fake
def _(x):
    return torch.empty_like(x)

mixed.register_autograd(lambda ctx, gradient: gradient * 2)

class Others(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.lower = nn.Parameter(torch.eye(16))

    def forward(self, ids):
        x = mixed(self.embed(ids))
        x = torch.linalg.solve_triangular(self.lower, x.transpose(1, 2), upper=False)
        return self.out(x.transpose(1, 2))

def make():
    return Others()
"""


def test_operators_without_a_formula_are_named_by_estimate_and_run(tmp_path: Path) -> None:
    path = tmp_path / "others.py"
    path.write_text(OTHERS)
    given = {"device": "cpu", "batch": 2, "context": 12, "threads": 1, "warmup": 1}
    spec = locate(parse_spec({"model": f"{path}:make", **given}))
    prediction = exact_prediction(canonical_spec(spec))
    names = ["aten::linalg_solve_triangular", "counts_of_tests::mixed"]
    assert prediction.uncounted == names
    assert prediction.forward_flops == 2 * 24 * 16 * 50
    kernels = kernels_of(spec, tmp_path)
    assert kernels.missing["counted_flops"] == f"not counted: {', '.join(names)}"
    assert kernels.counted_flops is not None
    assert sum(kernels.counted_flops.values()) == prediction.step_flops
