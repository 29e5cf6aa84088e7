"""Ways to train a spec that none of its keys describe."""

from __future__ import annotations

import msgspec


class TrainingVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of a dry run from its spec; the default has none.

    Attributes:
        lora_rank: Rank of low-rank adapters on every linear layer but the head, with all else
            frozen (Hu et al. 2021, arXiv:2106.09685); 0 trains the model itself.
        shards: Ranks over which ``fully_shard`` divides parameters, gradients and states, by the
            model's blocks; 1 divides nothing.
    """

    lora_rank: int = 0
    shards: int = 1


PLAIN = TrainingVariant()
