"""Bucketed: gradients are sent in groups, each as soon as it is complete."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..ranks.collectives import Collectives
from ..ranks.stamps import Pending
from ..ranks.strategies import SYNC, gradient_of, when_accumulated
from .flat import copy_back, flattened

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
