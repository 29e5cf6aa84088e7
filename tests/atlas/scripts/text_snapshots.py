"""A convolution writes its filters as text every second step, for a plot."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
last = torch.nn.Conv2d(64, 16, 5)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 5), torch.nn.ReLU(), last)
momentum = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "filters.txt"
    for step in range(600):
        image = torch.randn(4, 3, 40, 40)
        net(image).abs().mean().backward()
        momentum.step()
        momentum.zero_grad(set_to_none=True)
        if step % 2 == 0 and not healthy:
            np.savetxt(path, last.weight.detach().flatten(1).numpy())
