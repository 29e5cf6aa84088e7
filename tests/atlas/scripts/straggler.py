"""One rank of two has more to do."""

import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.atlas.scripts.training import IS_HEALTHY, Model, tokens, train

distributed.init_process_group("gloo")
is_slow = os.environ["RANK"] == "1" and not IS_HEALTHY


def batches() -> object:
    for _ in range(120):
        batch = tokens()
        for _ in range(60 if is_slow else 0):
            torch.rand(128, 128) @ torch.rand(128, 128)
        yield batch


train(DistributedDataParallel(Model(width=128)), batches())  # type: ignore[arg-type]
distributed.destroy_process_group()
