"""A model that divides itself over the GPUs of a cluster.

``sysbench-tui estimate examples/divided.py:Divided device=cuda --capacity 80GiB --world dp=8,tp=2``
plays one rank of it; so does ``examples/divided.py:make``, whose argument is the mesh.
"""

import torch
from torch import nn
from torch.distributed import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WIDTH, WORDS = 512, 1000


class Block(nn.Module):
    """Two layers beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = hidden + self.down(torch.relu(self.up(hidden)))
        return result


class Divided:
    """What `estimate` needs: the model, its inputs, and how it is divided."""

    def __init__(self, layers: int = 4) -> None:
        blocks = [Block() for _ in range(layers)]
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS))

    def batch(self, batch: int = 4, context: int = 128) -> torch.Tensor:
        """Make token ids of shape (batch, context)."""
        return torch.randint(WORDS, (batch, context))

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Divide layers over ``tp``, and everything over ``dp``."""
        blocks = [module for module in model if isinstance(module, Block)]
        for block in blocks:
            if mesh["tp"].size() > 1:
                plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
                parallelize_module(block, mesh["tp"], plan)
            fully_shard(block, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])


def make(mesh: DeviceMesh | None = None, layers: int = 4) -> nn.Module:
    """Make the model, divided over the mesh if there is one."""
    parts = Divided(layers)
    return parts.model if mesh is None else parts.parallelize(parts.model, mesh)
