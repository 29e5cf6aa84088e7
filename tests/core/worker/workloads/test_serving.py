"""Steps with a cache: the tokens are those of a model without one, and the cache keeps its size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sysbench.core.errors import SpecError
from sysbench.core.spec.models import Dimensions
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.attention import KeyValueCache
from sysbench.core.worker.workloads.make_workload import make_workload
from sysbench.core.worker.workloads.transformer import Transformer

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
