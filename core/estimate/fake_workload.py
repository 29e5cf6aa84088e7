"""The worker's own workload on fake tensors: every shape and dtype, no memory, no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import nn

from ..models.transformer import Transformer
from ..spec import RunSpec
from ..worker import workload
from .fake_cuda import cuda_semantics, replaced


class FakeTransformer(Transformer):
    """The model without what fake tensors refuse: random values, and swapping a tensor's data."""

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Leaves the weights as they come: fake ones have no values."""
        return self

    def to(self, dtype: torch.dtype) -> Self:  # type: ignore[override]
        """New parameters and buffers of another dtype."""
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(dtype)))
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.to(dtype))
        return self


class FakeWorkload(workload.Workload):
    """To be made and stepped under a FakeTensorMode, on any machine.

    Attributes:
        asked: The spec that is imitated; ``spec`` is what runs here, eagerly and on the CPU.
    """

    def __init__(self, asked: RunSpec) -> None:
        self.asked = asked
        with replaced(workload, "Transformer", FakeTransformer):
            super().__init__(_runnable(asked))

    @contextmanager
    def _casting(self) -> Iterator[None]:
        if self.asked.on_cuda:
            with cuda_semantics(self.asked):
                yield
        else:
            with super()._casting():
                yield


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager CPU spec on which CUDA's ways are put."""
    if not spec.on_cuda:
        return spec.changed(compile="off")
    return spec.changed(
        device="cpu",
        compile="off",
        precision="bf16-pure" if spec.precision == "bf16-pure" else "fp32",
        attention="naive" if spec.attention == "naive" else "sdpa",
    )
