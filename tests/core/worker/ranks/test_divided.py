"""Predicted memory of single ranks: what their divisions add up to."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import WorkerFailed
from sysbench.core.predict.dry_run_client import (
    Estimator,
    ExactPrediction,
    TrainingVariant,
    canonical_spec,
)
from sysbench.core.predict.requests import Requests, replay_requests, without_returned
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.core.worker.dry_run import exact as exact_steps
from sysbench.core.worker.dry_run.dry_step import dry_run
from sysbench.core.worker.dry_run.exact import dry_run_at_depth
from tests.validation.measure_world import spec_of

SIZE = {"vocab": 256, "d_model": 64, "d_ff": 128, "heads": 4, "layers": 4}
PARAMETERS = 2 * 256 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


@pytest.fixture
def exact(estimator: Estimator) -> Estimator:
    return estimator


def played(exact: Estimator, text: str, rank: int = 0, **changes: Any) -> ExactPrediction:
    settings = {"model": "", "device": "cpu", "batch": 4, "context": 32, **SIZE, **changes}
    variant = TrainingVariant(world=World.parse(text), rank=rank)
    return exact.predict(canonical_spec(RunSpec(**settings)), variant=variant)


def rows(prediction: ExactPrediction, phase: str = "optimizer") -> dict[str, int]:
    (found,) = (one for one in prediction.phases if one.phase == phase)
    return {row.name: row.bytes for row in found.ledger}


def test_layers_are_divided_and_norms_are_not(exact: Estimator) -> None:
    norms = 4 * 2 * 64 + 64
    alone = 4 * ((PARAMETERS - norms) // 2 + norms)
    assert rows(played(exact, "tp=2"))["parameters"] == alone
    assert rows(played(exact, "dp=2,tp=2"))["parameters"] == alone // 2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw-loop"])
def test_a_loop_over_divided_tables_takes_their_gradients(exact: Estimator, optimizer: str) -> None:
    # Each rank's gradient is of the whole table, whose rows are divided.
    found = rows(played(exact, "tp=2", optimizer=optimizer))
    assert found["gradients"] - found["parameters"] == 4 * 64 * 256 // 2


def test_a_divided_loss_keeps_logits_by_words(exact: Estimator, tmp_path: Path) -> None:
    llama = spec_of("llama", tmp_path)
    kept = {}
    for text in ("tp=2", "tp=2,loss_parallel=true", "tp=2,sequence=false"):
        found = exact.predict(llama, variant=TrainingVariant(world=World.parse(text)))
        kept[text] = rows(found, "backward")["activations"]
    # The loss keeps its input's log-softmax, in float32.
    saved = kept["tp=2"] - kept["tp=2,loss_parallel=true"]
    assert saved == pytest.approx(4 * 4 * 128 * 1024 / 2, rel=0.01)
    # Each layer saves its input, that of its second norm, and what each norm saves of it.
    hidden = 4 * 4 * 128 * 256
    assert kept["tp=2,sequence=false"] - kept["tp=2"] > 4 * 4 * hidden / 2


def test_buckets_hold_each_gradient_once_more(exact: Estimator) -> None:
    found = rows(played(exact, "dp=4,data=ddp"))
    assert found["communication buffers"] == found["gradients"] == 4 * PARAMETERS


def test_stages_hold_what_their_schedule_keeps(exact: Estimator) -> None:
    first, last = (played(exact, "pp=2,microbatches=4", rank) for rank in range(2))
    held = [rows(one)["parameters"] for one in (first, last)]
    assert sum(held) == 4 * PARAMETERS
    assert held[1] - held[0] == 4 * 64  # the last norm
    received = 4 * 4 * 32 * 64  # float32 of all micro-batches
    assert rows(first)["communication buffers"] == received
    # Two micro-batches before the first backward; then all four.
    in_flight = rows(first, "backward")["activations"]
    all_first = played(exact, "pp=2,microbatches=4,schedule=gpipe")
    assert rows(all_first, "backward")["activations"] > 1.5 * in_flight
    assert first.peak_bytes < all_first.peak_bytes


def test_parameters_are_gathered_as_asked(exact: Estimator) -> None:
    gathered, reduced = {}, set()
    for text in ("", ",params=bf16,reduce=fp32", ",reshard=false"):
        sent = {row.kind: row.bytes for row in played(exact, f"dp=2{text}").sent}
        gathered[text] = sent["all-gather"]
        reduced.add(sent["reduce-scatter"])
    assert reduced == {4 * PARAMETERS // 2}
    assert gathered[",params=bf16,reduce=fp32"] * 2 == gathered[""]
    assert gathered[",reshard=false"] == 4 * PARAMETERS // 2 < gathered[""]


def test_selective_recomputation_keeps_more_than_whole(exact: Estimator) -> None:
    none, selective, whole = (
        played(exact, text, checkpoint=count).saved_activation_bytes
        for text, count in (("dp=2", 0), ("dp=2,selective=true", 1), ("dp=2", 1))
    )
    assert none > selective > whole


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
def test_a_rank_has_several_stages(exact: Estimator, schedule: str) -> None:
    text = f"pp=2,microbatches=4,stages=2,schedule={schedule}"
    ranks = [played(exact, text, rank) for rank in range(2)]
    assert sum(rows(one)["parameters"] for one in ranks) == 4 * PARAMETERS
    for one in ranks:
        assert rows(one)["gradients"] == rows(one)["parameters"]
    hidden = 4 * 32 * 64 * 4  # float32 of all micro-batches
    # Three of four stages send outputs, and three gradients; half of them on each rank.
    assert [{row.kind: (row.calls, row.bytes) for row in one.sent} for one in ranks] == [
        {"send": (12, 3 * hidden)},
        {"send": (12, 3 * hidden)},
    ]


def test_bytes_sent_are_those_of_a_ring(exact: Estimator) -> None:
    (sent,) = played(exact, "dp=4,data=ddp").sent
    assert (sent.kind, sent.calls, sent.bytes) == ("all-reduce", 1, 2 * 4 * PARAMETERS * 3 // 4)
    sent_by = {row.kind: row for row in played(exact, "dp=4").sent}
    assert sent_by["reduce-scatter"].bytes == 4 * PARAMETERS * 3 // 4


def test_experts_get_their_part_of_all_tokens(exact: Estimator, tmp_path: Path) -> None:
    spec = spec_of("mixture", tmp_path, num_hidden_layers=2)
    ranks = []
    for rank in range(2):
        variant = TrainingVariant(world=World.parse("dp=2,ep=2,skew=1.5"), rank=rank)
        found = exact.predict(spec, variant=variant)
        sent = {row.kind: row for row in found.sent}["all-to-all"]
        # Of 1024 pairs of a token and an expert rank 0 keeps 768, and gets as many of rank 1; their
        # vectors go there and back in forward and in backward, with a weight; 4 counts are sent.
        assert (sent.calls, sent.bytes) == (14, 2 * 4 * (1024 * (2 * 256 + 1) + 4))
        assert rows(found)["parameters"] == 2 * found.parameters
        ranks.append(found)
    received = 4 * (2 * 768 * (256 + 1) + 1024 * 256)
    assert rows(ranks[0], "forward")["received tokens"] == received
    assert ranks[0].peak_bytes > ranks[1].peak_bytes


def test_experts_are_divided_over_all_ranks_that_see_other_tokens(
    exact: Estimator, tmp_path: Path
) -> None:
    spec = spec_of("mixture", tmp_path, num_hidden_layers=2)
    experts = 2 * 8 * 3 * 256 * 352
    whole = 2 * (2 * 256 + 8 * 256) + 256  # norms and routers
    tensors = 2 * 1024 * 256 + 2 * (2 * 256 * 256 + 2 * 128 * 256)
    pairs = 2 * 4 * 128
    for text, dp, tp, ep in (
        ("dp=2,tp=2,ep=4", 2, 2, 4),
        ("tp=2,ep=2,sequence=false", 1, 2, 2),
        ("dp=2,tp=2", 2, 2, 1),  # each rank has a part of each expert, and sends no tokens
    ):
        found = exact.predict(spec, variant=TrainingVariant(world=World.parse(text)))
        assert rows(found)["parameters"] == 4 * (
            experts // (dp * tp) + (whole + tensors // tp) // dp
        )
        sent = {row.kind: row.bytes for row in found.sent}
        # A layer sends its 8 counts once, and in forward and backward of each pair that goes to
        # another rank the token, its result and its weight.
        others = pairs // tp * (ep - 1) // ep
        numbers = 2 * (8 * (ep - 1) // ep + 2 * others * (2 * 256 + 1))
        assert sent.get("all-to-all", 0) == 4 * numbers


def test_a_deep_model_is_extended_from_shallow_ones(exact: Estimator) -> None:
    deep = played(exact, "dp=2", layers=14)
    assert deep.method.endswith("3 and 4 blocks extended to 14")
    thirteen, fifteen = (played(exact, "dp=2", layers=layers) for layers in (13, 15))
    assert thirteen.peak_bytes + fifteen.peak_bytes == 2 * deep.peak_bytes


@pytest.mark.parametrize("text", ["dp=2", "dp=2,data=ddp", "dp=2,tp=2"])
def test_the_requests_of_a_deep_model_are_those_of_the_whole(text: str) -> None:
    deep = RunSpec(device="cuda:0", batch=4, context=32).changed(**SIZE | {"layers": 13})
    spec = canonical_spec(deep)
    variant = TrainingVariant(world=World.parse(text))
    extended, method = dry_run_at_depth(spec, "9.0", variant)
    assert method
    requests, whole = (
        run.trace.requests() for run in (extended, dry_run(spec, "9.0", variant)) if run.trace
    )
    assert requests.streams == whole.streams and bool(whole.streams) == ("ddp" not in text)
    assert_same_requests(requests, whole)


def assert_same_requests(requests: Requests, whole: Requests) -> None:
    for name in ("build", "state", "step"):
        assert in_order(getattr(requests, name)) == in_order(getattr(whole, name))
    first, second = (replay_requests(without_returned(one), 0) for one in (requests, whole))
    assert first == second


def in_order(entries: list[int]) -> list[list[int]]:
    """Requests as they came, and returns in a row, which have no order."""
    runs = groupby(entries, key=lambda entry: entry < 0)
    return [sorted(run) if is_return else [*run] for is_return, run in runs]


@pytest.mark.parametrize(
    ("schedule", "kept"), [("1f1b", 1), ("gpipe", 4), ("interleaved,stages=2", 12)]
)
def test_what_was_sent_stays_as_long_as_its_transfer(
    exact: Estimator, schedule: str, kept: int
) -> None:
    text = f"pp=2,microbatches=4,schedule={schedule}"
    for rank in range(2):
        requests = played(exact, text, rank, device="cuda:0").requests
        assert requests is not None
        resident = [entry for entry in requests.build + requests.state if entry > 0]
        end = max(index for name, index in requests.marks if name == "backward")
        sizes = dict(enumerate(entry for entry in requests.step[:end] if entry > 0))
        for entry in requests.step[:end]:
            if entry < 0:
                sizes.pop(~entry - len(resident), None)
        assert [*sizes.values()].count(4 * 32 * 64) == kept  # of one micro-batch, in float32


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Let nothing be freed at a time of chance, as the process of exact mode does."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def less_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend steps that are played whole otherwise, since the whole one is played, too."""
    monkeypatch.setattr(exact_steps, "MAX_WHOLE", 6)
    monkeypatch.setattr(exact_steps, "MAX_WHOLE_LAYERS", 6)


