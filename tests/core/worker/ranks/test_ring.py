"""Ring attention, experts and losses: real gloo ranks, against played ones and one device."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional as F

from sysbench.core.errors import ModelError
from sysbench.core.predict.dry_run_client import Estimator, TrainingVariant, canonical_spec
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.worker.ranks.layout import (
    CPU_RING,
    RING_MODULE,
    RingAttention,
    attend_in_ring,
    divide_experts,
    divided,
    divided_loss,
    make_experts_mesh,
    make_mesh,
    make_ring,
    ring_functions,
)
from sysbench.core.worker.ranks.pipeline import cut_stages, make_schedule, stage_loss
from sysbench.core.worker.ranks.tensor_plans import DISPATCH
from sysbench.core.worker.workloads.stepped_workload import clip_gradients
from tests.validation.measure_world import MODELS, measure

WORLD = World(cp=2)
RANKS = 2
MODELS_OF_RANKS = ("llama", "mixtral", "olmoe", "qwen3_moe", "glm4_moe")
PRELOADED = [f"transformers.models.{one}.modeling_{one}" for one in MODELS_OF_RANKS]


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of ranks import this module, whose functions they run."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4])


def run_ranks(run: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Run as many processes, forked from one that has imported torch, which takes seconds."""
    set_forkserver_preload([__name__, *PRELOADED])
    start_processes(run, arguments, count, start_method="forkserver")


def test_memory_of_real_ranks_is_that_of_played_ones(tmp_path: Path, estimator: Estimator) -> None:
    spec = canonical_spec(RunSpec(model="", device="cpu", **MODELS["fused"] | {"layers": 2}))
    run_ranks(measure, (str(tmp_path), spec, WORLD), RANKS)
    for rank in range(RANKS):
        (peak,) = {*map(int, (tmp_path / f"{rank}.peaks").read_text().split())}
        played = estimator.predict(spec, variant=TrainingVariant(world=WORLD, rank=rank))
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
    send_to_experts(rank)
    divide_llama()
    cut_llama(rank)
    turn_llama(rank, group)
    dist.barrier()
    dist.destroy_process_group()


class Mixture(nn.Module):
    """Two of four experts for each token."""

    ep_plan: ClassVar = {"": DISPATCH}

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8, 8, generator=torch.manual_seed(0)))

    def forward(self, tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        results = torch.einsum("td,tkdf->tkf", tokens, self.weight[index])
        return (results * weights.unsqueeze(-1)).sum(1)


def send_to_experts(rank: int) -> None:
    """Compare with a mixture that sees the tokens of both ranks."""
    whole, divided = Mixture(), Mixture()
    tokens, weights = (torch.randn(10, size, requires_grad=True) for size in (8, 2))
    index = torch.rand(10, 4).topk(2).indices
    expected = whole(tokens, index, weights)
    expected.square().sum().backward()
    mine = slice(5 * rank, 5 * rank + 5)
    mesh = make_experts_mesh(World(dp=RANKS, ep=RANKS))
    assert mesh is not None
    divide_experts(divided, mesh, None)
    local = [one.detach()[mine].requires_grad_() for one in (tokens, weights)]
    found = divided(local[0], index[mine], local[1])
    found.square().sum().backward()
    torch.testing.assert_close(found, expected[mine])
    for one, other in zip((*local, divided.weight), (tokens, weights, whole.weight), strict=True):
        assert one.grad is not None and other.grad is not None
        gradient = getattr(one.grad, "_local_tensor", one.grad)
        part = slice(2 * rank, 2 * rank + 2) if one is divided.weight else mine
        torch.testing.assert_close(gradient, other.grad[part])


def two_llamas() -> list[Any]:
    """Equal decoders, of which the second is divided."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    settings = {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    torch.manual_seed(0)
    both = [
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)) for _ in range(RANKS)
    ]
    both[1].load_state_dict(both[0].state_dict())
    return both


IDS = torch.arange(2 * 16).view(2, 16)


def divide_llama() -> None:
    """Compare a decoder whose residuals and logits are divided with one that is whole."""
    world = World(tp=RANKS, loss_parallel=True)
    whole, parts = two_llamas()
    divided(parts, world, make_mesh(world))
    losses = []
    for model in (whole, parts):
        with divided_loss(world if model is parts else World()):
            logits = model(IDS).logits
            loss = F.cross_entropy(logits.flatten(0, 1), IDS.flatten())
            loss.backward()
        losses.append(loss)
    local = losses[1].to_local()  # type: ignore[attr-defined]
    torch.testing.assert_close(local, losses[0])
    assert logits.to_local().shape == (2, 16, 32)
    gradients = {name: one.grad for name, one in whole.named_parameters()}
    for name, one in parts.named_parameters():
        torch.testing.assert_close(one.grad.full_tensor(), gradients[name])


def cut_llama(rank: int) -> None:
    """Compare gradients of a decoder's stages, in two micro-batches, with those of the whole."""
    world = World(pp=RANKS, microbatches=RANKS)
    whole, parts = two_llamas()
    ((index, part),) = cut_stages(parts, world, rank).items()
    stage = PipelineStage(
        part, index, RANKS, torch.device("cpu"), group=make_mesh(world)["pp"].get_group()
    )
    schedule = make_schedule(
        [stage], world, lambda output, targets: stage_loss(whole, output, targets, 0)
    )
    schedule.step(
        *([IDS] if stage.is_first else []),
        target=IDS if stage.is_last else None,
        return_outputs=False,
    )
    whole(input_ids=IDS, labels=IDS).loss.backward()
    gradients = {name: one.grad for name, one in whole.named_parameters()}
    found = dict(part.named_parameters())
    assert len(found) == (9 * 2 + 1 if rank == 0 else 9 + 2)
    for name, one in found.items():
        torch.testing.assert_close(one.grad, gradients[name])


def turn_llama(rank: int, group: ProcessGroup) -> None:
    """Compare logits of a decoder that attends to the tokens of both ranks."""
    whole, parts = two_llamas()
    attend_in_ring(parts, group, on_cuda=False)
    places = torch.arange(16).chunk(4)
    own = torch.cat((places[rank], places[3 - rank]))
    logits = parts(IDS[:, own], position_ids=own[None]).logits
    torch.testing.assert_close(logits, whole(IDS).logits[:, own], rtol=1e-4, atol=1e-4)


def compute(rank: int, place: str) -> None:
    """Compare what two ranks compute, then four: processes take longer to start than to compare."""
    if rank < RANKS:
        attend(rank, place)
    mix(rank, place)


def two_mixtures(name: str) -> list[Any]:
    """Equal mixtures, of which the second is divided."""
    transformers = pytest.importorskip("transformers")
    kind, settings = MIXTURES[name]
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2}
    config = getattr(transformers, f"{kind}Config")(**sizes | heads | settings, use_cache=False)
    torch.manual_seed(0)
    both = [getattr(transformers, f"{kind}ForCausalLM")(config) for _ in range(2)]
    both[1].load_state_dict(both[0].state_dict())
    return both


