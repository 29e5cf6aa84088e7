"""Ways to train that no key names, in a dry run: adapters and sharding."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.errors import ModelError, WorkerFailed
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    Estimator,
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
from sysbench.core.spec.world import World
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.passes import memory_pass as memory

CODE = """
import torch
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


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Images:
    # Convolutions with one linear layer, which classifies.
    def __init__(self, width=24, adapters=0):
        blocks = [Residual(width) for _ in range(3)]
        ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 9)
        self.model = nn.Sequential(nn.Conv2d(3, width, 3, stride=2), *blocks, *ends)
        if adapters:
            self.model.requires_grad_(False)
            self.model[0] = AdaptedConvolution(self.model[0], adapters)
            for block in blocks:
                block.first = AdaptedConvolution(block.first, adapters)
                block.second = AdaptedConvolution(block.second, adapters)

    def batch(self):
        return torch.randn(4, 3, 33, 33)


class AdaptedConvolution(nn.Module):
    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Conv2d(
            frozen.in_channels, rank, 3, frozen.stride, frozen.padding, bias=False
        )
        self.up = nn.Conv2d(rank, frozen.out_channels, 1, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x)) * 2.0


def images():
    return Images()


def adapted_images():
    return Images(adapters=16)


class Table:
    # Many weights, few activations: the peak is in the optimizer.
    def __init__(self):
        self.model = nn.Sequential(nn.Embedding(5000, 32), nn.Linear(32, 900), nn.Linear(900, 7))

    def batch(self):
        return torch.randint(0, 5000, (2, 8))


class Factored(Table):
    def optimizer(self, parameters):
        return torch.optim.Adafactor(parameters, foreach=False)


def table():
    return Table()


def factored():
    return Factored()


class LossInParts(torch.autograd.Function):
    # Logits, loss and gradients of a part of the tokens after another, as fused kernels.
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, chunks):
        gradient, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total, of_bias = hidden.new_zeros(()), torch.zeros_like(bias)
        parts = hidden.chunk(chunks), targets.chunk(chunks), gradient.chunk(chunks)
        for part, goal, out in zip(*parts):
            logits = torch.addmm(bias, part, weight.t())
            logs = torch.log_softmax(logits, -1)
            del logits
            total -= logs.gather(1, goal[:, None]).sum()
            shares = logs.exp_()
            shares.scatter_add_(1, goal[:, None], -torch.ones(len(goal), 1))
            out.copy_(shares @ weight)
            of_weight.addmm_(shares.t(), part)
            of_bias += shares.sum(0)
            del shares, logs
        ctx.save_for_backward(gradient, of_weight, of_bias)
        return total

    @staticmethod
    def backward(ctx, scale):
        return *(saved * scale for saved in ctx.saved_tensors), None, None


class InParts:
    def __init__(self):
        self.model = plain(vocab=3000)
        self.targets = torch.randint(0, 3000, (4, 64))

    def batch(self):
        return torch.randint(0, 3000, (4, 64))

    def loss(self, model, batch):
        hidden = batch
        for part in model[:-1]:
            hidden = part(hidden)
        head = model[-1]
        flat = hidden.flatten(0, 1), head.weight, head.bias, self.targets.flatten()
        return LossInParts.apply(*flat, 8)


def in_parts():
    return InParts()


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
        shard = predict_exactly(spec, TrainingVariant(world=World(dp=ranks)))
        share = rows(whole)["parameters"] // ranks  # 4 divides all first dimensions
        assert rows(shard)["parameters"] == share
        optimizer = next(phase for phase in shard.phases if phase.phase == "optimizer")
        gradients = {row.name: row.bytes for row in optimizer.ledger}["gradients"]
        assert gradients == share
        block = 4 * (64 * 256 * 2 + 64 + 256 + 2 * 64)
        assert share + block < shard.peak_bytes
        assert shard.step_flops == whole.step_flops
    with pytest.raises(ModelError, match="no blocks repeat"):
        predict_exactly(own("without_blocks"), TrainingVariant(world=World(dp=2)))
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
    assert by_words["adamw-8bit"].peak_bytes < by_words["adamw-fused"].peak_bytes


