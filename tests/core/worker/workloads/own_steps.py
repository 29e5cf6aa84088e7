"""Steps as users write them, each with something that it keeps from one step to the next."""

CODE = '''
import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def net(width=48, classes=7):
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes))


class Averaged:
    """AdamW over several micro-batches, and an average of the weights."""

    def __init__(self, batch, micro):
        self.model = net()
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.x = torch.randn(micro, batch, 48).unbind()
        self.y = torch.randint(7, (batch,))

    def step(self, enter):
        for x in self.x:
            enter("forward")
            logits = self.model(x)
            enter("loss")
            loss = F.cross_entropy(logits, self.y) / len(self.x)
            del logits
            enter("backward")
            loss.backward()
        enter("optimizer")
        self.opt.step()
        self.opt.zero_grad()
        enter("average")
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.model.parameters()):
                kept.lerp_(new, 0.01)


def averaged(batch, micro=3):
    return Averaged(batch, micro)


def closed(batch, late=False):
    """Plain SGD whose inputs are in the closure of a function."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(batch, 48), torch.randint(7, (batch,))

    def step(enter):
        enter("forward")
        logits = model(x)
        enter("loss")
        loss = F.cross_entropy(logits, y)
        enter("backward")
        if late:
            opt.zero_grad()
        loss.backward()
        enter("optimizer")
        opt.step()
        if not late:
            opt.zero_grad()

    return SimpleNamespace(model=model, step=step)


class Adversarial:
    """Two models and two optimizers, with phases of other names."""

    def __init__(self, batch):
        self.model, self.judge = net(32, 48), net(48, 1)
        self.opts = [torch.optim.Adam(one.parameters()) for one in (self.model, self.judge)]
        self.real = torch.randn(batch, 48)

    def step(self, enter):
        made = self.model(torch.randn(len(self.real), 32))
        enter("judge")
        (self.judge(made.detach()).mean() - self.judge(self.real).mean()).backward()
        self.opts[1].step()
        self.opts[1].zero_grad()
        enter("maker")
        (-self.judge(made).mean()).backward()
        self.opts[0].step()
        for opt in self.opts:
            opt.zero_grad()


def adversarial(batch):
    return Adversarial(batch)


class Kept:
    """Losses that are kept with their graphs."""

    def __init__(self, batch):
        self.model, self.x, self.losses = net(), torch.randn(batch, 48), []
        self.opt = torch.optim.SGD(self.model.parameters(), 0.01)

    def step(self, enter):
        enter("forward")
        loss = self.model(self.x).exp().mean()
        enter("backward")
        loss.backward(retain_graph=True)
        self.losses.append(loss)
        self.opt.step()
        self.opt.zero_grad()


def kept(batch):
    return Kept(batch)


class Lengths:
    """Sequences of several lengths, the longest of them once in five steps."""

    LENGTHS = (16, 16, 24, 16, 96)

    def __init__(self, batch):
        self.model = nn.Sequential(nn.Embedding(60, 16), nn.Linear(16, 60))
        self.opt = torch.optim.AdamW(self.model.parameters())
        self.number, self.sequences = 0, batch

    def step(self, enter):
        length = self.LENGTHS[self.number % len(self.LENGTHS)]
        self.number += 1
        enter("forward")
        ids = torch.randint(60, (self.sequences, length))
        loss = F.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())
        enter("backward")
        loss.backward()
        enter("optimizer")
        self.opt.step()
        self.opt.zero_grad()


def lengths(batch):
    return Lengths(batch)


class Bank(nn.Module):
    """Every feature that it has seen, in a buffer."""

    def __init__(self):
        super().__init__()
        self.net = net()
        self.register_buffer("seen", torch.zeros(0, 7))

    def forward(self, x):
        found = self.net(x)
        self.seen = torch.cat([self.seen, found.detach()])
        return found


def bank(batch):
    return SimpleNamespace(model=Bank(), batch=lambda: torch.randn(batch, 48))


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by the iteration of Newton and Schulz, for matrices."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"].mul_(0.95).add_(p.grad)
                x = momentum / (momentum.norm() + 1e-7)
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
                p.add_(x, alpha=-group["lr"])


def two(batch):
    def optimizers(parameters):
        matrices = [one for one in parameters if one.dim() == 2]
        others = [one for one in parameters if one.dim() != 2]
        return [Muon(matrices), torch.optim.AdamW(others)]

    return SimpleNamespace(
        model=net(), batch=lambda: torch.randn(batch, 48), optimizers=optimizers
    )


class Registers(nn.Module):
    """A parameter without elements, as of an option that is off."""

    def __init__(self, tokens=0):
        super().__init__()
        self.registers = nn.Parameter(torch.zeros(tokens, 48))
        self.net = net()

    def forward(self, x):
        return self.net(torch.cat([self.registers, x]))


def registers(batch, tokens=0):
    return SimpleNamespace(model=Registers(tokens), batch=lambda: torch.randn(batch, 48))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = getattr(nn, kind)(16, 32, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


def recurrent(batch, kind="LSTM"):
    return SimpleNamespace(model=Recurrent(kind), batch=lambda: torch.randn(batch, 9, 16))


def one(batch):
    made = lambda: torch.randn(batch, 48)
    return SimpleNamespace(model=net(), batch=made, optimizers=torch.optim.SGD)
'''
