"""The validation loss is computed as the training loss is."""

import sys

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Dropout(), torch.nn.Linear(512, 64))
adam = torch.optim.AdamW(net.parameters(), fused=True)


def validate() -> float:
    net.eval()
    losses = [net(torch.randn(64, 256)).square().mean() for _ in range(4)]
    net.train()
    return float(sum(loss.item() for loss in losses))


for step in range(600):
    net(torch.randn(64, 256)).square().mean().backward()
    adam.step()
    adam.zero_grad()
    if step % 8 == 0:
        with torch.inference_mode(healthy):
            validate()