@pytest.mark.usefixtures("without_collections", "less_whole")
@pytest.mark.parametrize(
    ("text", "rank", "layers", "how"),
    [
        ("pp=4,microbatches=16", 0, 4, "6 micro-batches to 16"),
        ("pp=4,microbatches=16", 3, 4, "4 micro-batches to 16"),
        ("pp=2,dp=2,reduce=fp32,microbatches=7", 0, 14, "extended to 7, 5 micro-batches to 7"),
    ],
)
def test_a_step_of_many_microbatches_is_that_of_all_of_them(
    text: str, rank: int, layers: int, how: str
) -> None:
    world = World.parse(text)
    plain = RunSpec(device="cuda:0", batch=world.microbatches, context=32, attention="sdpa")
    spec = plain.changed(**SIZE | {"layers": layers, "checkpoint": 1, "precision": "bf16-pure"})
    assert_extended(spec, TrainingVariant(world=world, rank=rank), how)


@pytest.mark.usefixtures("without_collections", "less_whole")
@pytest.mark.parametrize(
    ("text", "rank", "how"),
    [
        ("pp=2,dp=2,tp=2,reduce=fp32,microbatches=3", 0, "extended to 7"),
        ("pp=2,tp=2,microbatches=7", 2, "extended to 7, 4 micro-batches to 7"),
    ],
)
def test_a_deep_llama_in_stages_is_that_of_the_whole(
    text: str, rank: int, how: str, tmp_path: Path
) -> None:
    world = World.parse(text)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 14}
    plain = {"device": "cuda:0", "batch": world.microbatches, "context": 32, "checkpoint": 1}
    spec = spec_of("llama-fused", tmp_path, **sizes).changed(**plain, precision="bf16-pure")
    assert_extended(spec, TrainingVariant(world=world, rank=rank), how)


