"""Sharding by ``fully_shard`` as `estimate --savings` plays it, against two processes on the CPU.

Run as ``python -m tests.validation.measure_savings``: a line per case with the least and the
highest peak of tensors among the steady steps of both ranks, the played one, and its difference
from the least: ranks on the CPU keep up to some blocks' shards longer than they need them. The
ranks meet by gloo through a file; torch's profiler sees every request for memory. gloo sends from
memory of numpy's: its threads keep what it is given for a while, from none to several blocks.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import profile
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

from sysbench.core.memory.profiled import HOST, ProfiledTrace
from sysbench.core.predict.dry_run_client import TrainingVariant, canonical_spec
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.workloads.model_workload import blocks_of
from sysbench.core.worker.workloads.stepped_workload import optimizer_over
from sysbench.core.worker.workloads.transformer import Transformer

RANKS = 2
STEADY = 4
MARK = 12345
"""Elements of a tensor that no model here has."""
SIZE = {"vocab": 1000, "d_model": 256, "d_ff": 688, "heads": 4, "layers": 6}
CASES: tuple[dict[str, object], ...] = (
    {"batch": 1, "context": 16},
    {"batch": 4, "context": 128},
    {"batch": 4, "context": 128, "optimizer": "sgd"},
    {"batch": 1, "context": 64, "optimizer": "adamw-loop"},
    {"batch": 1, "context": 64, "precision": "bf16"},
)


class AllGather:
    """An all-gather by gloo whose buffers the profiler does not see."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """The buffer of `fully_shard` itself."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **_: Any) -> None:
        """Gather."""
        received = outside(output_tensor)
        dist.all_gather_into_tensor(received, outside(input_tensor))
        output_tensor.copy_(received)


class ReduceScatter(AllGather):
    """The same of a reduce-scatter."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **_: Any) -> None:
        """Sum, and divide by the ranks."""
        received = outside(output_tensor)
        dist.reduce_scatter_tensor(received, outside(input_tensor))
        output_tensor.copy_(received).div_(RANKS)


def outside(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of numpy's."""
    return torch.from_numpy(tensor.detach().numpy().copy())


def step(
    spec: RunSpec, model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor
) -> None:
    """A training step as the measured ones run."""
    with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        del logits
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None


def measure(rank: int, place: str, spec: RunSpec) -> None:
    """Leave the peaks of this rank's steady steps in the folder."""
    torch.set_num_threads(1)
    folder = Path(place)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
    )
    with profile(use_kineto=True, profile_memory=True) as recording:
        model = Transformer(spec.dimensions, spec.context, spec.attention_row.kernel)
        for part in (*blocks_of(model), model):
            sharded = fully_shard(part)
            sharded.set_custom_all_gather(AllGather())  # type: ignore[arg-type]
            sharded.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[arg-type]
        ids = torch.randint(spec.vocab, (spec.batch, spec.context))
        optimizer = optimizer_over(spec, list(model.parameters()))
        for _ in range(1 + STEADY):
            step(spec, model, optimizer, ids)
            gc.collect()
            mark = torch.empty(MARK)  # tells in the recording where a step ended
            del mark
    trace = folder / f"{rank}.json"
    recording.export_chrome_trace(str(trace))
    changes = ProfiledTrace(trace.read_bytes()).history(HOST)[0].change
    ends = np.flatnonzero(changes == 4 * MARK)
    steps = np.split(np.cumsum(changes), ends)[1:-1]
    peaks = [int(step[2:].max()) for step in steps]
    (folder / f"{rank}.peaks").write_text(" ".join(map(str, peaks)))
    dist.destroy_process_group()


def main() -> int:
    """Print a line per case."""
    print("case,least_bytes,most_bytes,played_bytes,difference_percent")
    for case in CASES:
        settings = {"model": "", "device": "cpu", **SIZE, **case}
        spec = canonical_spec(RunSpec(**settings))  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory() as place:
            spawn(measure, (place, spec), RANKS)  # type: ignore[no-untyped-call]
            texts = [file.read_text() for file in Path(place).glob("*.peaks")]
        peaks = [int(word) for text in texts for word in text.split()]
        played = exact_prediction(spec, None, TrainingVariant(shards=RANKS)).peak_bytes
        words = " ".join(f"{key}={value}" for key, value in case.items())
        least, most = min(peaks), max(peaks)
        print(f"{words},{least},{most},{played},{100 * (played / least - 1):.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
