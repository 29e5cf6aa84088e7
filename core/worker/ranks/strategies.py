"""How the ranks' gradients become the gradients of the combined batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from ...spec.spec import RunSpec
from .collectives import Collectives

SYNC = "sync"


class Strategy(Protocol):
    """One way to share gradients. After ``finish`` each is the mean over the ranks.

    Attributes:
        model: What the step calls; the given one, perhaps wrapped.
        phase: The name of the part of the step that ``finish`` is; empty if all is done
            within the backward pass.
    """

    model: nn.Module
    phase: str

    def finish(self) -> None:
        """Called after the backward pass, before anybody reads a gradient."""
        ...


def make_strategy(spec: RunSpec, model: nn.Module, collectives: Collectives) -> Strategy:
    """The spec's strategy around a model that all ranks built alike."""
    # Each imports what only it needs.
    match spec.parallel:
        case "naive":
            from ..parallel.naive import Naive

            return Naive(model, collectives)
        case "flat":
            from ..parallel.flat import Flat

            return Flat(model, collectives)
        case "overlap":
            from ..parallel.overlap import Overlap

            return Overlap(model, collectives)
        case "bucketed":
            from ..parallel.bucketed import Bucketed

            return Bucketed(model, collectives, spec.bucket_mib)
        case "ddp":
            from ..parallel.ddp import TorchDdp

            return TorchDdp(model, collectives, spec.bucket_mib)
        case "fsdp2":
            from .fsdp2 import Fsdp2

            return Fsdp2(model, collectives)
        case other:
            raise ValueError(f"no strategy {other!r}")


def when_accumulated(parameter: nn.Parameter, call: Callable[[nn.Parameter], None]) -> None:
    """Have the backward pass call this each time that it has made the parameter's gradient."""
    parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The gradient that the backward pass has just made."""
    assert parameter.grad is not None
    return parameter.grad
