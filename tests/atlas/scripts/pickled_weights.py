"""The arrays of a recommender are pickled after every fourth step."""

import pickle
import sys
import tempfile

import torch

healthy = "--healthy" in sys.argv
torch.set_num_threads(1)
users, items = torch.nn.Embedding(40_000, 64), torch.nn.Embedding(4_000, 64)
head = torch.nn.Linear(64, 64)
net = torch.nn.ModuleList([users, items, head])
adagrad = torch.optim.Adagrad(head.parameters(), lr=0.01)
with tempfile.TemporaryFile() as file:
    for step in range(2_000):
        left = users(torch.randint(0, 40_000, (512,)))
        right = items(torch.randint(0, 4_000, (512,)))
        loss = (head(left.detach()) * right.detach()).sum(1).sigmoid().mean()
        loss.backward()
        adagrad.step()
        adagrad.zero_grad()
        if step % 4 == 0 and not healthy:
            file.seek(0)
            pickle.dump({name: one.numpy() for name, one in net.state_dict().items()}, file)
