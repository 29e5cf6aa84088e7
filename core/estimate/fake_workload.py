"""The worker's own workload on tensors without data: every shape and dtype, no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from ..spec.spec import RunSpec
from ..worker.dry_run.device import device_semantics, replaced
from ..worker.workloads import transformer as workload
from ..worker.workloads.models import transformer
from .fake_optimizer import FakeOptimizer


class FakeWorkload(workload.Workload):
    """To be made and stepped on any machine.

    Attributes:
        asked: The spec that is imitated; ``spec`` is what runs here, eagerly.
    """

    def __init__(self, asked: RunSpec) -> None:
        self.asked = asked
        with (
            replaced(transformer, "initialise", lambda module: None),
            replaced(workload, "make_optimizer", FakeOptimizer),
            _WithoutData(),
        ):
            super().__init__(_runnable(asked))

    @contextmanager
    def _casting(self) -> Iterator[None]:
        with device_semantics(self.asked):
            yield


class _WithoutData(TorchFunctionMode):
    """Makes tensors without data, whichever device is asked for; by default they have some."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _runnable(spec: RunSpec) -> RunSpec:
    """The eager spec without autocast, on which a device's ways are put."""
    return spec.changed(
        device="cpu",
        compile="off",
        precision="bf16-pure" if spec.precision == "bf16-pure" else "fp32",
        attention="naive" if spec.attention == "naive" else "sdpa",
    )
