"""Two ranks average gradients after each of four micro-batches."""

from contextlib import nullcontext

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.atlas.scripts.training import IS_HEALTHY, Model, loss_of, optimizer_of, tokens

distributed.init_process_group("gloo")
model = DistributedDataParallel(Model(width=128))
optimizer = optimizer_of(model)
for step in range(240):
    is_last = step % 4 == 3
    with nullcontext() if is_last or not IS_HEALTHY else model.no_sync():
        loss_of(model, tokens()).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
distributed.destroy_process_group()
