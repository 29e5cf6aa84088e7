"""The evaluation between the steps builds graphs."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, loss_of, tokens, train

model = Model(width=128)


def evaluate(step: int, loss: torch.Tensor) -> None:
    if step % 10:
        return
    model.eval()
    with torch.set_grad_enabled(not IS_HEALTHY):
        for _ in range(6 if not IS_HEALTHY else 1):
            loss_of(model, tokens())
    model.train()


train(model, after=evaluate)
