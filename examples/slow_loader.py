"""A training loop that waits for its loader, for `sysbench-tui watch`."""

import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset[torch.Tensor]):
    """Texts that take long to read, as from a network."""

    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.003)
        return torch.randint(0, 256, (64,))


torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Embedding(256, 128),
    torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True),
    torch.nn.Linear(128, 256),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step, tokens in enumerate(DataLoader(Documents(), batch_size=8)):
    logits = model(tokens)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
