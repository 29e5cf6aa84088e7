"""Measures the standard cells on this machine's GPU and writes ``docs/validation/<gpu>.md``.

``make gpu-check`` runs it after the gpu-marked tests. ``--device cpu --sizes tiny`` goes
through the same motions without a GPU, into a folder of your choice.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sysbench.core import Record, RunSpec, SysbenchError, run
from sysbench.core.devices import resolve_device
from sysbench.core.machine import device_name
from sysbench.core.quantities import format_bytes

ROOT = Path(__file__).parents[2]
SIZES = ("small", "medium", "large", "xl", "2.7B")
LARGEST_FIXTURE_BYTES = 2**20


def spec_for(size: str, device: str, **changes: object) -> RunSpec:
    """A cell: a size of the 2025 handout, or a preset by its full name."""
    model = size if size == "tiny" else f"cs336-2025/{size}"
    return RunSpec(model=model, device=device).changed(**changes)


def timing_rows(sizes: list[str], device: str, context: int) -> Iterator[str]:
    """Measured medians beside the published ones."""
    published = tomllib.loads((ROOT / "tests" / "gpu" / "published.toml").read_text())
    yield "| size | precision | step | median ms | ± | published ms | ratio | status |"
    yield "|---|---|---|---|---|---|---|---|"
    for size, precision, step in itertools.product(
        sizes, ("fp32", "bf16"), ("inference", "forward+backward")
    ):
        spec = spec_for(size, device, precision=precision, step=step, context=context)
        record = run(spec, ["timing"]).record
        known = published.get(precision, {}).get(step, {}).get(size, [])
        cited = " / ".join(f"{ms:.1f}" for ms in known) or "–"
        if record.timing is None:
            reason = record.passes[0].detail
            yield f"| {size} | {precision} | {step} | – | – | {cited} | – | {reason} |"
            continue
        median = record.timing.step.median_ms
        ratio = " / ".join(f"{median / ms:.2f}" for ms in known) or "–"
        yield (
            f"| {size} | {precision} | {step} | {median:.2f} | "
            f"{record.timing.step.half_width:.2%} | {cited} | {ratio} | {record.status} |"
        )


def memory_rows(sizes: list[str], device: str, contexts: list[int]) -> Iterator[str]:
    """Predicted and measured peaks, and whether the ledgers close."""
    yield "| size | context | precision | step | predicted | measured | error | unnamed on card |"
    yield "|---|---|---|---|---|---|---|---|"
    for size, context, precision, step in itertools.product(
        sizes, contexts, ("fp32", "bf16"), ("inference", "train")
    ):
        spec = spec_for(size, device, precision=precision, step=step, context=context)
        record = run(spec, ["memory"]).record
        memory = record.memory
        if memory is None or memory.predicted_peak_bytes is None:
            yield (
                f"| {size} | {context} | {precision} | {step} | – | – | – | "
                f"{record.passes[0].detail} |"
            )
            continue
        error = memory.predicted_peak_bytes / memory.peak_allocated_bytes - 1
        residual = next((row.bytes for row in memory.card if row.name == "residual"), None)
        yield (
            f"| {size} | {context} | {precision} | {step} | "
            f"{format_bytes(memory.predicted_peak_bytes)} | "
            f"{format_bytes(memory.peak_allocated_bytes)} | {error:+.1%} | "
            f"{'–' if residual is None else format_bytes(residual)} |"
        )


def trace_rows(sizes: list[str], device: str) -> Iterator[str]:
    """How much of the step the kernel table explains, and what tracing cost."""
    yield "| size | compile | bare ms | traced | explained | with module | unlinked |"
    yield "|---|---|---|---|---|---|---|"
    for size, compile_mode in itertools.product(sizes, ("off", "default")):
        spec = spec_for(size, device, precision="bf16", compile=compile_mode)
        record = run(spec, ["timing", "trace"]).record
        if record.kernels is None or record.timing is None:
            yield f"| {size} | {compile_mode} | – | – | – | – | {record.passes[-1].detail} |"
            continue
        coverage = record.kernels.coverage
        yield (
            f"| {size} | {compile_mode} | {record.timing.step.median_ms:.2f} | "
            f"{record.kernels.perturbation or 0:.3f}× | {coverage.explained:.2%} | "
            f"{coverage.with_module:.2%} | {coverage.unlinked} |"
        )


def keep_fixtures(device: str, folder: Path) -> list[str]:
    """A small real trace and snapshot of this device, for tests elsewhere."""
    result = run(RunSpec(device=device, precision="bf16"), ["trace", "memory"])
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for path in (result.directory.trace_path, result.directory.snapshot_path):
        if path.is_file() and path.stat().st_size <= LARGEST_FIXTURE_BYTES:
            shutil.copyfile(path, folder / path.name)
            kept.append(path.name)
    return kept


def heading(record: Record, title: str) -> Iterator[str]:
    """What was measured on; nothing that names the machine's owner."""
    yield f"# {title}"
    yield ""
    for group in ("device", "nvidia", "torch", "cpu", "settings"):
        for key, value in (record.environment.get(group) or {}).items():
            yield f"- {group} {key}: {value}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--contexts", default="128,256,512")
    parser.add_argument("--out", type=Path, default=ROOT)
    options = parser.parse_args()
    device = resolve_device(options.device)
    sizes = options.sizes.split(",")
    contexts = [int(text) for text in options.contexts.split(",")]
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("SYSBENCH_HOME", home)
        first = run(RunSpec(device=device, step="inference"), ["timing"]).record
        title = device_name(first.environment) or "CPU"
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        lines = [*heading(first, title), "", f"## Step time, batch 4, context {contexts[-1]}", ""]
        lines += timing_rows(sizes, device, contexts[-1])
        lines += ["", "## Peak memory, batch 4", "", *memory_rows(sizes, device, contexts)]
        lines += ["", "## Traces, bf16 train, context 128", "", *trace_rows(sizes[:3], device)]
        kept = keep_fixtures(device, options.out / "tests" / "fixtures" / name)
        lines += ["", f"Fixtures kept: {', '.join(kept) or 'none'}."]
    path = options.out / "docs" / "validation" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SysbenchError as error:
        sys.exit(f"nothing was validated: {error}")
