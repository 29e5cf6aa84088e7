"""Memory of 2.7B on a null H100 beside what was published from a real one.

``python -m tests.validation.null_gpu.published_memory`` runs the program's memory pass for each
cell and puts the table into ``null-gpu.md``. The published figures are those of
TobinZuo/assignment2-systems, ``memory_profile_report.md`` at commit 71a7f59: H100 80GB HBM3, torch
2.5.1, the "xl" of 2026, which is our 2.7B, batch 4, one warm-up step, ``expandable_segments:True``;
forward is without a graph.
Model and optimizer are the author's own, so the figures are of other code for the same step.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sysbench.core.predict.allocator_settings import MIB
from sysbench.core.spec.spec import RunSpec
from tests.validation.null_gpu.page import null_gpu, replace_part

FINISHED, OUT = "finished", "oom"
BATCH = 4
MODEL = RunSpec(model="cs336-2025/2.7B").dimensions


class Published(NamedTuple):
    """A cell: the figure, and what explains ours against it.

    Attributes:
        mib: Peak allocated; None where it ran out of memory.
        explained_mib: Ours less the published, by ``why``.
    """

    step: str
    precision: str
    context: int
    mib: float | None
    explained_mib: float
    why: str


def of_stream(context: int, width: int) -> float:
    """MiB of a tensor of the residual stream."""
    return BATCH * context * MODEL.d_model * width / MIB


def of_feed_forward(context: int, width: int) -> float:
    """MiB of a tensor as wide as the feed-forward."""
    return BATCH * context * MODEL.d_ff * width / MIB


def of_scores(context: int, width: int) -> float:
    """MiB of a layer's scores."""
    return BATCH * MODEL.heads * context**2 * width / MIB


LARGEST_PARAMETER = MODEL.d_model * MODEL.d_ff * 4 / MIB

CELLS = (
    Published(
        *("inference", "fp32", 128, 13133.0),
        2 * of_stream(128, 4) - 2 * of_feed_forward(128, 4),
        "inferred: silu written out there, five tensors of the feed-forward's width (20 MiB) where "
        "ours holds three, and two fewer of the stream's (5 MiB)",
    ),
    Published(
        *("inference", "bf16", 128, 13138.0),
        of_stream(128, 2) - 3 * of_feed_forward(128, 2),
        "inferred: three tensors of the feed-forward's width (10 MiB) more there, one of the "
        "stream's (2.5 MiB) fewer",
    ),
    Published(
        *("inference", "fp32", 2048, 21625.1),
        -of_scores(2048, 4),
        "one matrix of scores: softmax holds four at once there, three here",
    ),
    Published(
        *("inference", "bf16", 2048, 19457.1),
        -of_stream(2048, 2),
        "one tensor of the stream",
    ),
    Published(
        *("train", "fp32", 128, 52247.8),
        LARGEST_PARAMETER,
        "one tensor as large as the largest parameter: torch's AdamW in a loop holds three, the "
        "author's own two",
    ),
    Published(
        *("train", "bf16", 128, 52247.8),
        LARGEST_PARAMETER,
        "the same",
    ),
    Published(*("train", "fp32", 2048, None), 0, "2.00 GiB refused there, too"),
    Published(*("train", "bf16", 2048, None), 0, "2.00 GiB refused there, too"),
)


def run_cell(cell: Published, python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The record of the program's memory pass; running out of memory is a result."""
    settings = {
        "device": "cuda",
        "model": "cs336-2025/2.7B",
        "batch": BATCH,
        "context": cell.context,
        "step": cell.step,
        "precision": cell.precision,
        "optimizer": "adamw-loop",
    }
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [python, "-P", "-m", "sysbench.tui.cli", "run", "--json", "--passes", "memory"]
    done = subprocess.run([*command, *pairs], env=dict(environment), capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"the run ended with {done.returncode}: {done.stderr}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def row_of(cell: Published, record: Mapping[str, Any]) -> list[str]:
    """The cells of the table's row, and an empty last one where the outcomes are the same."""
    ended = record["passes"][0]
    name = [cell.step, cell.precision, str(cell.context)]
    expected = OUT if cell.mib is None else FINISHED
    mark = "" if ended["outcome"] == expected else f"here: {ended['outcome']}"
    if ended["outcome"] == OUT:
        oom = ended["oom"]
        refused = f"out of memory: {oom['requested_bytes'] / 2**30:.2f} GiB refused"
        there = "out of memory" if cell.mib is None else f"{cell.mib:,.1f}"
        return [*name, refused, there, "", "", "", f"{cell.why}; in {oom['phase']} here", mark]
    ours = record["memory"]["peak_allocated_bytes"] / MIB
    if cell.mib is None:
        return [*name, f"{ours:,.1f}", "out of memory", "", "", "", cell.why, mark]
    difference = ours - cell.mib
    rest = difference - cell.explained_mib
    figures = [f"{ours:,.1f}", f"{cell.mib:,.1f}", f"{ours / cell.mib:.4f}"]
    return [*name, *figures, f"{difference:+,.1f}", f"{rest:+.1f}", cell.why, mark]


def lines() -> Iterator[str]:
    """The table."""
    yield (
        "| step | precision | context | here MiB | published MiB | ratio | difference | "
        "unexplained | what explains it | |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---|---|"
    with null_gpu(card="h100") as (python, environment):
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        for cell in CELLS:
            record = run_cell(cell, python, environment)
            yield f"| {' | '.join(row_of(cell, record))} |"
    yield ""
    torch = record["environment"]["torch"]["version"]
    yield (
        f"Here: torch {torch}, adamw-loop, naive attention, peak allocated in the third step. "
        "Published: TobinZuo/assignment2-systems, H100 80GB HBM3, torch 2.5.1, the author's own "
        "model and optimizer, one warm-up step. Both with expandable segments, batch 4."
    )


def main() -> None:
    """Run every cell, print the table and write it."""
    table = []
    for line in lines():
        print(line, flush=True)
        table.append(line)
    replace_part("published", table)


if __name__ == "__main__":
    main()
