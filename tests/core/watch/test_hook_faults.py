"""Scripts that do to torch's hooks what a recorder might not expect: each runs as it does bare."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from sysbench.core.watch.hook.step_recorder import Recorder
from tests.core.watch.test_recorder import START, Ended, run_copies

SEED = "import torch; torch.manual_seed(0)"
TRAIN = """
def train(steps=3, model=model, optimizer=optimizer):
    for _ in range(steps):
        optimizer.zero_grad(); loss = loss_of(model); loss.backward(); optimizer.step()
        print(loss.item())
torch.manual_seed(0)
"""
PATHS = {
    "an interrupted forward, saved": """
import pickle, signal
class Interrupted(Net):
    def forward(self, x):
        if self.training:
            signal.raise_signal(signal.SIGINT)
        return super().forward(x)
own = Interrupted()
for save in (pickle.dumps, copy.deepcopy):
    try:
        own(torch.ones(1, 64))
    except KeyboardInterrupt:
        save(own)
        print(len(own.__getstate__()["_forward_hooks"]))
train()
""",
    "a module that copies itself in its forward": """
class Teacher(Net):
    teacher = None
    def forward(self, x):
        if self.teacher is None:
            self.__dict__["teacher"] = copy.deepcopy(self)
            print(len(self.teacher._forward_hooks))
        return super().forward(x)
train(model=Teacher(), optimizer=optimizer)
""",
    "a forward that adds a hook and fails": """
class Fails(Net):
    def forward(self, x):
        self.register_forward_hook(lambda *_: print("hook"), always_call=True)
        raise ValueError("no")
own = Fails()
own.register_forward_hook(lambda *_: None)
for _ in range(3):
    try:
        own(torch.ones(1, 64))
    except ValueError as error:
        print(error)
train()
""",
    "a module that calls itself": """
class Recursive(Net):
    def forward(self, x, depth=3):
        if depth:
            return self(x, depth=depth - 1) + 1
        return super().forward(x)
train(model=Recursive())
""",
    "modules that are equal, or have no hash of use": """
import dataclasses
class Odd(Net):
    def __eq__(self, other):
        raise RuntimeError("compared")
    def __hash__(self):
        raise RuntimeError("hashed")
own = Odd()
for _ in range(3):
    print(own(torch.ones(1, 64)).shape)
train()
""",
    "hooks replaced by the user": """
import collections
for _ in range(3):
    model._forward_hooks = collections.OrderedDict()
    train(1)
""",
    "inputs of odd kinds": """
import dataclasses
@dataclasses.dataclass
class Slots:
    __slots__ = ("x",)
    x: object
class Lazy:
    def __getattr__(self, name):
        print("asked for", name); raise RuntimeError(name)
class Rows(list):
    def __iter__(self):
        print("iterated"); return super().__iter__()
class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        print(function.__name__)
        return super().__torch_function__(function, types, args, kwargs)
class Takes(torch.nn.Module):
    def forward(self, x):
        return 1
for one in (Slots(torch.ones(2)), Lazy(), Rows([torch.ones(2)]), torch.ones(2).as_subclass(Logged)):
    Takes()(one)
from torch.overrides import TorchFunctionMode
class Counts(TorchFunctionMode):
    calls = 0
    def __torch_function__(self, function, types, args=(), kwargs=None):
        Counts.calls += 1
        return function(*args, **(kwargs or {}))
with Counts():
    train()
print(Counts.calls)
""",
    "traced, exported, scripted, symbolic": """
from torch import fx
print(torch.jit.trace(model, torch.ones(2, 64)).graph)
print(fx.symbolic_trace(torch.nn.Sequential(model)).graph)
scripted = torch.jit.script(model)
print(scripted(torch.ones(2, 64)).shape, scripted.code)
print(torch.export.export(model, (torch.ones(2, 64),)).graph)
from torch.fx.experimental.proxy_tensor import make_fx
own = dict(model.named_parameters())
print(make_fx(lambda x: torch.func.functional_call(model, own, (x,)), tracing_mode="symbolic",
    _allow_non_fake_inputs=True)(torch.ones(3, 64)).code)
train(model=scripted)
""",
    "compiled steps": """
import logging
logging.disable(logging.WARNING)
@torch.compile(backend="eager", fullgraph=True)
def forward(x):
    return model(x)
print(forward(torch.ones(2, 64)).shape)
@torch.compile(backend="eager")
def whole():
    optimizer.step()
for _ in range(3):
    loss_of().backward(); whole(); optimizer.zero_grad()
print(torch._dynamo.utils.counters["graph_break"])
train()
""",
    "a forked child in a part": """
import os
class Forks(Net):
    def forward(self, x):
        self.child = os.fork()
        return super().forward(x)
class ForksBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        global child
        child = os.fork()
        return grad
def wait(pid):
    if pid == 0:
        train(1)
        sys.stdout.flush()
        os._exit(3)
    print(os.waitpid(pid, 0)[1])