def loss_of_logits(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


MIXTURES = {
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_key_value_heads": 4}),
    # Its first layer has no experts, and heads have norms of their own.
    "qwen3": ("Qwen3Moe", {"num_experts": 4, "decoder_sparse_step": 2, "head_dim": 8}),
    # So has this one; in the second all tokens share an expert, too.
    "glm": (
        "Glm4Moe",
        {
            **{"n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 16},
            **{"first_k_dense_replace": 1, "head_dim": 8, "pad_token_id": 0},
        },
    ),
}
DIVIDED_MIXTURES = [
    ("mixtral", "dp=2,tp=2,ep=4"),
    ("mixtral", "dp=2,tp=2"),
    ("olmoe", "tp=4,ep=2"),
    ("qwen3", "tp=4,sequence=false"),
    ("qwen3", "dp=2,tp=2,ep=2,sequence=false"),
    ("qwen3", "cp=2,tp=2,ep=4"),
    ("mixtral", "pp=2,dp=2,ep=2,microbatches=2"),
    ("olmoe", "pp=2,tp=2,ep=2,microbatches=2"),
    ("glm", "tp=4,sequence=false"),
    ("glm", "pp=2,tp=2,ep=2,microbatches=2"),
]


def mix(rank: int, place: str) -> None:
    """Compare losses, gradients and clipped gradients of mixtures with those of one device."""
    dist.init_process_group("gloo", init_method=f"file://{place}/all", rank=rank, world_size=4)
    for name, text in DIVIDED_MIXTURES:
        compare_mixture(rank, name, World.parse(text))
    dist.barrier()
    dist.destroy_process_group()


def compare_mixture(rank: int, name: str, world: World) -> None:
    whole, parts = two_mixtures(name)
    ids = torch.randint(64, (4, 16), generator=torch.manual_seed(1))
    expected = loss_of_logits(whole(ids).logits, ids)
    expected.backward()
    mesh, experts, ring = make_mesh(world), make_experts_mesh(world), make_ring(world)
    at = world.coordinates(rank)
    if ring is not None:
        attend_in_ring(parts, ring, on_cuda=False)
    places = torch.arange(16).chunk(2 * world.cp)
    own = torch.cat([places[at["cp"]], places[-1 - at["cp"]]])
    mine = ids.chunk(world.dp)[at["dp"]][:, own]
    if world.pp == 1:
        divided_for_gloo(parts, world, mesh, experts)
        loss = loss_of_logits(parts(mine, position_ids=own[None]).logits, mine)
        loss.backward()
        losses = [torch.empty(()) for _ in range(4)]
        dist.all_gather(losses, loss.detach())
        torch.testing.assert_close(torch.stack(losses).mean(), expected.detach())
    else:
        ((index, part),) = cut_stages(parts, world, at["pp"]).items()
        parts = divided_for_gloo(part, world, mesh, experts)
        group = mesh["pp"].get_group()
        stage = PipelineStage(parts, index, world.pp, torch.device("cpu"), group=group)
        schedule = make_schedule([stage], world, loss_of_logits)
        schedule.step(
            *([mine] if stage.is_first else []),
            target=mine if stage.is_last else None,
            return_outputs=False,
        )
    gradients = {key: one.grad for key, one in whole.named_parameters()}
    assert_gradients(parts, gradients)
    if world.pp == 1:
        clip_gradients(parts.parameters(), 0.1)
        nn.utils.clip_grad_norm_(whole.parameters(), 0.1)
        assert_gradients(parts, gradients)


def divided_for_gloo(parts: nn.Module, world: World, mesh: Any, experts: Any) -> nn.Module:
    """The model of this rank; gloo divides experts' gradients apart from their sum."""
    parts = divided(parts, world, mesh, experts=experts)
    for one in parts.modules():
        if isinstance(one, FSDPModule) and experts is not None and experts["dp"].size() > 1:
            one.set_force_sum_reduction_for_comms(True)
    return parts


def assert_gradients(parts: nn.Module, gradients: dict[str, Any]) -> None:
    for key, one in parts.named_parameters():
        torch.testing.assert_close(one.grad.full_tensor(), gradients[key])  # type: ignore[union-attr]


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 32, 16, requires_grad=True) for _ in range(3)]


def test_results_and_gradients_are_those_of_one_device(tmp_path: Path) -> None:
    run_ranks(compute, (str(tmp_path),), 4)
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
