"""Strategies that turn the gradients of the ranks into those of the combined batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.ranks.stamps import Mark, Pending, Stamp
from sysbench.core.worker.ranks.watched_collectives import Collectives

SYNC = "sync"


class Strategy(Protocol):
    """A way to share gradients. After ``finish`` each is the mean over the ranks.

    Attributes:
        model: The model that the step calls, perhaps a wrapper of the given one.
        phase: Name of the phase of ``finish``; empty if the backward pass does all of it.
    """

    model: nn.Module
    phase: str

    def finish(self) -> None:
        """Finish sharing; called after the backward pass, before a gradient is read."""
        ...


def make_strategy(spec: RunSpec, model: nn.Module, collectives: Collectives) -> Strategy:
    """The spec's strategy for a model that all ranks built alike.

    Raises:
        ValueError: There is no strategy of that name.
    """
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
            # Late: torch imports much for it that no other strategy needs.
            from sysbench.core.worker.ranks.fsdp2 import Fsdp2

            return Fsdp2(model, collectives)
        case other:
            raise ValueError(f"no strategy {other!r}")


def when_accumulated(parameter: nn.Parameter, call: Callable[[nn.Parameter], None]) -> None:
    """Have the backward pass call ``call`` each time it has made the parameter's gradient."""
    parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that the backward pass makes gradients of."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The gradient that the backward pass has just made."""
    assert parameter.grad is not None
    return parameter.grad


class Bucket(Protocol):
    """Argument that DDP passes to a communication hook."""

    def buffer(self) -> Tensor: ...


class TorchDdp:
    """Torch's DistributedDataParallel: buckets in C++.

    Computing stands still at the end of the backward pass, from the last bucket's departure,
    when every gradient is made, to the last arrival.
    """

    phase = ""

    def __init__(self, model: nn.Module, collectives: Collectives, bucket_mib: float) -> None:
        # The model's buffers never change, so sending them in each forward would only add time.
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mib, broadcast_buffers=False
        )
        # A lambda, since DDP checks the annotations of a named hook and rejects postponed ones.
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
    """One collective of all gradients, for a copy into a flat tensor and a copy back."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives

    def finish(self) -> None:
        gradients = [gradient_of(parameter) for parameter in trained(self.model)]
        flat = flattened(gradients)
        self._collectives.all_reduce(flat)
        copy_back(flat.div_(self._collectives.ranks), gradients)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in a new tensor of one dimension."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def copy_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the elements of a flattened tensor back into the tensors that it was made of."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.copy_(part.view_as(tensor))


MIB = 2**20


class Bucketed:
    """Fewer, larger collectives than in `Overlap`, behind the backward pass too.

    The groups go from the last parameter to the first, which is about the order in which
    the backward pass makes their gradients.
    """

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives, bucket_mib: float) -> None:
        self.model = model
        self._collectives = collectives
        self._sent: list[tuple[list[Tensor], Tensor, Pending]] = []
        parameters = trained(model)[::-1]
        groups = grouped([parameter.nbytes for parameter in parameters], bucket_mib * MIB)
        for group in groups:
            bucket = [parameters[index] for index in group]
            self._send_when_complete(bucket)

    def _send_when_complete(self, bucket: Sequence[nn.Parameter]) -> None:
        missing = len(bucket)

        def count_down(_: nn.Parameter) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                missing = len(bucket)  # for the next step
                self._send(bucket)

        for parameter in bucket:
            when_accumulated(parameter, count_down)

    def _send(self, bucket: Sequence[nn.Parameter]) -> None:
        gradients = [gradient_of(parameter) for parameter in bucket]
        flat = flattened(gradients)
        self._sent.append((gradients, flat, self._collectives.start_all_reduce(flat)))

    def finish(self) -> None:
        for gradients, flat, pending in self._sent:
            self._collectives.wait(pending)
            copy_back(flat.div_(self._collectives.ranks), gradients)
        self._sent.clear()


def grouped(sizes: Sequence[int], limit: float) -> list[list[int]]:
    """Indices in order, in groups of at most ``limit`` in sum; a larger size is a group alone."""
    groups: list[list[int]] = []
    group_size = 0
    for index, size in enumerate(sizes):
        if not groups or group_size + size > limit:
            groups.append([])
            group_size = 0
        groups[-1].append(index)
        group_size += size
    return groups


class Naive:
    """A collective for each parameter after the backward pass; computing stands still."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives

    def finish(self) -> None:
        for parameter in trained(self.model):
            gradient = gradient_of(parameter)
            self._collectives.all_reduce(gradient)
            gradient.div_(self._collectives.ranks)


class Overlap:
    """A collective for each parameter, behind the rest of the backward pass."""

    phase = SYNC

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        self.model = model
        self._collectives = collectives
        self._sent: list[tuple[Tensor, Pending]] = []
        for parameter in trained(model):
            when_accumulated(parameter, self._send)

    def _send(self, parameter: nn.Parameter) -> None:
        gradient = gradient_of(parameter)
        self._sent.append((gradient, self._collectives.start_all_reduce(gradient)))

    def finish(self) -> None:
        for gradient, pending in self._sent:
            self._collectives.wait(pending)
            gradient.div_(self._collectives.ranks)
        self._sent.clear()
