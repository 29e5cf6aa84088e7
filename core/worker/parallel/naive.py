"""Naive: after the backward pass, one all-reduce for every parameter."""

from __future__ import annotations

from torch import nn

from ..ranks.collectives import Collectives
from ..ranks.strategies import SYNC, gradient_of


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