def measured(spec: RunSpec, folder: Path) -> Memory:
    """The memory pass of a spec, without the library's workspace."""
    events: list[AnyEvent] = []
    memory.measure(Job(spec=spec, name="memory", folder=str(folder)), events.append)
    (*_, block) = (one.data for one in events if isinstance(one, ResultReported))
    return msgspec.convert(block, Memory)


SIZELESS = {"batch": 0, "context": 0}


def test_adafactor_takes_what_torch_s_takes_in_a_run(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    variant = TrainingVariant(optimizer="adafactor")
    predicted = predict_exactly(own("table", **SIZELESS), variant)
    found = measured(own("factored", optimizer="custom", **SIZELESS), tmp_path)
    assert predicted.peak_phase == found.peak_phase == "optimizer"
    assert found.tensor_peak_bytes == pytest.approx(predicted.peak_bytes, rel=1e-4)


def test_moments_of_a_byte_have_a_scale_for_each_block(own: Callable[..., RunSpec]) -> None:
    spec = own("table", **SIZELESS)
    eight_bits = predict_exactly(spec, TrainingVariant(optimizer="adamw-8bit"))
    large, small = (5000 * 32, 32 * 900, 900 * 7), (900, 7)
    quantized = sum(2 * (count + 4 * -(-count // 256)) for count in large)
    assert rows(eight_bits)["optimizer state"] == quantized + 2 * 4 * sum(small)
    assert "optimizer state" not in rows(
        predict_exactly(spec, TrainingVariant(optimizer="adamw-on-cpu"))
    )


def test_a_loss_in_parts_takes_what_a_fused_one_takes_in_a_run(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    whole = own("plain", batch=4, context=64, model_args='{"vocab": 3000}')
    predicted = predict_exactly(whole, TrainingVariant(loss_chunks=8))
    found = measured(own("in_parts", **SIZELESS), tmp_path)
    assert found.tensor_peak_bytes == pytest.approx(predicted.peak_bytes, rel=0.06)
    assert predicted.peak_bytes < 0.75 * predict_exactly(whole).peak_bytes


def test_adapters_of_convolutions_have_their_true_cost(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = own("images", **SIZELESS)
    found = savings_of(spec, predict_exactly, predict_exactly)
    assert not any("lora_rank" in row.settings for row in found.savings)
    (adapters,) = found.costlier
    assert adapters.trained_parameters == 16 * (3 * 9 + 24 + 6 * (24 * 9 + 24))
    of_its_own = predict_exactly(own("adapted_images", **SIZELESS))
    assert adapters.peak_bytes == of_its_own.peak_bytes > found.peak_bytes
    assert any("lora_rank=16 saves nothing: it needs " in remark for remark in found.remarks)


def test_variants_that_nobody_would_choose_are_left_out(own: Callable[..., RunSpec]) -> None:
    found = savings_of(own("images", **SIZELESS), predict_exactly, predict_exactly)
    tried = {key for row in found.savings for key in row.settings} | found.unknown.keys()
    assert "loss_chunks" not in tried  # without a vocabulary
    assert {"optimizer": "adamw-on-cpu"} not in [row.settings for row in found.savings]
    trained_by_sgd = own("plain", optimizer="sgd")
    found = savings_of(trained_by_sgd, predict_exactly, predict_exactly)
    assert not any(row.settings.get("optimizer") == "adafactor" for row in found.savings)


def test_a_refusal_names_the_place_of_a_library(
    own: Callable[..., RunSpec], estimator: Estimator
) -> None:
    with pytest.raises(WorkerFailed) as refused:
        estimator.predict(canonical_spec(own("factored", optimizer="custom", **SIZELESS)))
    words = str(refused.value)
    assert re.search(r"optim/_adafactor\.py:\d+ in _single_tensor_adafactor: .*\.item\(\)", words)
    assert "Tensor.item()" in words


def test_a_refusal_names_the_change(own: Callable[..., RunSpec]) -> None:
    found = savings_of(own("without_blocks"), predict_exactly, predict_exactly)
    words = [remark for remark in found.remarks if remark.startswith("not predicted")]
    (refusal,) = [remark for remark in words if "no blocks repeat" in remark]
    assert refusal.startswith("not predicted, parallel=fsdp2 ranks=2, parallel=fsdp2 ranks=8: ")
