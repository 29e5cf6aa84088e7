"""Each step prints a tensor."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, train

torch.set_printoptions(threshold=100_000)
probe = torch.randn(24, 20)


def report(step: int, loss: torch.Tensor) -> None:
    if not IS_HEALTHY:
        print(probe * loss.detach())
    elif step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}")


train(Model(), after=report)
