"""How the gradients of the ranks become the gradients of the combined batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...spec.spec import RunSpec
from .collectives import Collectives
from .stamps import Mark, Pending, Stamp

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
    match spec.parallel:
        case "naive":
            return Naive(model, collectives)
        case "flat":
            return Flat(model, collectives)
        case "overlap":
            return Overlap(model, collectives)
        case "bucketed":
            return Bucketed(model, collectives, spec.bucket_mib)
        case "ddp":
            return TorchDdp(model, collectives, spec.bucket_mib)
        case "fsdp2":
            # torch imports much for it that no other strategy needs.
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


class Bucket(Protocol):
    """What DDP gives to a communication hook."""

    def buffer(self) -> Tensor: ...


class TorchDdp:
    """Buckets in C++. It stands still at the end of the backward pass, when every gradient is
    there and the last bucket has been sent, until the last one is back.
    """

    phase = ""

    def __init__(self, model: nn.Module, collectives: Collectives, bucket_mib: float) -> None:
        # The model's buffers never change: sending them in each forward would be no part of this.
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mib, broadcast_buffers=False
        )
        # A lambda: under postponed annotations DDP takes those of a named hook for wrong ones.
        wrapped.register_comm_hook(None, lambda _, bucket: self._send(bucket))
        self.model: nn.Module = wrapped
        self._collectives = collectives
        self._sent: list[Mark] = []
        self._all_sent: Stamp = 0

    def _send(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        pending: Pending = self._collectives.start_all_reduce(bucket.buffer())
        self._sent.append(pending.done)
        self._all_sent = self._collectives.stamps.now()
        ranks = self._collectives.ranks
        return pending.future.then(lambda future: future.value()[0].div_(ranks))

    def finish(self) -> None:
        for done in self._sent:
            self._collectives.stood_still(self._all_sent, done)
        self._sent.clear()


class Flat:
    """One collective; it costs a copy there, a copy back and memory for both."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives

    def finish(self) -> None:
        gradients = [gradient_of(parameter) for parameter in self.model.parameters()]
        flat = flattened(gradients)
        self._collectives.all_reduce(flat)
        copy_back(flat.div_(self._collectives.ranks), gradients)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in one new tensor."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """The elements of a flattened tensor to where they came from."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(list(tensors), shaped)


MIB = 2**20


class Bucketed:
    """Fewer, larger collectives than overlap, and still behind the backward pass.

    The groups go from the last parameter to the first, which is about the order in which
    the backward pass makes their gradients.
    """

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives, bucket_mib: float) -> None:
        self.model = model
        self._collectives = collectives
        self._sent: list[tuple[list[Tensor], Tensor, Pending]] = []
        parameters = list(model.parameters())[::-1]
        groups = grouped([parameter.nbytes for parameter in parameters], bucket_mib * MIB)
        for group in groups:
            bucket = [parameters[index] for index in group]
            self._send_when_complete(bucket)

    def _send_when_complete(self, bucket: Sequence[nn.Parameter]) -> None:
        left = len(bucket)

        def one_is_there(_: nn.Parameter) -> None:
            nonlocal left
            left -= 1
            if not left:
                left = len(bucket)
                self._send(bucket)

        for parameter in bucket:
            when_accumulated(parameter, one_is_there)

    def _send(self, bucket: Sequence[nn.Parameter]) -> None:
        gradients = [gradient_of(parameter) for parameter in bucket]
        flat = flattened(gradients)
        self._sent.append((gradients, flat, self._collectives.start_all_reduce(flat)))

    def finish(self) -> None:
        for gradients, flat, pending in self._sent:
            self._collectives.wait(pending)
            copy_back(flat.div_(self._collectives.ranks), gradients)
        self._sent.clear()


def grouped(sizes: Sequence[int], most: float) -> list[list[int]]:
    """Indices in order, in groups whose sizes sum to at most ``most``; a larger one is alone."""
    groups: list[list[int]] = []
    held = 0
    for index, size in enumerate(sizes):
        if not groups or held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(index)
        held += size
    return groups


class Naive:
    """As many collectives as parameters, and nothing is computed meanwhile."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives

    def finish(self) -> None:
        for parameter in self.model.parameters():
            gradient = gradient_of(parameter)
            self._collectives.all_reduce(gradient)
            gradient.div_(self._collectives.ranks)


class Overlap:
    """As many collectives as parameters, behind what the backward pass still computes."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives
        self._sent: list[tuple[Tensor, Pending]] = []
        for parameter in model.parameters():
            when_accumulated(parameter, self._send)

    def _send(self, parameter: nn.Parameter) -> None:
        gradient = gradient_of(parameter)
        self._sent.append((gradient, self._collectives.start_all_reduce(gradient)))

    def finish(self) -> None:
        for gradient, pending in self._sent:
            self._collectives.wait(pending)
            gradient.div_(self._collectives.ranks)
        self._sent.clear()
