"""The accuracy of each batch is added up on the CPU, which then prepares the next."""

import sys

import torch
from torch.nn import functional

healthy = "--healthy" in sys.argv
net = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6))).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
images = torch.zeros(8192, 2048, device="cuda")
labels = torch.zeros(8192, dtype=torch.long, device="cuda")
correct = torch.zeros((), device="cuda", dtype=torch.long)
right = 0
for _ in range(30):
    for _ in range(2):
        torch.rand(250_000).sort()
        scores = net(images)
        functional.cross_entropy(scores, labels).backward()
        hits = (scores.argmax(-1) == labels).sum()
        if healthy:
            correct += hits
        else:
            right += hits.item()
    sgd.step()
    sgd.zero_grad()
