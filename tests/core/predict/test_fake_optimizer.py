"""The functional optimizers against their classes, on real tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.dry_optimizer import DryRunOptimizer
from sysbench.core.worker.workloads.stepped_workload import optimizer_over


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation with the shapes of what it takes and gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, object]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "profiler":  # the class names its step in a trace
            return result
        everything = (tuple(args), kwargs, result)
        shapes = tree_map_only(Tensor, lambda x: (x.shape, x.dtype, x.device), everything)
        self.seen.append((str(func), shapes))
        return result


def model_with_gradients() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 2, bias=False))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("kind", ["adamw-loop", "adamw-foreach", "adamw-fused", "sgd"])
def test_a_step_is_the_step_of_the_class_operation_by_operation(kind: Any) -> None:
    spec = RunSpec(device="cpu", optimizer=kind)
    ours, theirs = model_with_gradients(), model_with_gradients()
    fake = DryRunOptimizer(spec, list(ours.parameters()))
    real = optimizer_over(spec, list(theirs.parameters()))
    fake.step()
    real.step()
    with Operations() as by_fake:
        fake.step()
    with Operations() as by_real:
        real.step()
    assert by_fake.seen == by_real.seen
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(parameter, other)
        state = {name: value for name, value in real.state[other].items() if value is not None}
        assert fake.state[parameter].keys() == state.keys()
        for name, value in state.items():
            mine = fake.state[parameter][name]
            assert (mine.dtype, mine.device) == (value.dtype, value.device)
            assert torch.equal(mine, value)
