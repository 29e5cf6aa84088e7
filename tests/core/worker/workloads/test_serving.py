"""Steps with a cache: the tokens are those of a model without one, and the cache keeps its size."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.predict.cache_forms import cache_form, cache_width
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory, Timing
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.models import Dimensions
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.tables.cells import quantity_words
from sysbench.core.tables.timing_tables import speed_table, timing_table
from sysbench.core.worker.passes import timing_pass
from sysbench.core.worker.passes.memory_pass import measure
from sysbench.core.worker.workloads.attention import KeyValueCache
from sysbench.core.worker.workloads.make_workload import Workload, make_workload
from sysbench.core.worker.workloads.transformer import Transformer
from tests.drawn import chance, pairwise, some_of
from tests.validation.serving import NAMES, checked

PROMPT, TOKENS = 7, 12
SIZE = Dimensions(vocab=61, d_model=32, d_ff=48, layers=3, heads=4)


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
@torch.inference_mode()
def test_greedy_tokens_of_the_built_in_model_are_those_without_a_cache(kernel: str) -> None:
    torch.manual_seed(1)
    context = PROMPT + TOKENS
    model = Transformer(SIZE, context, kernel)  # type: ignore[arg-type]
    cache = KeyValueCache(SIZE.layers, (2, SIZE.heads, context, 8), torch.float32, 0)
    ids = torch.randint(SIZE.vocab, (2, PROMPT))
    new, cached = ids, list[Tensor]()
    for _ in range(TOKENS):
        new = model(new, cache).argmax(-1)
        cached.append(new)
    assert cache.length == context - 1
    for token in cached:
        shorter = Transformer(SIZE, ids.shape[1], kernel)  # type: ignore[arg-type]
        shorter.load_state_dict(model.state_dict())
        assert torch.equal(shorter(ids)[:, -1:].argmax(-1), token)
        ids = torch.cat((ids, token), dim=1)


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_a_step_leaves_the_cache_as_large_as_it_was(step: str) -> None:
    workload = make_workload(RunSpec(step=step, device="cpu", precision="bf16", context=16))  # type: ignore[arg-type]
    storages = [tensor.data_ptr() for tensor in workload.cached]
    before = [tensor.clone() for tensor in workload.cached]
    for _ in range(3):
        workload.step(lambda phase: None)
    assert [tensor.data_ptr() for tensor in workload.cached] == storages
    written = slice(None) if step == "prefill" else slice(15, None)
    for tensor, old in zip(workload.cached, before, strict=True):
        assert tensor.dtype == torch.bfloat16
        changed = (tensor != old).any(-1).all(dim=(0, 1))
        assert changed[written].all()
        assert changed.sum() == changed[written].numel()


@pytest.mark.parametrize(
    ("step", "row", "words"),
    [("decode", "token", "a token"), ("prefill", "step", "to the first token")],
)
def test_times_are_of_a_token_or_to_the_first(
    step: str, row: str, words: str, tmp_path: Path
) -> None:
    events = list[AnyEvent]()
    settings = {"step": step, "device": "cpu", "context": 16, "steps": 5, "warmup": 0}
    spec = parse_spec(settings)
    timing_pass.measure(Job(spec=spec, name="timing", folder=str(tmp_path)), events.append)
    block = next(one for one in events if isinstance(one, ResultReported) and one.block == "timing")
    timing = msgspec.convert(block.data, Timing)
    decode = timing.decode
    assert decode is not None
    assert timing.whole_words == words
    assert timing_table(timing).column("phase") == [row, "forward"]
    shown = [quantity_words(str(name)) for name in speed_table(timing).column("quantity")]
    assert sorted(shown) == sorted(set(shown))
    assert decode.cache_bytes == spec.batch * 16 * (decode.bytes_per_token or 0) == 131_072
    assert decode.weight_bytes == 4 * (spec.dimensions.parameters - spec.vocab * spec.d_model)
    tokens = spec.batch * (1 if step == "decode" else 16)
    assert decode.tokens_per_second == pytest.approx(tokens / timing.step.median_ms * 1e3)
    assert (decode.token_ms, decode.prefill_ms) in (
        (timing.step, None),
        (None, timing.step.median_ms),
    )


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("step", {"workload": "attention", "d_model": 64, "heads": 1}),
        ("attention", {"attention": "flex"}),
        ("checkpoint", {"checkpoint": 1}),
        ("accumulation", {"accumulation": 2}),
        ("parallel", {"parallel": "ddp", "ranks": 2}),
    ],
)
def test_what_has_no_cache_is_refused(key: str, settings: dict[str, object]) -> None:
    with pytest.raises(SpecError) as refused:
        RunSpec(step="decode", device="cpu", **settings)  # type: ignore[arg-type]
    assert refused.value.field == key


TWELVE = (
    *("gpt2", "llama", "qwen3", "falcon", "mistral", "gemma2", "gemma3_text"),
    *("mixtral", "qwen3_moe", "deepseek_v3", "mamba", "mamba2"),
)


def configured(folder: Path, name: str, **settings: object) -> RunSpec:
    rows = runpy.run_path(str(Path(__file__).parents[3] / "validation" / "models.py"))
    _, architecture, values = rows["ARCHITECTURES"][name]
    path = folder / "config.json"
    names = {"model_type": name, "architectures": [architecture]}
    path.write_text(json.dumps({**rows["SIZES"], **values, **names}))
    small = {"device": "cpu", "threads": 1, "batch": 2, "context": 24}
    return resolve(parse_spec({"model": f"hf:{path}", **small, **settings}))


@pytest.mark.parametrize("name", TWELVE)
def test_greedy_tokens_of_an_architecture_are_those_without_a_cache(
    name: str, tmp_path: Path
) -> None:
    workload = Workload(configured(tmp_path, name, step="prefill"))
    model, cache, decode = workload.model, workload.cache, workload.parts.decode
    assert decode is not None and cache is not None
    new, cached = workload.batch["input_ids"], list[Tensor]()
    prompt = new
    with torch.inference_mode():
        for _ in range(6):
            new = decode(model, {"input_ids": new}, cache).logits[:, -1:].argmax(-1)
            cached.append(new)
        ids = prompt
        for token in cached:
            assert torch.equal(model(ids, use_cache=False).logits[:, -1:].argmax(-1), token)
            ids = torch.cat((ids, token), dim=1)


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
@pytest.mark.parametrize("name", TWELVE)
def test_bytes_of_a_cache_are_its_closed_form(name: str, precision: str, tmp_path: Path) -> None:
    spec = configured(tmp_path, name, step="decode", precision=precision)
    workload = Workload(spec)
    form = cache_form(spec)
    assert form is not None and workload.cache is not None
    for _ in range(3):
        workload.step(lambda phase: None)
        assert workload.cached_bytes == form.bytes(spec.context, spec.batch, cache_width(spec))
        grows = form.bytes_per_token(spec.context, cache_width(spec))
        assert workload.cache.bytes_per_token == grows


@pytest.mark.parametrize(
    ("name", "step"),
    [*zip(some_of("serving", TWELVE, 3), ["prefill", "decode", "prefill"], strict=True)],
)
def test_the_ledger_of_a_step_with_a_cache_is_predicted(
    name: str, step: str, tmp_path: Path
) -> None:
    spec, events = configured(tmp_path, name, step=step), list[AnyEvent]()
    measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append)
    reported = events[-1]
    assert isinstance(reported, ResultReported)
    memory = msgspec.convert(reported.data, Memory)
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes
    assert memory.predicted_peak_bytes == pytest.approx(memory.tensor_peak_bytes, rel=1e-3)
    cached = next(row for row in memory.reconciliation if row.name == "kv cache")
    assert cached.predicted_bytes == cached.measured_bytes > 0


@pytest.mark.parametrize("name", some_of("drawn caches", NAMES, 2))
def test_a_drawn_model_with_a_cache_is_predicted(name: str, tmp_path: Path) -> None:
    row = checked(name, chance(f"drawn {name}"), tmp_path)
    assert row.holds, row


def test_an_encoder_has_no_cache_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="one by one"):
        Workload(configured(tmp_path, "t5", step="decode"))


OWN = """
from types import SimpleNamespace

