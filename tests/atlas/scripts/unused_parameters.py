"""Two ranks average a model of which a branch is never used."""

from itertools import islice

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.atlas.scripts.training import IS_HEALTHY, Model, random_batches, train

distributed.init_process_group("gloo")
model = Model()
if not IS_HEALTHY:
    model.add_module("auxiliary", nn.Linear(256, 256))
batches = islice(random_batches(), 240)
train(DistributedDataParallel(model, find_unused_parameters=not IS_HEALTHY), batches)
distributed.destroy_process_group()
