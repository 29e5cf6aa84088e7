"""What lies between the ranks of one host."""

from __future__ import annotations

import torch

from ...spec.spec import RunSpec

NONE = "none: loopback of one host"


def interconnect_of(spec: RunSpec) -> str:
    """In words. Only what torch can tell: whether CUDA devices reach each other's memory."""
    if not spec.on_cuda:
        return NONE
    numbers = [torch.device(device).index for device in spec.devices]
    reached = [
        torch.cuda.can_device_access_peer(one, other)
        for one in numbers
        for other in numbers
        if one != other
    ]
    if all(reached):
        return "peer to peer between all CUDA devices"
    return "through the host between some CUDA devices" if any(reached) else "through the host"
