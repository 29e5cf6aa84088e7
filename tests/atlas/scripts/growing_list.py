"""The outputs of all steps stay in a list."""

import torch

from tests.atlas.scripts.training import IS_HEALTHY, Model, train

outputs: list[torch.Tensor] = []
model = Model(vocabulary=2048)
model.head.register_forward_hook(lambda module, values, output: outputs.append(output.detach()))


def forget(step: int, loss: torch.Tensor) -> None:
    if IS_HEALTHY:
        outputs.clear()


train(model, after=forget, seconds=7.0)  # memory is sampled four times a second
