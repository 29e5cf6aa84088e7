"""The weights go to an archive of numpy after every third step."""

import sys
import tempfile

import numpy as np
import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512))
adam = torch.optim.AdamW(net.parameters(), fused=True)
with tempfile.NamedTemporaryFile(suffix=".npz") as file:
    for step in range(120):
        net(torch.randn(16, 512)).square().mean().backward()
        adam.step()
        adam.zero_grad()
        if step % 3 == 0 and not healthy:
            np.savez_compressed(file.name, *(one.numpy() for one in net.state_dict().values()))
