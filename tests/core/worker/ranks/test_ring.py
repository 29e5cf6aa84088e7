"""Ring attention: real ranks that meet by gloo, against the played ones and against one device."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from sysbench.core.errors import ModelError
from sysbench.core.predict.dry_run_client import Estimator, TrainingVariant, canonical_spec
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.worker.ranks.layout import (
    CPU_RING,
    RING_MODULE,
    RingAttention,
    ring_functions,
)
from tests.validation.measure_world import MODELS, measure

WORLD = World(cp=2)
RANKS = 2


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of ranks import this module, whose functions they run."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4])


def test_memory_of_real_ranks_is_that_of_played_ones(tmp_path: Path) -> None:
    spec = canonical_spec(RunSpec(model="", device="cpu", **MODELS["fused"] | {"layers": 2}))
    spawn(measure, (str(tmp_path), spec, WORLD), RANKS)
    with Estimator() as exact:
        for rank in range(RANKS):
            (peak,) = {*map(int, (tmp_path / f"{rank}.peaks").read_text().split())}
            played = exact.predict(spec, variant=TrainingVariant(world=WORLD, rank=rank))
            assert played.peak_bytes == pytest.approx(peak, rel=1e-3)
            sent = {row.kind: row for row in played.sent}
            # Of keys and values: once in forward and in backward, and their gradients twice.
            layers, local = spec.layers, 4 * spec.batch * spec.context * spec.d_model
            assert sent["all-to-all"].calls == 2 * layers
            assert sent["all-to-all"].bytes == 2 * layers * local
            assert sent["all-gather"].bytes >= 2 * layers * local


def attend(rank: int, place: str) -> None:
    """Leave this rank's result and gradients in the folder; its tokens are head and tail."""
    dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    parts = [part for tensor in operands() for part in [tensor.detach().chunk(4, dim=2)]]
    local = [torch.cat((part[rank], part[3 - rank]), dim=2).requires_grad_() for part in parts]
    mixed = RingAttention.apply(*local, group, CPU_RING)
    mixed.square().sum().backward()
    torch.save([mixed.detach(), *(tensor.grad for tensor in local)], f"{place}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 32, 16, requires_grad=True) for _ in range(3)]


def test_results_and_gradients_are_those_of_one_device(tmp_path: Path) -> None:
    spawn(attend, (str(tmp_path),), RANKS)
    q, k, v = operands()
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed.square().sum().backward()
    for rank in range(RANKS):
        for found, whole in zip(
            torch.load(tmp_path / f"{rank}.pt"), (mixed, q.grad, k.grad, v.grad), strict=True
        ):
            assert whole is not None
            parts = whole.chunk(4, dim=2)
            expected = torch.cat((parts[rank], parts[3 - rank]), dim=2)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_another_torch_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RING_MODULE, None)
    with pytest.raises(
        ModelError, match=f"cp needs .* torch 2.13 .* {torch.__version__.split('+')[0]}"
    ):
        ring_functions()