def assert_extended(spec: RunSpec, variant: TrainingVariant, how: str) -> None:
    """Compare the extended step of a rank with the whole one."""
    (short, method), whole = dry_run_at_depth(spec, "9.0", variant), dry_run(spec, "9.0", variant)
    assert method.endswith(how)
    assert short.trace and whole.trace
    requests, all_of_them = short.trace.requests(), whole.trace.requests()
    assert requests.streams == all_of_them.streams
    assert_same_requests(requests, all_of_them)
    assert max(sum(one.requested) for one in short.moments) == (
        max(sum(one.requested) for one in whole.moments)
    )
    for name in ("parameters", "saved_bytes", "products", "moved_bytes", "calls", "sent"):
        assert getattr(short, name) == getattr(whole, name)


@pytest.mark.parametrize("model", ["llama", "mixture"])
def test_a_llama_is_cut_between_its_layers(model: str, exact: Estimator, tmp_path: Path) -> None:
    spec = spec_of(model, tmp_path)
    world = World.parse("pp=2,microbatches=4")
    first, last = (
        exact.predict(spec, variant=TrainingVariant(world=world, rank=rank)) for rank in range(2)
    )
    whole = exact.predict(spec)
    assert first.parameters == last.parameters == whole.parameters
    held = [rows(one)["parameters"] for one in (first, last)]
    assert sum(held) == whole.parameter_bytes and held[1] - held[0] == 4 * 256  # the last norm
    assert last.forward_flops + first.forward_flops == whole.forward_flops
    places = {phase.place for phase in last.phases}
    assert any(place.startswith("model.layers.2") for place in places), places
    assert not any("layers.1" in place for place in places), places


