"""torch.compile: what a compiled run reports, and when it is not compiled."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sysbench.core import RunSpec, run
from sysbench.core.compare.nodes import walk_nodes
from sysbench.core.compare.times import time_difference
from sysbench.core.record.record import Compile, Record
from sysbench.core.runs.artifacts import generated_code, layer_rows
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import parse_spec
from sysbench.core.storage import HOME_VARIABLE

SMALL: dict[str, Any] = {
    "model": "",
    "vocab": 64,
    "d_model": 32,
    "d_ff": 64,
    "layers": 2,
    "heads": 2,
    "batch": 2,
    "context": 16,
    "attention": "sdpa",
    "device": "cpu",
    "threads": 1,
    "steps": 6,
    "warmup": 1,
    "compile": "default",
}
PROJECTIONS = {
    *("blocks.*.attention.q", "blocks.*.attention.k", "blocks.*.attention.v"),
    *("blocks.*.attention.out", "blocks.*.ffn.w1", "blocks.*.ffn.w2", "blocks.*.ffn.w3"),
}
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs g++ here")


def compiled_run(
    home: Path, passes: list[str], cache: Path, spec: RunSpec
) -> tuple[RunDirectory, Record]:
    """A real run through Inductor's C++ backend, in a home that outlives the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")  # scalar code takes g++ half the time
        found = run(spec, passes)
        assert found.record.status == "finished", found.record.passes
        return found.directory, found.record


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Record]:
    """The whole model as one graph, with its backward, traced."""
    home = tmp_path_factory.mktemp("home of whole")
    spec = RunSpec(**(SMALL | {"step": "forward+backward", "layers": 1}))
    return compiled_run(home, ["trace"], home / "cache", spec)


def gemm_modules(record: Record, phase: str) -> set[str]:
    assert record.kernels is not None
    rows = record.kernels.rows
    return {row.module for row in rows if row.category == "gemm" and row.phase == phase}


@needs_compiler
def test_a_whole_compiled_model_has_the_modules_of_an_eager_one(
    whole: tuple[RunDirectory, Record],
) -> None:
    _, record = whole
    assert gemm_modules(record, "forward") == {*PROJECTIONS, "head"}
    assert gemm_modules(record, "backward") == {*PROJECTIONS, "head"}
    assert record.kernels is not None
    outside = {row.name.removeprefix("aten::") for row in record.kernels.rows if not row.module}
    # What makes the first gradient; no share of time, which other processes change.
    assert outside <= {"ones_like", "empty_strided", "empty_like", "fill_", "detach"}
    made = {kernel.file for kernel in record.kernels.generated}
    assert made == {"output_code/1-forward.py", "output_code/2-backward.py"}, "one graph"


@needs_compiler
def test_fused_kernels_stand_beside_the_eager_ones_that_they_replace(
    whole: tuple[RunDirectory, Record],
) -> None:
    directory, record = whole
    home = directory.path.parents[1]
    spec = RunSpec(**(SMALL | {"step": "forward+backward", "layers": 1, "compile": "off"}))
    _, plain = compiled_run(home, ["trace"], home / "cache", spec)
    assert plain.kernels is not None
    layers = layer_rows(directory, record)
    assert layers is not None
    root = time_difference(plain.kernels, layers)
    for _, node in walk_nodes(root):
        for side in (0, 1):
            children = [child.amounts[side] for child in node.children]
            assert not children or sum(children) == node.amounts[side]
    fusions = {node.name: node for _, node in walk_nodes(root) if node.kind == "fused"}
    gate = fusions["fused: mul + silu"]
    assert {child.name for child in gate.children if child.state == "gone"} >= {
        "aten::mul",
        "aten::silu",
    }
    assert any(child.state == "new" for child in gate.children)


@needs_compiler
def test_fused_kernels_decode_into_operators_modules_lines_and_code(
    whole: tuple[RunDirectory, Record],
) -> None:
    directory, record = whole
    kernels = record.kernels
    assert kernels is not None
    fused = [row for row in kernels.rows if row.fused]
    assert {row.phase for row in fused} == {"forward", "backward"}
    assert all(row.ops and row.moved_bytes for row in fused)
    made = [kernel for kernel in kernels.generated if kernel.fused]
    activation = next(one for one in made if one.phase == "forward" and "silu" in one.ops)
    assert activation.module == "blocks.*.ffn"
    (source,) = activation.sources
    assert re.fullmatch(r"workloads/transformer\.py:\d+ y: Tensor = self\.w2\(.*", source)
    size = 2 * 16 * 64 * 4  # batch, context, d_ff, float32
    assert activation.bytes_per_call == 3 * size  # two read, one written
    code = generated_code(directory, activation.file, activation.name)
    assert code.startswith(f"{activation.name} = async_compile.")
    assert code.count("extern") == 1


GATE = """
from types import SimpleNamespace

import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return self.scale * nn.functional.silu(x)

def make():
    return SimpleNamespace(
        model=Gate(),
        batch=lambda batch: torch.randn(batch, 16),
        loss=lambda model, x: model(x).mean(),
    )
"""
"""A model of one kernel forward and one backward: g++ takes seconds for each."""


