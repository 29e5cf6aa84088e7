"""A GPU gets a batch of one short text."""

from itertools import repeat

from tests.atlas.scripts.training import IS_HEALTHY, Model, heavy_batch, tokens, train

model = Model(width=512, layers=3).cuda()
batch = heavy_batch() if IS_HEALTHY else tokens(1, 32, "cuda")
train(model, repeat(batch))
