"""`estimate --world` and `--plan`: ranks of a cluster, its layouts, and models that refuse them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.predict.closed_form import predict
from sysbench.core.predict.dry_run_client import Estimator, TrainingVariant
from sysbench.core.predict.layout_plan import PlayedRanks, least_bytes, play_ranks
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World
from sysbench.tui.cli import main

# Past predictions stay out of what is printed.
pytestmark = pytest.mark.usefixtures("one_process", "sysbench_home")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["estimate", *words, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


pytestmark = pytest.mark.usefixtures("one_process")


def test_each_stage_of_a_world_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "tiny", "--card", "h100", "--world", "pp=2,tp=2,microbatches=2"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["rank"] for one in document["ranks"]] == [0, 2]
    assert document["world"]["tp"] == 2 and document["world"]["ep"] == 1
    by_rank = {one["rank"]: one for one in document["ranks"]}
    worst = by_rank[document["worst_rank"]]
    assert (
        worst["peak_bytes"]
        == document["peak_bytes"]
        == max(one["peak_bytes"] for one in document["ranks"])
    )
    for one in document["ranks"]:
        assert sum(row["bytes"] for row in one["ledger"]) == one["peak_bytes"]
        assert one["coordinates"]["pp"] == one["rank"] // 2 and one["alike"] == 2
        assert one["peak_bytes"] <= one["allocated_bytes"] < one["reserved_bytes"]
    assert worst["reserved_bytes"] == document["reserved_bytes"]
    assert "reserved_bytes" not in document["missing"]
    assert document["fits"] is True


def test_a_plan_has_each_layout_with_its_fullest_rank(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "tiny", "context=126", "--capacity", "100MiB", "device=cuda"]
    assert main([*words, "--plan", "6", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    layouts = {layout["world"]: layout for layout in document["layouts"]}
    assert layouts.keys() == {
        *("dp=6", "dp=6,data=ddp", "dp=3,tp=2"),
        *("dp=3,pp=2,microbatches=2", "dp=3,pp=2,data=ddp,microbatches=2"),
    }
    assert document["refused"] == {
        "world.tp: a divisor of heads=4": 3,
        "world.microbatches: a divisor of batch=4": 4,
    }
    assert_by_headroom(document["layouts"])
    assert main([*words, "--world", "dp=3,tp=2", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    names = ("peak_bytes", "peak_phase", "reserved_bytes")
    assert [layouts["dp=3,tp=2"][name] for name in names] == [alone[name] for name in names]
    assert layouts["dp=3,tp=2"]["sent"] == alone["sent"]
    assert (layouts["dp=3,tp=2"]["verdict"] == "fits") is alone["fits"]


def assert_by_headroom(layouts: list[dict[str, Any]]) -> None:
    order = [
        (["fits", "close", "over"].index(one["verdict"]), -one["headroom_bytes"]) for one in layouts
    ]
    assert order == sorted(order)


def test_a_layout_that_fits_in_released_cache_is_before_those_that_do_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["estimate", "tiny", "context=126", "device=cuda", "--plan", "6"]
    assert main([*words, "memory_limit=1GiB", "--json"]) == 0
    layouts = json.loads(capsys.readouterr().out)["layouts"]
    limit = min(layout["reserved_bytes"] for layout in layouts) - 2 * 2**20
    assert main([*words, f"memory_limit={limit}", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first = document["layouts"][0]
    assert first["verdict"] == "fits" and first["headroom_bytes"] < 0
    assert_by_headroom(document["layouts"])
    assert main([*words, f"memory_limit={limit}"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"For {first['world'].removesuffix(',microbatches=2')} the allocator releases" in text


def test_a_plan_of_which_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "tiny", "--capacity", "80MiB", "device=cuda", "--plan", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No layout is sure to fit in 80.0 MiB: " in text
    assert "a layout with less dp has fewer samples" in text


def test_a_sharded_rank_has_reserved_memory_and_unknown_buffers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["estimate", "tiny", "--card", "h100", "--world", "dp=2", "--rank", "1"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (rank,) = document["ranks"]
    assert rank["peak_bytes"] < rank["allocated_bytes"] < rank["reserved_bytes"]
    assert rank["reserved_bytes"] == document["reserved_bytes"]
    assert "reserved_bytes" not in document["missing"]
    assert document["missing"]["ledger.NCCL's buffers"].startswith("unknown")
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "beside NCCL's buffers" in text and "NCCL's buffers – –" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--world", "tp=3"], "world.tp = 3: a divisor of heads=4"),
        (["--world", "dp=2,ep=2"], "world.ep = 2: 1 with this model, which has no experts"),
        (["--world", "cp=2"], "world.cp = 2: 1 with attention=naive: torch has a ring of"),
        (["--world", "dp=4", "--rank", "4"], "--rank = 4: 0 to 3"),
        (["--rank", "4"], "--rank = 4: only with --world"),
        (["--world", "pp=2,microbatches=2", "batch=3"], "world.microbatches = 2: a divisor of"),
        (["--world", "pp=4,schedule=gpipe"], "world.pp = 4: at most the model's 2 layers"),
        (["--world", "dp=4", "--table", "batch=1,2"], "--world = 'dp=4': not with"),
        (["--world", "dp=4", "--fit", "layers"], "--fit = 'layers': batch, context"),
        (["--world", "dp=4", "--fit", "microbatches"], "world.pp = 1: 2 or more"),
        (["--world", "tp=3", "--fit", "batch"], "world.tp = 3: a divisor of heads=4"),
        (["--world", "dp=4", "--fit", "batch", "--rank", "0"], "--rank = 0: not with"),
        (
            ["--world", "schedule=any"],
            "--world = 'schedule=any': schedule is one of gpipe, 1f1b, interleaved, zero-bubble",
        ),
        (["--world", "params=fp8"], "--world = 'params=fp8': params is one of fp32, bf16, fp16"),
        (["--world", "dp=x"], "--world = 'dp=x': dp is a whole number"),
        (["--world", "reshard=2"], "--world = 'reshard=2': reshard is true or false"),
        (["--fit", "microbatches"], "--fit = 'microbatches': only with --world"),
        (["--world", "dp=2,selective=true"], "world.selective = True: needs checkpoint=N"),
        (["--world", "dp=2,loss_parallel=true"], "world.loss_parallel = True: needs tp"),
        (["--plan", "8", "--world", "dp=3"], "--world = 'dp=3': settings of a layout of 8"),
        (["--plan", "8", "--world", "tp=two"], "--world = 'tp=two'"),
        (["step=decode", "--world", "tp=2"], "step = 'decode': train or inference, with tp or pp"),
        (
            ["step=prefill", "--world", "tp=2"],
            "step = 'prefill': train or inference, with tp or pp",
        ),
        (["--plan", "1"], "--plan = 1: 2 to 65,536 devices"),
    ],
)
def test_a_world_that_cannot_be_is_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", "tiny", "--card", "h100", *options]) == 2
    assert words in capsys.readouterr().err


MODEL = """
from types import SimpleNamespace

