"""Sharding of a model that is played: torch's own ``fully_shard`` among ranks that are not there.

Its collectives move nothing; what it requests and returns for them is torch's own doing. Tensors
without data are refused by one check of torch's, which is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ....errors import ModelError
from ...workloads.blocks import blocks_of
from ..device import replaced

if TYPE_CHECKING:
    from ..storages import StorageTracker


@contextmanager
def ranks_played(ranks: int) -> Iterator[None]:
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
        with replaced(group, "_validate_no_meta_params", lambda self: None):
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
def resizes_told(tracker: StorageTracker, ranks: int) -> Iterator[None]:
    """Tell the tracker in the block what ``fully_shard`` does to storages without an operation.

    It returns the memory of gathered weights, and requests it again, by resizing their storage.
    """
    if ranks == 1:
        yield
        return
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    def telling(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def told(tensor: Tensor) -> None:
            resize(tensor)
            tracker.resized(tensor)

        return told

    with ExitStack() as stack:
        for name in ("alloc_storage", "free_storage"):
            told = telling(getattr(_fsdp_param, name))
            stack.enter_context(replaced(_fsdp_param, name, told))
        yield


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor that is divided; others as they are."""
    shard_of: Tensor = getattr(tensor, "_local_tensor", tensor)
    return shard_of
