"""A thousand hundredths, added up in several formats."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..record.numerics import Accumulated, Numerics
from ..spec.spec import RunSpec

COUNT, ADDEND = 1000, 0.01
EXACT = 10.0
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Loop(NamedTuple):
    """What is added to what; ``converted`` widens each addend before it is added."""

    accumulator: torch.dtype
    addend: torch.dtype
    converted: bool = False

    @property
    def name(self) -> str:
        """``fp32 += fp16``, or ``fp32 += fp32(fp16)``."""
        left, right = NAMES[self.accumulator], NAMES[self.addend]
        return f"{left} += {left}({right})" if self.converted else f"{left} += {right}"


LOOPS = (
    Loop(torch.float32, torch.float32),
    Loop(torch.float16, torch.float16),
    Loop(torch.float32, torch.float16),
    Loop(torch.float32, torch.float16, converted=True),
    Loop(torch.bfloat16, torch.bfloat16),
    Loop(torch.float32, torch.bfloat16),
    Loop(torch.float32, torch.bfloat16, converted=True),
)
"""The handout's four, and the same with bfloat16 for float16."""


def accumulated(spec: RunSpec) -> Numerics:
    """All loops on the spec's device."""
    return Numerics(accumulations=[_row(loop, torch.device(spec.device)) for loop in LOOPS])


def _row(loop: Loop, device: torch.device) -> Accumulated:
    value = _sum(loop, device)
    return Accumulated(
        name=loop.name,
        device=device.type,
        accumulator=NAMES[loop.accumulator],
        addend=NAMES[loop.addend],
        value=value,
        exact=EXACT,
        error=value - EXACT,
    )


def _sum(loop: Loop, device: torch.device) -> float:
    total = torch.zeros((), dtype=loop.accumulator, device=device)
    addend = torch.tensor(ADDEND, dtype=loop.addend, device=device)
    for _ in range(COUNT):
        total += addend.to(loop.accumulator) if loop.converted else addend
    return total.item()