import torch
from torch import nn

def batch(batch, context, device):
    return torch.zeros(batch, context, dtype=torch.long, device=device)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16)) for _ in range(2)])

    def forward(self, ids):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.checked(hidden)

    def checked(self, hidden):
        return hidden

class Reading(Model):
    def checked(self, hidden):
        return hidden if hidden.sum() > 0 else -hidden

class Planned(Model):
    tp_plan = {"layers.*.q": "colwise"}
    ep_plan = {"blocks.*.0": "ep_dispatch_experts"}

class Headed(Planned):
    config = SimpleNamespace(num_attention_heads=3)

def moved():
    return Model().cuda()

def grouped():
    torch.distributed.init_process_group("gloo")
    return Model()
"""


@pytest.mark.parametrize(
    ("factory", "world", "place", "remedy"),
    [
        ("moved", "dp=2", " in moved: Model().cuda()", "leave .cuda() and device='cuda'"),
        ("Reading", "dp=2", " in checked: hidden.sum() > 0", "or measure with `run`"),
        ("grouped", "dp=2", "in grouped: torch.dist", "leave init_process_group() and"),
        ("Planned", "tp=2", "'layers.*.q' and others must match", "such as 'blocks.1.0'"),
        ("Headed", "tp=2", "world.tp = 2", "a divisor of num_attention_heads=3"),
        ("Model", "tp=2", "no tensor-parallel plan", "set tp=1, or give it"),
        ("Model", "dp=2,ep=2", "names no experts", "set ep=1, or give it"),
        ("Planned", "dp=3,ep=3", "world.ep = 3", "a divisor of the 16 experts"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_with_a_remedy(
    factory: str,
    world: str,
    place: str,
    remedy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MODEL, "utf-8")
    words = [f"{path}:{factory}", "device=cpu", "--capacity", "1GiB", "--world", world]
    assert main(["estimate", *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert place in captured.err and remedy in captured.err


def test_own_models_have_no_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MODEL, "utf-8")
    words = ["estimate", f"{path}:Model", "device=cpu", "--capacity", "1GiB"]
    assert main([*words, "--world", "pp=2,schedule=gpipe"]) == 1
    assert "pp divides the built-in models, and those of transformers" in capsys.readouterr().err
    assert main([*words, "--plan", "2", "--world", "ep=any", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {layout["world"] for layout in plan["layouts"]} == {"dp=2", "dp=2,data=ddp"}
    reasons = ("no tensor-parallel plan", "names no experts", "pp divides the built-in models")
    for reason in reasons:
        assert any(reason in one for one in plan["refused"])
    assert len(plan["refused"]) == len(reasons)


PLAN = ("tiny", "batch=4", "--card", "h100", "--plan")
SIZES = {"vocab": 64, "d_model": 32, "d_ff": 64, "heads": 2, "layers": 9}
SMALL = RunSpec(model="", device="cpu").changed(batch=4, context=32, **SIZES)


def test_a_plan_shares_the_settings_of_a_world(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, *PLAN, "16", "--world", "data=hsdp,reshard=any,pp=1")
    assert {layout["world"] for layout in plan["layouts"]} == {
        f"{sizes},data=hsdp,replicas=2{reshard}"
        for sizes in ("dp=16", "dp=8,tp=2", "dp=4,tp=4")
        for reshard in ("", ",reshard=false")
    }
    assert {layout["verdict"] for layout in plan["layouts"]} == {"fits"}
    layouts = {layout["world"]: layout for layout in plan["layouts"]}
    row = layouts["dp=8,tp=2,data=hsdp,replicas=2"]
    alone = document(capsys, *PLAN[:-1], "--world", row["world"])
    assert (row["rank"], row["sent"]) == (alone["worst_rank"], alone["sent"])
    assert row["sent_bytes"] == sum(one["bytes"] for one in row["sent"])
    words = [*PLAN, "16", "--world", "pp=1,data=hsdp,reshard=any", "--top", "2"]
    assert main(["estimate", *words, "--fields", "layout,all_gather_bytes", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and plan["layouts"][0]["world"] in lines[1]


def test_equal_ranks_of_schedules_are_played_once(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = (f"{key}={value}" for key, value in {**SIZES, "layers": 4}.items())
    words = (*sizes, "context=32", "batch=4", "device=cuda", "--capacity", "24GiB", "--plan", "4")
    plan = document(capsys, *words, "--world", "pp=4,schedule=any")
    worlds = [layout["world"] for layout in plan["layouts"]]
    assert len(worlds) == 2 and "pp=4,schedule=gpipe,microbatches=4" in worlds
    assert plan["refused"] == {"world.stages: at most pp=4 times these, in the model's 4 layers": 2}
    # First and last stage of 1F1B, and those and the second of GPipe. By both, all forwards of the
    # first stage come first.
    assert plan["plays"] == 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_ranks_that_execute_the_same_need_the_same(schedule: str, estimator: Estimator) -> None:
    def play(spec: RunSpec, variant: TrainingVariant) -> Any:
        return estimator.predict(spec, variant=variant)

    world = World.parse(f"pp=4,microbatches=4,schedule={schedule}")
    ranks = PlayedRanks(SMALL, play)
    assert ranks.distinct(world) == (
        {0: 1, 1: 2, 3: 1} if schedule == "gpipe" else {0: 1, 1: 1, 2: 1, 3: 1}
    )
    first, third = (
        play(
            SMALL, TrainingVariant(world=World.parse("pp=4,microbatches=4,schedule=gpipe"), rank=r)
        )
        for r in (0, 2)
    )
    played = {one.rank: one.prediction for one in play_ranks(SMALL, world, play)}
    assert (played[0].ledger, played[0].sent) == (first.ledger, first.sent)
    if schedule == "gpipe":
        assert (played[1].ledger, played[1].sent) == (third.ledger, third.sent)


def test_the_worst_stage_is_the_first_the_second_or_the_last(estimator: Estimator) -> None:
    for text in (
        "pp=4,microbatches=4",
        "pp=4,microbatches=4,schedule=interleaved,stages=2",
    ):
        world = World.parse(text)
        ranks = PlayedRanks(SMALL, lambda spec, variant: estimator.predict(spec, variant=variant))
        peaks = {
            rank: estimator.predict(
                SMALL, variant=TrainingVariant(world=world, rank=rank)
            ).peak_bytes
            for rank in world.kinds
        }
        extremes = [one.peak_bytes for one in ranks.extremes(world)]
        assert len(extremes) == (3 if world.stages > 1 else 2) < len(peaks)
        assert max(peaks.values()) == max(extremes)


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        ("dp=2", {"attention": "sdpa"}),
        ("dp=2,data=ddp", {"precision": "bf16"}),
        ("dp=4,tp=2,data=hsdp,replicas=2", {"precision": "bf16"}),
        ("tp=2", {"device": "cuda:0", "attention": "sdpa"}),
        ("dp=2", {"step": "inference"}),
        ("pp=2,microbatches=4", {"precision": "bf16", "attention": "sdpa"}),
        ("pp=2,tp=2,microbatches=4,schedule=gpipe", {"device": "cuda:0"}),
    ],
)
def test_no_rank_needs_less_than_the_lower_bound(
    world: str, settings: dict[str, Any], estimator: Estimator
) -> None:
    spec = SMALL.changed(**{"layers": 4, **settings})
    ranks = PlayedRanks(spec, lambda spec, variant: estimator.predict(spec, variant=variant))
    needs = [
        sum(row.bytes for row in one.prediction.ledger if row.name != "workspaces")
        for one in ranks.extremes(World.parse(world))
    ]
    assert 0.2 * max(needs) < least_bytes(spec, World.parse(world), predict(spec)) <= max(needs)


def test_a_layout_whose_weights_do_not_fit_is_not_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 10 billion weights, their gradients and two moments in float32 are 160 GB, 40 GB a card.
    words = ("10B", "device=cuda", "--capacity", "24GiB", "--plan", "4")
    plan = document(capsys, *words)
    assert plan["plays"] == 0 and plan["layouts"]
    for layout in plan["layouts"]:
        assert layout["verdict"] == "over" and layout["headroom_bytes"] < 0
        assert layout["rank"] is layout["peak_bytes"] is layout["sent_bytes"] is None
    assert main(["estimate", *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not played: weights, optimizer state and saved activations alone do not fit" in text


ON_CPU = ("tiny", "device=cpu")
"""Where a step fits if its tensors do."""


@pytest.mark.parametrize(
    ("key", "world", "unit"),
    [("batch", "pp=2,microbatches=4,tp=2", 4), ("context", "dp=2,tp=4", 4)],
)
def test_the_largest_value_is_one_that_the_world_divides(
    key: str, world: str, unit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*ON_CPU, "batch=4", "--capacity", "60MiB", "--world", world)
    found = document(capsys, *options, "--fit", key)
    assert found["largest"] % unit == 0 and found["next"] == found["largest"] + unit
    assert found["world"] == world
    alone = [
        document(capsys, *options, f"{key}={value}") for value in (found["largest"], found["next"])
    ]
    assert [one["fits"] for one in alone] == [True, False]
    fitting, over = (one["peak_bytes"] for one in alone)
    assert (found["peak_bytes"], found["next_peak_bytes"]) == (fitting, over)
    assert fitting <= 60 * 2**20 < over == 60 * 2**20 + found["over_bytes"]


def test_the_advised_batch_of_a_card_fits_and_the_next_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("tiny", "device=cuda", "--capacity", "2GiB", "--world", "dp=2")
    found = document(capsys, *options, "--fit", "batch")
    values = found["largest"], found["next"]
    alone = [document(capsys, *options, f"batch={value}") for value in values]
    assert [one["fits"] for one in alone] == [True, False] and values[1] == values[0] + 1
    assert found["reserved_bytes"] == alone[0]["reserved_bytes"]


def test_every_number_of_microbatches_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    options = (*ON_CPU, "batch=8", "--world", "pp=2", "--fit", "microbatches")
    found = document(capsys, *options, "--capacity", "1GiB")
    assert (found["smallest"], found["largest"], found["next"]) == (2, 8, None)
    words = (*ON_CPU, "batch=8", "--world", "pp=2,microbatches=2")
    needed = document(capsys, *words)["peak_bytes"]
    capacity = ("--capacity", f"{(needed - 1) / 2**20}MiB")
    found = document(capsys, *options, *capacity)
    assert (found["smallest"], found["largest"]) == (4, 8)
    alone = [
        document(capsys, *words[:-1], f"pp=2,microbatches={count}", *capacity) for count in (4, 2)
    ]
    assert [one["fits"] for one in alone] == [True, False]
    found = document(capsys, *options, "--capacity", "1MiB")
    assert (found["largest"], found["smallest"], found["next"], found["beyond"]) == (0, None, 2, 2)
    assert main(["estimate", *options, "--capacity", "1MiB"]) == 0
    assert "Nothing fits in 1.00 MiB with pp=2: microbatches 2 needs" in " ".join(
        capsys.readouterr().out.split()
    )


DIVIDED = """
import torch
from torch.distributed.fsdp import fully_shard

def model_of():
    blocks = [torch.nn.Linear(64, 64) for _ in range(3)]
    return torch.nn.Sequential(torch.nn.Embedding(100, 64), *blocks, torch.nn.Linear(64, 100))

class Parts:
    def __init__(self):
        self.model = model_of()
    def batch(self, batch=2, context=8):
        return torch.randint(100, (batch, context))
    def parallelize(self, model, mesh):
        for block in model[1:4]:
            fully_shard(block, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])

class Made(Parts):
    parallelize = None
    def __init__(self, mesh):
        super().__init__()
        self.model = Parts.parallelize(self, self.model, mesh)
"""


def test_a_factory_gets_the_mesh_or_an_object_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(DIVIDED, "utf-8")
    words = ("device=cuda", "--capacity", "1GiB")
    given, made = (
        document(capsys, f"{path}:{name}", *words, "--world", "dp=4") for name in ("Parts", "Made")
    )
    assert given["ranks"] == made["ranks"]
    assert given["parameters"] == made["parameters"] > 0
    assert main(["estimate", f"{path}:Made", *words]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "used with --world: Made() needs a mesh" in captured.err
