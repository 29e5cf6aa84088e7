"""Deep models that are extended from shallow ones: which, and that it changes no prediction."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import nn

from sysbench.core.predict.dry_run_client import DryRun, ExactPrediction, canonical_spec
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.dry_run import exact
from sysbench.core.worker.dry_run.dry_step import dry_run
from sysbench.core.worker.dry_run.exact import Blocks, blocks_alike, exact_prediction
from tests.drawn import some_of

SCRIPT = Path(__file__).parents[4] / "tests" / "validation" / "models.py"
LAYERS = sum(exact.DEPTHS) + 1
"""The fewest that are extended."""
IMAGES = ("vit",)
MIXED = {"device": "cuda:0", "precision": "bf16"}


class Block(nn.Module):
    def __init__(self, index: int, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.index, self.inner = index, nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)


class Stack(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)


def test_blocks_that_differ_in_their_index_alone_are_alike() -> None:
    assert blocks_alike(Stack([Block(index) for index in range(3)])) == Blocks("blocks", 3)


def frozen(block: nn.Module) -> nn.Module:
    return block.requires_grad_(False)


@pytest.mark.parametrize(
    "other",
    [
        lambda: Block(2, width=9),
        lambda: Block(2, dropout=0.5),
        lambda: Block(7),
        lambda: frozen(Block(2)),
        lambda: Block(2).double(),
        lambda: nn.Sequential(Block(2)),
    ],
    ids=["width", "setting", "index", "frozen", "dtype", "class"],
)
def test_blocks_that_differ_in_anything_else_are_not(other: Callable[[], nn.Module]) -> None:
    assert blocks_alike(Stack([Block(0), Block(1), other()])) is None


def test_two_lists_are_not_taken_for_one() -> None:
    two = nn.Sequential(Stack([Block(0), Block(1)]), Stack([Block(0), Block(1)]))
    assert blocks_alike(two) is None
    assert blocks_alike(Block(0)) is None


@pytest.mark.parametrize(
    ("kind", "settings"),
    some_of(
        "extended steps",
        [
            *((kind, MIXED) for kind in ("llama", "gpt2", "vit")),
            ("llama", {"precision": "fp32", "step": "inference"}),
        ],
        2,
    ),
)
def test_an_extended_step_is_the_whole_one(
    kind: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = configured(kind, tmp_path, settings)
    capability = "9.0" if spec.on_cuda else None
    short = exact_prediction(spec, capability)
    assert f"3 and 4 blocks extended to {LAYERS}" in short.method
    monkeypatch.setattr(exact, "DEPTHS", (LAYERS, LAYERS, LAYERS))  # too deep to extend
    whole = exact_prediction(spec, capability)
    assert "of the whole model" in whole.method
    assert comparable(short) == comparable(whole)


@pytest.mark.parametrize("kind", ["gemma3_text", "albert"])
def test_blocks_that_differ_make_a_dry_run_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    assert "of the whole model" in exact_prediction(configured(kind, tmp_path, MIXED)).method


def test_a_third_depth_that_does_not_confirm_makes_a_dry_run_of_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bend(*args: Any, **kwargs: Any) -> DryRun:
        result = dry_run(*args, **kwargs)
        is_third = result.layers == exact.DEPTHS[2]
        return replace(result, saved_bytes=result.saved_bytes + 1) if is_third else result

    monkeypatch.setattr(exact, "dry_run", bend)
    spec = configured("llama", tmp_path, MIXED)
    assert "of the whole model" in exact_prediction(spec).method


def configured(kind: str, folder: Path, settings: dict[str, Any]) -> RunSpec:
    pytest.importorskip("transformers")
    path = folder / "config.json"
    path.write_text(json.dumps(configuration(kind)))
    context = 0 if kind in IMAGES else 32
    small = {"model": f"hf:{path}", "device": "cpu", "batch": 2, "context": context, "threads": 1}
    return canonical_spec(resolve(parse_spec(small)).changed(**settings))


def configuration(kind: str) -> dict[str, Any]:
    script = runpy.run_path(str(SCRIPT))
    _, architecture, sizes = script["ARCHITECTURES"][kind]
    values = {**script["SIZES"], **sizes, "model_type": kind, "architectures": [architecture]}
    for key in ("n_layer", "n_layers"):
        if key in values:
            del values["num_hidden_layers"]
            return values | {key: LAYERS}
    return values | {"num_hidden_layers": LAYERS}


def comparable(prediction: ExactPrediction) -> ExactPrediction:
    """The prediction without its method, and with returns in a row in one order."""
    requests = prediction.requests
    if requests is not None:
        requests = msgspec.structs.replace(requests, step=list(in_one_order(requests.step)))
    return msgspec.structs.replace(prediction, method="", requests=requests)


def in_one_order(entries: Sequence[int]) -> Iterator[int]:
    for is_return, group in groupby(entries, key=lambda entry: entry < 0):
        several = list(group)
        yield from sorted(several) if is_return else several
