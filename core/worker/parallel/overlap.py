"""Overlap: each gradient is sent as soon as the backward pass has made it."""

from __future__ import annotations

from torch import Tensor, nn

from ..ranks.collectives import Collectives
from ..ranks.stamps import Pending
from ..ranks.strategies import SYNC, gradient_of, when_accumulated


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
