"""torch.compile: what a compiled run says of itself, and when it is not compiled at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core import RunSpec, run


@pytest.mark.parametrize(("scope", "graphs"), [("whole", 1), ("block", 1)])
def test_a_compiled_run_counts_its_graphs(sysbench_home: Path, scope: str, graphs: int) -> None:
    spec = RunSpec(
        device="cpu",
        steps=3,
        warmup=1,
        step="inference",
        compile="default",
        compile_backend="eager",
        compile_fullgraph=True,
    )
    record = run(spec.changed(compile_scope=scope), ["timing"]).record
    assert record.status == "finished", record.passes
    assert record.compile is not None
    # The blocks share their code, so one graph serves them all.
    assert record.compile.graphs == graphs
    assert not record.compile.fell_back
    assert record.compile.graph_breaks == {}
    assert record.timing is not None
    assert record.timing.first_step_ms > record.timing.step.median_ms
    assert 0 < record.compile.compile_seconds < record.timing.first_step_ms / 1e3


FALL_BACK = """
import json, msgspec, torch
from sysbench.core import RunSpec
from sysbench.core.worker.compiling import describe_compilation
torch._dynamo.config.recompile_limit = 2

@torch.compile(backend="eager", dynamic=False)
def double(x):
    return x * 2

for length in range(2, 7):
    double(torch.ones(length))
print(json.dumps(msgspec.to_builtins(describe_compilation(RunSpec(compile="default"), 1.0))))
"""


def test_hitting_the_recompile_limit_withdraws_the_label() -> None:
    output = subprocess.run(
        [sys.executable, "-P", "-c", FALL_BACK], check=True, capture_output=True, text=True
    ).stdout
    block = json.loads(output)
    assert block["fell_back"]
    assert block["recompiles"] == 2