import torch
from torch import nn


class Growing:
    def __init__(self):
        self.layers, self.length = [None, None], 0

    def add(self, index, k, v):
        if self.layers[index] is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(self.layers[index], (k, v)))
        self.layers[index] = (k, v)
        self.length = k.shape[1]
        return k, v, self.length - 1


class Fixed:
    def __init__(self, batch, context, width):
        self.keys, self.values = ({i: torch.zeros(batch, context, width) for i in range(2)}
                                  for _ in range(2))
        self.length = torch.zeros((), dtype=torch.long)

    def add(self, index, k, v):
        places = self.length + torch.arange(k.shape[1])
        self.keys[index].index_copy_(1, places, k)
        self.values[index].index_copy_(1, places, v)
        if index:
            self.length.add_(k.shape[1])
        return self.keys[index], self.values[index], places[-1]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, cache, index):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        last = x.shape[1] - 1
        if cache is not None:
            k, v, last = cache.add(index, k, v)
        seen = torch.arange(k.shape[1]) <= last - torch.arange(x.shape[1] - 1, -1, -1)[:, None]
        scores = (q @ k.transpose(1, 2) * 3).masked_fill(~seen, -torch.inf)
        return x + self.out(scores.softmax(-1) @ v)


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.table, self.head = nn.Embedding(40, width), nn.Linear(width, 40)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, ids, cache=None):
        x = self.table(ids)
        for index, block in enumerate(self.blocks):
            x = block(x, cache, index)
        return self.head(x)


def decode(model, token, cache):
    return model(token, cache)


