"""Sharded optimizer: each rank keeps the state of some parameters, and updates only those.

Gradients stay whole on every rank; only the optimizer's state is sharded (the first stage of
ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054). A parameter is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...spec.spec import RunSpec
from ..workloads.transformer import make_optimizer
from .collectives import Collectives


def make_sharded_optimizer(
    spec: RunSpec, model: nn.Module, collectives: Collectives
) -> torch.optim.Optimizer:
    """The spec's optimizer over this rank's parameters; its step ends by broadcasting weights."""
    parameters = list(model.parameters())
    owners = owners_of([parameter.numel() for parameter in parameters], collectives.ranks)
    pairs = list(zip(parameters, owners, strict=True))
    own = nn.ParameterList(parameter for parameter, owner in pairs if owner == collectives.rank)
    optimizer = make_optimizer(spec, own)

    def share(*_: Any) -> None:
        sent = [
            collectives.start_broadcast(parameter.detach(), owner) for parameter, owner in pairs
        ]
        for pending in sent:
            collectives.wait(pending)

    optimizer.register_step_post_hook(share)
    return optimizer


def owners_of(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank that keeps each size: largest first, each to the rank with least so far."""
    assigned = [0] * ranks
    owners = [0] * len(sizes)
    # Both the stable sort and `index` break ties alike on every rank: owners must agree.
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = assigned.index(min(assigned))
        assigned[owners[index]] += sizes[index]
    return owners
