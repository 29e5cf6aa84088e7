"""Sharding in a dry run: torch's own ``fully_shard`` in a process group with a single process.

Its collectives move nothing; what it requests and returns for them is torch's own doing. torch has
no public way to shard tensors without data, so this module replaces one check and two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from sysbench.core.errors import ModelError
from sysbench.core.worker.workloads.model_blocks import blocks_of

if TYPE_CHECKING:
    from sysbench.core.worker.dry_run.storages import StorageTracker


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute to another value in the block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def fake_process_group(ranks: int) -> Iterator[None]:
    """A group of that many ranks in the block, this one the first; none for a single one."""
    if ranks == 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(
        "fake",
        store=FakeStore(),
        rank=0,
        world_size=ranks,
    )
    try:
        group = _fsdp_param_group.FSDPParamGroup
        with _replaced(group, "_validate_no_meta_params", lambda self: None):
            yield
    finally:
        dist.destroy_process_group()


def shard(model: nn.Module, ranks: int) -> None:
    """Divide the model among the ranks, by its blocks and then the rest, as `ranks.fsdp2` does.

    Raises:
        ModelError: No blocks repeat in it.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    blocks = blocks_of(model)
    if not blocks:
        raise ModelError("no blocks repeat in the model, so that none is gathered by itself")
    with _disable_current_modes(), torch.device("cpu"):  # its numbers are real ones
        mesh = init_device_mesh("cpu", (ranks,))
    for part in (*blocks, model):
        sharded = fully_shard(part, mesh=mesh)
        # The annotations name private classes of torch; this has all that it calls.
        sharded.set_custom_all_gather(_NoTransfer())  # type: ignore[arg-type]
        sharded.set_custom_reduce_scatter(_NoTransfer())  # type: ignore[arg-type]


class _NoTransfer:
    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device="meta")

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


@contextmanager
def track_resizes(tracker: StorageTracker, ranks: int) -> Iterator[None]:
    """Follow in the block what ``fully_shard`` does to storages without an operation.

    It returns the memory of gathered weights, and requests it again, by resizing their storage.
    """
    if ranks == 1:
        yield
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    def tracked(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def resize_and_track(tensor: Tensor) -> None:
            resize(tensor)
            tracker.resized(tensor)

        return resize_and_track

    with ExitStack() as stack:
        for name in ("alloc_storage", "free_storage"):
            resize = tracked(getattr(_fsdp_param, name))
            stack.enter_context(_replaced(_fsdp_param, name, resize))
        yield


def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor that is divided; others as they are."""
    shard_of: Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard_of
