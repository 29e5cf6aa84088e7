"""A stream of records is parsed while the model waits."""

import json
import sys
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
record = json.dumps({"values": list(range(256)), "notes": ["a note"] * 8000})
ready = torch.tensor(json.loads(record)["values"], dtype=torch.float32)


class Records(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(8000):
            yield ready if healthy else torch.tensor(json.loads(record)["values"]).float()


net = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 256))
sgd = torch.optim.SGD(net.parameters(), lr=1e-6)
for rows in DataLoader(Records(), batch_size=16, drop_last=True):
    loss = (net(rows) - rows).square().mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
