"""The model of a dry run, changed by a variant."""

from __future__ import annotations

from torch import nn

from sysbench.core.predict.variant import Variant
from sysbench.core.worker.dry_run.adapters import adapt
from sysbench.core.worker.dry_run.sharding import shard


def vary(model: nn.Module, variant: Variant) -> None:
    """Change the model in place; `sharding.fake_process_group` has to be around it.

    Raises:
        ModelError: The model has nothing that the variant could change.
    """
    if variant.lora_rank:
        adapt(model, variant.lora_rank)
    if variant.shards > 1:
        shard(model, variant.shards)


def trained_of(model: nn.Module) -> int:
    """Count of the parameters that need gradients."""
    return sum(one.numel() for one in model.parameters() if one.requires_grad)