@needs_compiler
def test_compile_seconds_are_cold_and_warm_and_by_stage(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    settings = {key: SMALL[key] for key in ("device", "threads", "steps", "warmup", "compile")}
    settings |= {"context": 0, "step": "forward+backward", "compile_cache": "cold"}
    spec = resolve(parse_spec({"model": f"{tmp_path / 'gate.py'}:make", **settings}))
    _, record = compiled_run(tmp_path, ["timing"], tmp_path / "unused", spec)
    block = record.compile
    assert block is not None
    assert (block.extent, block.fell_back, block.graphs) == ("whole", False, 1)
    assert block.cold_seconds == block.compile_seconds
    assert block.warm_seconds is not None, block.missing
    assert 0 < block.warm_seconds < block.cold_seconds
    assert list(block.parts_seconds) == ["dynamo", "aot", "inductor", "backend"]
    assert all(seconds > 0 for seconds in block.parts_seconds.values())
    assert sum(block.parts_seconds.values()) == pytest.approx(block.compile_seconds)
    assert (block.cache_hits, block.cache_misses) == (0, 2)  # forward, backward
    assert block.graph_breaks == {}
    assert record.timing is not None
    assert record.timing.first_step_ms > record.timing.step.median_ms
    assert block.compile_seconds < record.timing.first_step_ms / 1e3


def test_blocks_share_their_code_so_one_graph_serves_them_all(sysbench_home: Path) -> None:
    changes = {"step": "inference", "compile_scope": "block", "compile_backend": "aot_eager"}
    record = run(RunSpec(**(SMALL | changes)), ["timing"]).record
    assert record.compile is not None
    assert (record.compile.extent, record.compile.graphs) == ("whole", 1)


def test_a_run_with_torch_compile_disabled_is_an_eager_one(
    sysbench_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    record = run(RunSpec(**(SMALL | {"step": "inference"})), ["timing"]).record
    assert record.compile is not None
    assert (record.compile.extent, record.compile.fell_back) == ("none", True)
    assert record.compile.eager_parts[0].cause == "disabled"
    assert record.findings[0].rule == "fell-back-to-eager"
    assert "TORCHDYNAMO_DISABLE" in record.findings[0].why


FALL_BACK = """
import gc
gc.disable()
import json, msgspec, torch
from torch._dynamo import config, utils
from sysbench.core import RunSpec
from sysbench.core.worker.compile.apply import describe_compilation

def refusing(graph, inputs):
    raise RuntimeError("no such instruction")

def whole(x):
    return x * 2

def printing(x):
    x = x + 1
    print("", end="")
    return x * 2

def data_dependent(x):
    if x.sum().item() > 0:
        return x + 1
    return x - 1

def suppressed(x):
    return x * 2

def contexts(x):
    return x * 2

def report(function, *inputs, backend="eager", **settings):
    torch.compiler.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()
    with config.patch(**settings):
        compiled = torch.compile(function, backend=backend, dynamic=False)
        for one in inputs:
            compiled(one)
    block = describe_compilation(RunSpec(compile="default", compile_backend="eager"), 1.0)
    return msgspec.to_builtins(block)

one = torch.ones(3)
print(json.dumps({
    "whole": report(whole, one, one),
    "recompile-limit": report(contexts, *map(torch.ones, range(2, 7)), recompile_limit=2),
    "graph-break": report(printing, one),
    "unsupported": report(data_dependent, one),
    "failed": report(suppressed, one, backend=refusing, suppress_errors=True),
}))
"""


@pytest.fixture(scope="module")
def forced() -> dict[str, Compile]:
    """Each way to end up in eager mode, forced, with what the report makes of it."""
    import msgspec

    environment = {**os.environ, "TORCH_LOGS": "-all"}
    output = subprocess.run(
        [sys.executable, "-P", "-c", FALL_BACK],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout
    return msgspec.convert(json.loads(output), dict[str, Compile])


def test_what_compiles_whole_has_no_gap(forced: dict[str, Compile]) -> None:
    block = forced["whole"]
    assert (block.extent, block.eager_parts, block.breaks) == ("whole", [], [])


def test_hitting_the_recompile_limit_withdraws_the_label(forced: dict[str, Compile]) -> None:
    block = forced["recompile-limit"]
    assert (block.extent, block.fell_back, block.graphs) == ("part", True, 2)
    (part,) = block.eager_parts
    assert part.cause == "recompile-limit"
    assert part.place.endswith("in contexts")
    (again,) = block.recompiled
    assert again.guard == "tensor 'x' size mismatch at index 0. expected 2, actual 3"
    assert block.recompiles == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [("graph-break", "Failed to trace builtin"), ("unsupported", "Unsupported Tensor.item()")],
)
def test_a_graph_break_names_its_line(forced: dict[str, Compile], name: str, reason: str) -> None:
    block = forced[name]
    (found,) = block.breaks
    assert found.reason.startswith(reason)
    assert found.place.partition(" in ")[2] in ("printing", "data_dependent")
    assert (block.extent, block.eager_parts[0].cause) == ("part", "graph-break")


def test_a_suppressed_error_of_the_backend_is_an_eager_row(forced: dict[str, Compile]) -> None:
    block = forced["failed"]
    assert (block.extent, block.graphs > 0) in (("none", False), ("part", True))
    assert block.fell_back
    (part,) = block.eager_parts
    assert part.cause == "failed"
    assert "no such instruction" in part.reason
