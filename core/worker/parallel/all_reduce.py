"""The all-reduce workload: one collective of a given size, and nothing else."""

from __future__ import annotations

import torch

from ...spec.spec import RunSpec
from ..ranks.collectives import Collectives
from ..workloads.base import EnterPhase

MIB = 2**20


class AllReduceWorkload:
    """Sums a float32 tensor over the ranks. It is all zeros, and stays so."""

    phases = ("all-reduce",)

    def __init__(self, spec: RunSpec, collectives: Collectives) -> None:
        self.spec = spec
        self.device = torch.device(spec.device)
        elements = max(1, round(spec.payload_mib * MIB / 4))
        self.payload = torch.zeros(elements, dtype=torch.float32, device=self.device)
        self.collectives = collectives

    def loss_value(self) -> None:
        """There is no loss."""

    def step(self, enter: EnterPhase) -> None:
        """One all-reduce."""
        self.collectives.begin_step()
        enter("all-reduce")
        self.collectives.all_reduce(self.payload)
        enter("")