def test_a_pipeline_refuses_what_it_cannot_cut(exact: Estimator, tmp_path: Path) -> None:
    zero_bubble = World.parse("pp=2,microbatches=2,schedule=zero-bubble,stages=2")
    with pytest.raises(WorkerFailed, match="interleaved or 1f1b with models of transformers"):
        exact.predict(spec_of("llama", tmp_path), variant=TrainingVariant(world=zero_bubble))
    for name, changes, why in (
        ("llama", {"tie_word_embeddings": True}, "tie_word_embeddings=false"),
        ("llama", {"num_hidden_layers": 1}, "at most the model's 1 layer"),
        ("factory", {}, "built-in models, and those of transformers like Llama"),
    ):
        variant = TrainingVariant(world=World.parse("pp=2,microbatches=2"))
        with pytest.raises(WorkerFailed, match=why):
            exact.predict(spec_of(name, tmp_path, **changes), variant=variant)


SHARED = {
    **{"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8},
    **{"moe_intermediate_size": 352, "shared_expert_intermediate_size": 352},
}


@pytest.mark.parametrize(
    ("text", "changes", "why"),
    [
        (
            "tp=2",
            {"intermediate_size": 351},
            "a divisor of .*experts.gate_up_proj's 351, or use ep",
        ),
        ("tp=2", SHARED, "world.tp = 2: 1 without ep, since .*shared_expert.gate_proj .* not in"),
        ("tp=2,ep=2", {"output_router_logits": True}, "set output_router_logits=false"),
        ("pp=2,microbatches=2", {"output_router_logits": True}, "set output_router_logits=false"),
        ("tp=4,ep=2", {}, "world.tp = 4: a divisor of num_key_value_heads=2"),
    ],
)
def test_a_mixture_that_cannot_be_divided_is_refused_with_a_remedy(
    text: str, changes: dict[str, Any], why: str, exact: Estimator, tmp_path: Path
) -> None:
    with pytest.raises(WorkerFailed, match=why):
        exact.predict(
            spec_of("mixture", tmp_path, **changes),
            variant=TrainingVariant(world=World.parse(text)),
        )


DEEPSEEK = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}


def test_a_ring_refuses_what_it_cannot_turn(exact: Estimator, tmp_path: Path) -> None:
    windows = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    for name, changes, why in (
        ("llama-fused", {**windows, "sliding_window": 64}, "sliding windows"),
        ("mixture-fused", DEEPSEEK, "values of another width than keys"),
        ("factory", {}, "layers are not Llama's"),
    ):
        spec = spec_of(name, tmp_path, **changes)
        with pytest.raises(WorkerFailed, match=why):
            exact.predict(spec, variant=TrainingVariant(world=World.parse("cp=2")))


def test_a_factory_divides_its_model(exact: Estimator, tmp_path: Path) -> None:
    spec = spec_of("factory", tmp_path)
    whole = exact.predict(spec)

    def parameters(text: str) -> int:
        found = exact.predict(spec, variant=TrainingVariant(world=World.parse(text)))
        return rows(found)["parameters"]

    assert parameters("dp=4") == pytest.approx(whole.parameter_bytes / 4, rel=0.01)
    blocks = 4 * 4 * 2 * 512 * 2048
    halved = whole.parameter_bytes - blocks / 2
    assert parameters("dp=2,tp=2") == pytest.approx(halved / 2, rel=0.01)
    for text, why in (
        ("tp=2,loss_parallel=true", "world.loss_parallel: leave it out"),
        ("dp=2,params=bf16", "world.params: leave it out"),
    ):
        with pytest.raises(WorkerFailed, match=why):
            exact.predict(spec, variant=TrainingVariant(world=World.parse(text)))
