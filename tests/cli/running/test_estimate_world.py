"""`estimate --world` and `--plan`: ranks of a cluster, its layouts, and models that refuse them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysbench.tui.cli import main


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
        assert one["reserved_bytes"] is None
    assert document["missing"]["reserved_bytes"].startswith("not modelled for a pipeline")
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
    spare = [layout["headroom_bytes"] for layout in document["layouts"]]
    assert spare == sorted(spare, reverse=True)
    assert main([*words, "--world", "dp=3,tp=2", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    names = ("peak_bytes", "peak_phase", "reserved_bytes")
    assert [layouts["dp=3,tp=2"][name] for name in names] == [alone[name] for name in names]
    assert layouts["dp=3,tp=2"]["sent"] == alone["sent"]
    assert (layouts["dp=3,tp=2"]["verdict"] == "fits") is alone["fits"]


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
        (["--world", "cp=2"], "world.cp = 2: 1 with attention=naive: torch has a ring of"),
        (["--world", "dp=4", "--rank", "4"], "--rank = 4: 0 to 3"),
        (["--rank", "4"], "--rank = 4: only with --world"),
        (["--world", "dp=4", "--fit", "batch"], "--world = 'dp=4': left out"),
        (["--world", "dp=2,selective=true"], "world.selective = True: left out"),
        (["--world", "dp=2", "--plan", "2"], "--world = 'dp=2': left out"),
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
        ("Model", "tp=2", "no tensor-parallel plan", "set tp=1, or give it"),
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
    assert main([*words, "--world", "pp=2,schedule=gpipe"]) == 2
    assert "world.pp = 2: 1 with this model" in capsys.readouterr().err
    assert main([*words, "--plan", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {layout["world"] for layout in plan["layouts"]} == {"dp=2", "dp=2,data=ddp"}
    stages, tensors = sorted(plan["refused"], reverse=True)
    assert stages == "world.pp: 1 with this model: only built-in ones are cut"
    assert "no tensor-parallel plan" in tensors
