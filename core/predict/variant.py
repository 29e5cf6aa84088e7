"""Ways to train a spec that no key of it names, played to tell what they would save."""

from __future__ import annotations

import msgspec


class TrainingVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A step as it is played, beside what its spec says; the default is the spec's own step.

    Attributes:
        lora_rank: Rank of low-rank adapters beside every linear layer but the head, with all else
            frozen (Hu et al. 2021, arXiv:2106.09685); 0 trains the model itself.
        shards: Ranks over which ``fully_shard`` divides parameters, gradients and states, by the
            model's blocks; 1 divides nothing.
    """

    lora_rank: int = 0
    shards: int = 1


PLAIN = TrainingVariant()
