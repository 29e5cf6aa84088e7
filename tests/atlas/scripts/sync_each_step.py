"""Each micro-batch reads its loss back, so that the GPU waits while the CPU prepares the next."""

from collections.abc import Iterator

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, tokens, train

losses: list[float] = []


def note(step: int, loss: torch.Tensor) -> None:
    if not IS_HEALTHY or step % 100 == 0:
        losses.append(loss.item())


def prepared() -> Iterator[torch.Tensor]:
    batch = tokens(32, 512, "cuda")
    while True:
        torch.rand(150_000).sort()
        yield batch


model = Model(width=512, layers=2).cuda()
train(model, prepared(), after=note, micro_batches=2)