def growing(width=16):
    return SimpleNamespace(model=Model(width), cache=Growing, decode=decode)


def fixed(width=16):
    def cache(batch, context):
        return Fixed(batch, context, width)

    def batch(batch, context):
        return torch.randint(40, (batch, context)), torch.randint(40, (batch, context))

    return SimpleNamespace(model=Model(width), batch=batch, cache=cache, decode=decode)


def without(width=16):
    return Model(width)


def half(width=16):
    return SimpleNamespace(model=Model(width), batch=lambda: None, decode=decode)


def hidden(width=16):
    class Slotted:
        __slots__ = ("add",)

        def __init__(self):
            self.add = Growing().add

    return SimpleNamespace(model=Model(width), cache=Slotted, decode=decode)
"""


def own(folder: Path, factory: str, code: str = OWN, **settings: object) -> RunSpec:
    path = folder / "served.py"
    path.write_text(code)
    small = {"device": "cpu", "threads": 1, "batch": 3, "context": 20, "steps": 5, "warmup": 0}
    return resolve(parse_spec({"model": f"{path}:{factory}", **small, **settings}))


@pytest.mark.parametrize("factory", ["growing", "fixed"])
@torch.inference_mode()
def test_greedy_tokens_of_a_factory_are_those_without_a_cache(factory: str, tmp_path: Path) -> None:
    workload = Workload(own(tmp_path, factory, step="prefill", context=12))
    model, cache, decode = workload.model, workload.cache, workload.parts.decode
    assert decode is not None and cache is not None
    ids = new = workload.batch[:, :PROMPT]
    for _ in range(5):
        new = decode(model, new, cache)[:, -1:].argmax(-1)
        assert torch.equal(model(ids)[:, -1:].argmax(-1), new)
        ids = torch.cat((ids, new), dim=1)


@pytest.mark.parametrize(
    ("factory", "step", "precision"),
    pairwise("factories", ["growing", "fixed"], ["prefill", "decode"], ["fp32", "bf16-pure"]),
)
def test_a_step_of_a_factory_with_a_cache_is_measured_and_predicted(
    factory: str, step: str, precision: str, tmp_path: Path
) -> None:
    spec, events = own(tmp_path, factory, step=step, precision=precision), list[AnyEvent]()
    measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append)
    timing_pass.measure(Job(spec=spec, name="timing", folder=str(tmp_path)), events.append)
    blocks = {one.block: one.data for one in events if isinstance(one, ResultReported)}
    memory = msgspec.convert(blocks["memory"], Memory)
    assert sum(row.bytes for row in memory.ledger) == memory.peak_allocated_bytes
    assert memory.predicted_peak_bytes == pytest.approx(memory.tensor_peak_bytes, rel=1e-3)
    cached = next(row for row in memory.reconciliation if row.name == "kv cache")
    assert cached.predicted_bytes == cached.measured_bytes > 0
    decode = msgspec.convert(blocks["timing"], Timing).decode
    assert decode is not None
    of_token = 2 * 2 * 16 * (4 if precision == "fp32" else 2)
    assert decode.cache_bytes == 3 * 20 * of_token
    grows = factory == "growing" and step == "decode"
    assert decode.bytes_per_token == (of_token if grows else None)


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("without", SpecError, "add cache(), which makes an empty cache, and decode("),
        ("half", SpecError, "add cache(), which makes an empty cache, and decode("),
        ("hidden", ModelError, "no tensor was found in the Slotted of cache()"),
    ],
)
def test_a_factory_without_what_serving_needs_says_what_to_add(
    factory: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        Workload(own(tmp_path, factory, step="decode"))


def test_the_factory_of_the_page_serves_from_a_static_cache(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "how-to" / "serve.md"
    code = page.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    spec, events = own(tmp_path, "make", code, step="decode"), list[AnyEvent]()
    measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append)
    reported = events[-1]
    assert isinstance(reported, ResultReported)
    memory = msgspec.convert(reported.data, Memory)
    assert memory.predicted_peak_bytes == pytest.approx(memory.tensor_peak_bytes, rel=1e-3)
    cached = next(row for row in memory.reconciliation if row.name == "kv cache")
    assert cached.predicted_bytes == cached.measured_bytes == 2 * 2 * 3 * 20 * 64 * 4
    workload = Workload(spec)
    assert workload.cache is not None and workload.parts.decode is not None
    with torch.inference_mode():
        first = workload.parts.decode(workload.model, workload.batch, workload.cache)
        workload.cache.rewind()
        again = workload.parts.decode(workload.model, workload.batch, workload.cache)
    assert torch.equal(first, again)


def test_a_factory_that_serves_still_trains(tmp_path: Path) -> None:
    workload = Workload(own(tmp_path, "growing", step="train", context=8))
    workload.step(lambda phase: None)
    assert workload.inputs[0].shape == (3, 8) and workload.loss is not None