import sys
own = Forks()
own(torch.ones(1, 64)); sys.stdout.flush(); wait(own.child)
ForksBackward.apply(torch.ones(1, requires_grad=True)).backward(); sys.stdout.flush(); wait(child)
class Forked(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        global child
        child = os.fork()
        return torch.ones(1)
for _ in torch.utils.data.DataLoader(Forked()):
    sys.stdout.flush(); wait(child)
class ForksStep(torch.optim.SGD):
    def step(self, closure=None):
        global child
        child = os.fork()
own = ForksStep(model.parameters()); own.step(); sys.stdout.flush(); wait(child)
""",
    "two models in threads": """
import threading
def work(seed, found):
    torch.manual_seed(0)
    net = Net(); own = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(4, 64) * seed
    for _ in range(60):
        own.zero_grad()
        try:
            net(x).square().mean().backward()
            shared(x)
        except ValueError:
            pass
        own.step()
    found.append(True)
class Shared(Net):
    def forward(self, x):
        self.register_forward_hook(lambda *_: None).remove()
        if x.sum() > 300: raise ValueError
        return super().forward(x)
shared = Shared()
found = []
threads = [threading.Thread(target=work, args=(n, found), daemon=True) for n in (1, 2)]
for one in threads: one.start()
work(3, found)
for one in threads: one.join()
print(found)
""",
    "optimizers in one another, that fail, without groups": """
class Outer(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {}); self.inner = inner
    def step(self, closure=None):
        return self.inner.step(closure)
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("no step")
class Bare(torch.optim.Optimizer):
    def __init__(self):
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self._patch_step_function()
    def step(self, closure=None):
        print("bare")
train(optimizer=optimizer, model=model)
outer = Outer(optimizer)
for _ in range(3):
    loss_of().backward(); outer.step()
for own in (Fails(model.parameters()), Bare()):
    for _ in range(8):
        try:
            own.step()
        except ValueError as error:
            print(error)
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)
def closure():
    lbfgs.zero_grad(); loss = loss_of(); loss.backward(); return loss
print(lbfgs.step(closure).item())
train()
""",
    "nested gradients": """
class Energy(Net):
    def forward(self, x):
        x = x.requires_grad_()
        energy = super().forward(x).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]
own = Energy()
opt = torch.optim.SGD(own.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad(); force = own(torch.ones(2, 64))
    force.square().sum().backward(create_graph=True)
    opt.step(); print(force.sum().item())
from torch.func import functional_call, grad, vmap
parameters = dict(model.named_parameters())
print(vmap(lambda x: functional_call(model, parameters, (x,)))(torch.ones(3, 64)).shape)
of = lambda p: functional_call(model, p, (torch.ones(1, 64),)).sum()
print(grad(of)(parameters)["first.bias"].sum())
with torch.inference_mode():
    print(model(torch.ones(1, 64)).sum())
torch.autograd.gradcheck(lambda x: x * x, torch.ones(2, dtype=torch.double, requires_grad=True))
train()
""",
    "a timeout in a hook": """
import signal
class Late(Exception):
    pass
def late(*_):
    raise Late
signal.signal(signal.SIGALRM, late)
seen = 0
tiny = torch.nn.Identity()
for number in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + number * 4e-6)
        while True:
            tiny(1)
    except Late:
        seen += 1
print(seen)
import gc
kept = [[] for _ in range(200_000)]
try:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    for _ in range(100):
        gc.collect()
except Late:
    print("in a collection")
try:
    model.compile(backend="nothing")
    model(torch.ones(1, 64))
except Exception as error:
    print(type(error).__name__)
    model._compiled_call_impl = None
train()
""",
    "torch.cuda replaced, a step in an exit function": """
import atexit
torch.cuda.is_initialized = lambda: 1 / 0
import torch.optim.optimizer as hooks
hooks.register_optimizer_step_pre_hook(lambda *_: print("pre"))
hooks.register_optimizer_step_post_hook(lambda *_: print("post"))
atexit.register(train)
train()
""",
    "an error in the backward": "torch.ones(2).sum().backward()",
    "an error in the data set": """
class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        raise ValueError(index)
for batch in torch.utils.data.DataLoader(Broken()):
    pass
""",
    "a scripted range, a compiled gradient": """
def ranged(x: torch.Tensor):
    with torch.autograd.profiler.record_function("mine"):
        return x + 1
print(torch.jit.script(ranged)(torch.ones(2)))
square = torch.compile(lambda x: torch.func.grad(lambda y: (y * y).sum())(x), backend="eager")
print(square(torch.ones(2)))
""",
}
BROKEN = ("torch.cuda replaced, a step in an exit function",)
"""Scripts that replace what the recorder needs: it stops, and says so in its file."""
FAILING = ("an error in the backward", "an error in the data set")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Ended]]]:
    codes = {case: SEED + START + TRAIN + code for case, code in PATHS.items()}
    found = []
    for is_watched in (True, False):
        folder = tmp_path_factory.mktemp("paths")
        found.append((folder / "marks", run_copies(folder, codes, watched=is_watched)))
    return found


@pytest.mark.parametrize("case", PATHS)
def test_a_script_runs_as_it_does_bare(
    case: str, runs: list[tuple[Path, dict[str, Ended]]]
) -> None:
    (marks, watched), (_, bare) = runs
    assert watched[case][1:] == bare[case][1:]
    errors = bare[case].errors
    assert bool(bare[case].code) == (case in FAILING), errors
    assert case not in FAILING or "Traceback" in errors
    (path,) = marks.glob(f"*-{watched[case].pid}.jsonl")
    problems = [line for line in path.read_text().splitlines() if line.startswith('["error"')]
    assert bool(problems) == (case in BROKEN), problems


def test_a_module_that_was_looked_for_first_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "looked_for.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    before, calls = [*sys.meta_path], []
    recorder = Recorder(str(tmp_path))
    recorder.after_import("looked_for", lambda: calls.append("once"))
    recorder.after_import("looked_for", lambda: calls.append("twice"))
    recorder.after_import("looked_for", lambda: [][0])
    assert importlib.util.find_spec("looked_for") is not None
    assert not calls
    importlib.import_module("looked_for")
    assert sorted(calls) == ["once", "twice"] and sys.meta_path == before
    assert recorder.broken and "IndexError" in next(tmp_path.glob("*.jsonl")).read_text()
