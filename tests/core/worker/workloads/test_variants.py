"""Ways to train that no key names, in a dry run: adapters and sharding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.errors import ModelError
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    ExactPrediction,
    TrainingVariant,
    canonical_spec,
)
from sysbench.core.predict.savings import RANK, savings_of
from sysbench.core.record.events import AnyEvent, ResultReported
from sysbench.core.record.record import Memory
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.passes import memory_pass as memory

CODE = """
from torch import nn


class Adapted(nn.Module):
    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x)) * 2.0


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


def plain(layers=4, width=64, vocab=300):
    blocks = (Block(width) for _ in range(layers))
    return nn.Sequential(nn.Embedding(vocab, width), *blocks, nn.Linear(width, vocab))


def adapted(rank=8):
    model = plain().requires_grad_(False)
    for block in model[1:-1]:
        block.first, block.second = Adapted(block.first, rank), Adapted(block.second, rank)
    return model


def without_blocks(vocab=300, width=64):
    return nn.Sequential(nn.Embedding(vocab, width), nn.LayerNorm(width))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunSpec]]:
    file = tmp_path_factory.mktemp("mine") / "varied.py"
    file.write_text(CODE)
    path = sys.path.copy()

    def spec(factory: str, **settings: Any) -> RunSpec:
        small = {"batch": 2, "context": 16, "device": "cpu", "threads": 1}
        return resolve(parse_spec({"model": f"{file}:{factory}", **small, **settings}))

    yield spec
    sys.path[:] = path


def predict_exactly(spec: RunSpec, variant: TrainingVariant = PLAIN) -> ExactPrediction:
    return exact_prediction(canonical_spec(spec), None, variant)


def rows(prediction: ExactPrediction) -> dict[str, int]:
    return {row.name: row.bytes for row in prediction.ledger}


def test_adapters_take_what_a_model_with_its_own_takes_in_a_run(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    adapters = predict_exactly(own("plain"), TrainingVariant(lora_rank=8))
    assert adapters.trained_parameters == 4 * 2 * 8 * (64 + 4 * 64)  # none beside the head
    assert adapters.peak_bytes == predict_exactly(own("adapted")).peak_bytes
    events: list[AnyEvent] = []
    memory.measure(Job(spec=own("adapted"), name="memory", folder=str(tmp_path)), events.append)
    (*_, block) = (one.data for one in events if isinstance(one, ResultReported))
    measured = msgspec.convert(block, Memory)
    assert measured.tensor_peak_bytes == pytest.approx(adapters.peak_bytes, rel=0.01)


def test_every_rank_keeps_its_share_and_the_largest_block_comes_and_goes(
    own: Callable[..., RunSpec],
) -> None:
    spec = own("plain", optimizer="sgd", context=1, batch=1, clip=1.0)
    whole = predict_exactly(spec)
    for ranks in (2, 4):
        shard = predict_exactly(spec, TrainingVariant(shards=ranks))
        share = rows(whole)["parameters"] // ranks  # 4 divides all first dimensions
        assert rows(shard)["parameters"] == share
        optimizer = next(phase for phase in shard.phases if phase.phase == "optimizer")
        gradients = {row.name: row.bytes for row in optimizer.ledger}["gradients"]
        assert gradients == share
        block = 4 * (64 * 256 * 2 + 64 + 256 + 2 * 64)
        assert share + block < shard.peak_bytes
        assert shard.step_flops == whole.step_flops
    with pytest.raises(ModelError, match="no blocks repeat"):
        predict_exactly(own("without_blocks"), TrainingVariant(shards=2))
    assert predict_exactly(spec) == whole  # nothing of the ranks is left behind


def test_savings_name_what_is_trained_and_what_cannot_be(own: Callable[..., RunSpec]) -> None:
    found = savings_of(own("plain", optimizer="adamw-loop"), predict_exactly, predict_exactly)
    by_words = {" ".join(map(str, one.settings.values())): one for one in found.savings}
    adapters, sharded = by_words[str(RANK)], by_words["fsdp2 8"]
    assert adapters.trained_parameters == 4 * 2 * RANK * (64 + 4 * 64)
    assert adapters.saved_bytes == found.peak_bytes - adapters.peak_bytes > 0
    assert sharded.saved_bytes > by_words["fsdp2 2"].saved_bytes
    assert sharded.trained_parameters is None
    assert any("arXiv:2106.09685" in remark for remark in found.remarks)
