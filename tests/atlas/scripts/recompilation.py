"""Batches of many lengths reach a compiled model."""

from tests.atlas.scripts.training import IS_HEALTHY, Model, tokens, train

model = Model()
model.compile(backend="eager", dynamic=False)
lengths = [32 if IS_HEALTHY else 16 + 2 * (step // 6) for step in range(60)]
train(model, (tokens(context=length) for length in lengths))
