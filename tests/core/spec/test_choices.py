"""Rows of precisions and attention kernels: complete, true of torch, and read by everyone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch.nn.attention import SDPBackend

import sysbench.core
import sysbench.tui
from sysbench.core.errors import SpecError
from sysbench.core.machine.peaks import gpus
from sysbench.core.predict.sizes import widths_of
from sysbench.core.spec.choices import (
    ATTENTIONS,
    DTYPE_BYTES,
    PRECISIONS,
    Attention,
    AttentionName,
    Backend,
    DtypeName,
    Precision,
    PrecisionName,
    attention_named,
    precision_named,
    without_autocast,
)
from sysbench.core.spec.fields import field_named
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.stepped_workload import autocast_dtype, weight_dtype

NAMES = {*get_args(PrecisionName), *get_args(AttentionName)} - {"naive", "sdpa", "flex"}
"""Those that are nothing else: the others are also code paths of the model, or of ranks."""
PORTABLE = tuple(row.name for row in PRECISIONS if not row.cuda_only)


def test_every_name_of_the_types_has_one_row_and_every_row_is_a_choice() -> None:
    precisions, attentions = get_args(PrecisionName), get_args(AttentionName)
    assert tuple(row.name for row in PRECISIONS) == precisions == field_named("precision").choices
    assert tuple(row.name for row in ATTENTIONS) == attentions == field_named("attention").choices


@pytest.mark.parametrize("name", ["", "bf61", "float32", "naive"])
def test_an_unknown_precision_is_an_error_and_not_float32(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        precision_named(name)
    assert caught.value.field == "precision"
    assert "one of fp32, tf32" in caught.value.allowed


@pytest.mark.parametrize("name", ["", "sdpa-fast", "bf16"])
def test_an_unknown_attention_kernel_is_an_error(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        attention_named(name)
    assert caught.value.field == "attention"
    assert "one of naive, sdpa" in caught.value.allowed


def test_dtypes_are_as_wide_as_torch_s() -> None:
    assert set(DTYPE_BYTES) == set(get_args(DtypeName))
    for name, width in DTYPE_BYTES.items():
        assert getattr(torch, name).itemsize == width


def test_backends_are_torch_s() -> None:
    assert set(get_args(Backend)) <= SDPBackend.__members__.keys()


@pytest.mark.parametrize("row", PRECISIONS, ids=lambda row: row.name)
def test_a_precision_is_what_the_worker_makes_of_it(row: Precision) -> None:
    spec = RunSpec(precision=row.name, step="inference" if row.keeps_weights else "train")
    widths, lowered = widths_of(spec), autocast_dtype(spec)
    assert weight_dtype(spec).itemsize == row.weight_bytes == widths.weight
    assert (lowered or weight_dtype(spec)).itemsize == row.compute_bytes == widths.compute
    assert row.tf32 <= (row.compute == "float32")
    assert any(row.peak_key in gpu.tflops for gpu in gpus().values())
    of_peak = next(one for one in PRECISIONS if one.peak_key == row.peak_key)
    assert of_peak.product_bits == row.product_bits
    eager = without_autocast(row)
    assert weight_dtype(RunSpec(precision=eager.name, device="cpu")) == weight_dtype(spec)
    assert eager.autocast is None


@pytest.mark.parametrize("row", ATTENTIONS, ids=lambda row: row.name)
def test_an_attention_kernel_s_stand_in_runs_everywhere(row: Attention) -> None:
    stand_in = attention_named(row.stand_in)
    assert not stand_in.compiles
    assert (stand_in.scores == "model") == (row.scores == "model")
    for device in ("cpu", "cuda:0"):
        for precision in PORTABLE:
            spec = RunSpec(precision=precision, device=device, attention=stand_in.name)
            assert spec.attention_row is stand_in
    assert row.backend is None or row.kernel == "sdpa"


def test_no_other_module_compares_a_precision_or_an_attention_kernel_with_a_name() -> None:
    folders = [Path(str(package.__file__)).parent for package in (sysbench.core, sysbench.tui)]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(files) > 100
    assert [place for path in files for place in _comparisons(path)] == []


def _comparisons(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.MatchValue):
            sides: list[ast.AST] = [node.value]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        else:
            continue
        attributes = {one.attr for one in sides if isinstance(one, ast.Attribute)}
        texts = {
            leaf.value
            for side in sides
            for leaf in ast.walk(side)
            if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
        }
        if texts & NAMES or (texts and attributes & {"precision", "attention"}):
            yield f"{path.name}:{getattr(node, 'lineno', 0)}"
