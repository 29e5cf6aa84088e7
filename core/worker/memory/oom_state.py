"""State of an allocator when it refuses a request, read by an observer or just after."""

from __future__ import annotations

from typing import Any

import msgspec
import psutil
import torch

from sysbench.core.spec.spec import RunSpec

CPU_REASONS = {
    "free_bytes": "on the CPU only the memory pass knows them",
    "allocated_bytes": "the CPU allocator keeps no count; the memory pass does",
    "reserved_bytes": "the CPU allocator reserves nothing ahead",
    "largest_free_bytes": "the CPU allocator asks the system for each block",
    "op": "only the memory pass records operators on the CPU",
}
NO_NODE = "on CUDA only backward's functions are known; see the expression"


class AllocatorState(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, named as in `core.record.memory.Oom`; None with a reason in ``missing``."""

    requested_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    capacity_bytes: int | None = None
    op: str | None = None
    missing: dict[str, str] = {}


class OomObserver:
    """Observer of CUDA's allocator, called before it raises.

    Attributes:
        last: State at the latest refusal, which need not end the pass: some libraries retry with
            less.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.last: AllocatorState | None = None
        self._spec = spec
        if spec.on_cuda:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            observe_refusals(self._note)

    def _note(self, device: int, requested: int, *_: int) -> None:
        node = torch._C._current_autograd_node()
        self.last = msgspec.structs.replace(
            cuda_state(self._spec, None if node is None else node.name()),
            requested_bytes=requested,
        )


def observe_refusals(observer: Any) -> None:
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None:
        attach(observer)


def state_now(spec: RunSpec) -> AllocatorState:
    """State after the step: tensors local to the operator are already freed."""
    return cuda_state(spec) if spec.on_cuda else _cpu_state(spec)


def cuda_state(spec: RunSpec, op: str | None = None) -> AllocatorState:
    """The caching allocator's counters and the device's free bytes within the limit."""
    device = torch.device(spec.device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    free = torch.cuda.mem_get_info(device)[0]
    if spec.memory_limit:
        # The cap counts reserved bytes, so cached free blocks do not allow a new one.
        free = min(free, max(0, spec.memory_limit - reserved))
    index = torch.cuda.current_device() if device.index is None else device.index
    blocks = (
        block
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index
        for block in segment["blocks"]
    )
    return AllocatorState(
        free_bytes=free,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        # Freed blocks that a stream still uses are not "inactive": no request can have them yet.
        largest_free_bytes=max(
            (block["size"] for block in blocks if block["state"] == "inactive"), default=0
        ),
        capacity_bytes=reserved + free,
        op=op,
        missing={"op": NO_NODE},
    )


def _cpu_state(spec: RunSpec) -> AllocatorState:
    resident = psutil.Process().memory_info().rss
    # "available" excludes what this process has resident, so both together are its capacity.
    capacity = spec.memory_limit or psutil.virtual_memory().available + resident
    return AllocatorState(capacity_bytes=capacity, missing=CPU_REASONS)
