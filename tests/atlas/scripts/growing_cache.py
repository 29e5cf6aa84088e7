"""A cache of features has a key that never comes again."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, loss_of, random_batches, train

features: dict[int, list[float]] = {}


def feature_of(batch: torch.Tensor) -> list[float]:
    key = len(batch) if IS_HEALTHY else hash(tuple(batch.flatten().tolist()))
    if key not in features:
        features[key] = torch.rand(40_000).tolist()
    return features[key]


def loss(model: object, batch: torch.Tensor) -> torch.Tensor:
    return loss_of(network, batch) * (1 + feature_of(batch)[0])


network = Model(width=128)
train(network, random_batches(), loss=loss, seconds=7.0)  # memory is sampled four times a second
