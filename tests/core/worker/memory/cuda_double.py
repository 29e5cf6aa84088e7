"""A CUDA device in words: the answers of torch.cuda to the recorder and to the failure report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

MIB = 2**20


class Cuda:
    """A card in words: what torch.cuda would say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.observers: list[Callable[..., None]] = []
        self.free, self.allocated, self.reserved = 5000 * MIB, 700 * MIB, 900 * MIB
        self.snapshots = 0
        self.cleared = False
        set_to = monkeypatch.setattr
        set_to(torch.cuda, "init", lambda: None)
        empty = torch.empty
        set_to(torch, "empty", lambda *size, device=None, **more: empty(*size, **more))
        set_to(torch.cuda, "current_device", lambda: 0)
        set_to(torch.cuda, "get_allocator_backend", lambda: "native")
        set_to(torch.cuda, "mem_get_info", lambda device=None: (self.free, 8000 * MIB))
        set_to(torch.cuda, "memory_allocated", lambda device=None: self.allocated)
        set_to(torch.cuda, "memory_reserved", lambda device=None: self.reserved)
        set_to(torch.cuda, "memory_snapshot", lambda: self.snapshot()["segments"])
        set_to(torch.cuda, "memory_stats", lambda device=None: {"allocation.all.allocated": 3})
        set_to(torch.cuda.memory, "_snapshot", self.snapshot)
        set_to(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
        for name, function in (
            ("_cuda_attach_out_of_memory_observer", self.observers.append),
            ("_cuda_clearCublasWorkspaces", self.clear),
        ):
            monkeypatch.setattr(torch._C, name, function, raising=False)

    def clear(self) -> None:
        """Free cuBLAS's workspaces."""
        self.cleared = True

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        blocks = [
            {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated"},
            {"address": 8192, "size": 40 * MIB, "requested_size": 0, "state": "inactive"},
        ]
        other = [{"address": 4096, "size": 99 * MIB, "requested_size": 0, "state": "inactive"}]
        alloc = {"action": "alloc", "addr": 4096, "size": 500, "time_us": 5, "frames": []}
        refusal = {"action": "oom", "size": 64 * MIB, "device_free": 1, "time_us": 6}
        # A history that restarts after the refusal has only what is freed from then on.
        freed = {"action": "free_completed", "addr": 4096, "size": 500, "time_us": 9, "frames": []}
        trace = [{**freed, "action": "free_requested"}, freed] if self.cleared else [alloc, refusal]
        return {
            "segments": [
                {"device": 0, "address": 4096, "total_size": 2**26, "blocks": blocks},
                {"device": 1, "address": 4096, "total_size": 2**27, "blocks": other},
            ],
            "device_traces": [trace, []],
            "number": self.snapshots,
        }

    def refuse(self) -> None:
        for observer in self.observers:
            observer(0, 64 * MIB, 1000 * MIB, 5000 * MIB)
