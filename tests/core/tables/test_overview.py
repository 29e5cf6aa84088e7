"""The overview of ten runs and files: the sentence that is the answer, and why it is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.compare.statistics import spread
from sysbench.core.findings.findings_rules import DISTURBANCES, findings_of
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.record.environment import Roof
from sysbench.core.record.record import CategoryRow, Finding, Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.overview import (
    module_group,
    overview,
    overview_lines,
    overview_text,
)
from sysbench.core.trace.roofline import with_roof

Inspected = Callable[[Path], Inspection]
GEMM, NCCL = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
MS = 1_000_000


def sentence(record: Record) -> str:
    found = overview(record).finding
    assert found is not None
    return found.verdict


def changed(struct: Any, **fields: object) -> Any:
    return msgspec.structs.replace(struct, **fields)


@pytest.fixture
def settled(tiny_run: RunDirectory) -> Record:
    """The real run as on a quiet machine, with a step in which no phase stands out."""
    record = tiny_run.record()
    assert record.timing is not None
    phases = {"forward": spread([3.0] * 9), "backward": spread([6.0] * 9)}
    step = spread([10.0, 10.01, 9.99] * 9)
    timing = changed(
        record.timing, step=step, phases=phases | {"optimizer": spread([1.0] * 9)}, settled=True
    )
    made: Record = changed(record, timing=timing, findings=[])
    return made


def test_gpu_bound(shared_data: Path, inspected: Inspected) -> None:
    """A served model whose products fill the GPU: nothing waits, so the products are named."""
    record = inspected(shared_data / "more/tl_vllm_piecewise_exec.json.gz").as_record()
    assert sentence(record).startswith("The GPU is busy 100 % of the span, 91 % of it with gemm.")


def test_launch_bound(shared_data: Path, inspected: Inspected) -> None:
    """Kernels of microseconds: 85 % of 2.57 ms is idle, 1.74 ms of it before a launch began."""
    record = inspected(shared_data / "more/sid_transformer_h100.json.gz").as_record()
    assert sentence(record) == (
        "The GPU is idle for 85 % of the span, mostly waiting for the CPU to launch."
    )


def test_input_bound(writer: Any, inspected: Inspected) -> None:
    """Of 260 ms the GPU idles 60, all of them inside the loader's range."""
    writer.launch(0, GEMM, 10, 100 * MS)
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    writer.add("user_annotation", loader, 100 * MS + 10, 60 * MS)
    writer.launch(160 * MS + 20, GEMM, 160 * MS + 30, 100 * MS)
    record = inspected(writer.write()).as_record()
    assert sentence(record) == "The GPU waits 60 of 260 ms (23 %) for the data loader."


def test_copy_bound(shared_data: Path, inspected: Inspected) -> None:
    """NVIDIA's own report of this export: 920.9 of 940.5 ms of memory operations are HtoD."""
    record = inspected(shared_data / "nsys/h100_2gpu_1s.sqlite").as_record()
    assert sentence(record).startswith("98 % of the GPU's busy time is copies, mostly from the CPU")
    assert overview(record).phases[0].name == "copy"


def test_communication_bound(writer: Any, inspected: Inspected) -> None:
    """60 of 100 ns of all-reduce run while nothing computes."""
    for number in range(6):
        writer.launch(number * 100, GEMM, number * 100 + 10, 40)
        writer.launch(number * 100 + 2, NCCL, number * 100 + 50, 60, stream=14)
    record = inspected(writer.write()).as_record()
    assert sentence(record) == "60 % of the span is exposed communication."


def test_optimizer_heavy(settled: Record) -> None:
    """A step whose operators are all products, so no other rule has a finding."""
    assert settled.timing is not None
    phases = settled.timing.phases | {"optimizer": spread([4.8] * 9)}
    kernels = changed(settled.kernels, categories=[CategoryRow("gemm", "forward", 9, 1e6, 1.0)])
    record = changed(settled, timing=changed(settled.timing, phases=phases), kernels=kernels)
    record = changed(record, findings=findings_of(record))
    assert sentence(record).startswith("The optimizer takes 48 % of the step: adamw-foreach runs ")


def test_memory_bound(settled: Record) -> None:
    """Under a roof with little bandwidth every row with bytes is limited by it."""
    assert settled.kernels is not None
    roof = Roof(precision="fp32", peak_flops=1e18, peak_source="test", bandwidth=1e6)
    record = changed(settled, kernels=with_roof(settled.kernels, roof))
    words = "Memory bandwidth limits "
    assert words in sentence(record)
    share = float(sentence(record).partition(words)[2].partition(" ")[0])
    assert 50 < share <= 100


def test_compiled(settled: Record) -> None:
    """Of 10 ns of operators 4 are of a kernel that the compiler made."""
    assert settled.kernels is not None
    row = settled.kernels.rows[0]
    rows = [
        changed(row, name="aten::mm", category="gemm", exclusive_ns=6.0),
        changed(row, name="cpp_fused_add_0", category="elementwise", exclusive_ns=4.0, fused=True),
    ]
    categories = [
        CategoryRow(row.category, row.phase, row.calls, row.exclusive_ns, row.share) for row in rows
    ]
    kernels = changed(settled.kernels, rows=rows, categories=categories)
    assert sentence(changed(settled, kernels=kernels)) == (
        "Backward takes 60 % of the step. Gemm takes 60 % of the operators' time. "
        "Kernels by torch.compile take 40 %."
    )


def test_a_step_of_one_phase(settled: Record) -> None:
    """That the only phase takes all of the step says nothing."""
    assert settled.timing is not None
    timing = changed(settled.timing, phases={"forward": spread([10.0] * 9)})
    assert "of the step" not in sentence(changed(settled, timing=timing))


def test_out_of_memory(oom_run: RunDirectory) -> None:
    """What ended the run is the answer, whatever else was found."""
    assert sentence(oom_run.record()).startswith(
        "The memory pass ran out of memory: tried to allocate 128 MiB"
    )


def test_noisy(settled: Record) -> None:
    """Noise does not hide the answer: it is a line that a key opens."""
    noisy = Finding("not-settled", "warning", "Noisy: ±22 %.", "few steps", "Free it.")
    record = changed(settled, findings=[noisy])
    assert sentence(record).startswith("Backward takes 60 % of the step.")
    text = overview_text(record, 80)
    assert "! 1 warning: noisy" in text
    assert "few steps" not in text
    assert overview(record).warnings == [noisy]
    assert overview(record).further == []


@pytest.mark.parametrize("width", [44, 80, 120, 200])
def test_lines_fit_the_width_and_begin_with_the_number(tiny_run: RunDirectory, width: int) -> None:
    record = tiny_run.record()
    assert record.timing is not None
    lines = [
        "".join(span.text for span in line) for line in overview_lines(overview(record), width)
    ]
    assert lines[0].startswith(f"{record.timing.step.median_ms:.4g}"[:3])
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "rows"), [(42, 5), (76, 4), (156, 3)])
def test_the_reasons_of_a_doubt_follow_the_answer(
    shared_data: Path, inspected: Inspected, width: int, rows: int
) -> None:
    """Of a file that lacks kernels the total is in the first rows, why it lacks them is below."""
    record = inspected(shared_data / "nsys/h100_2gpu_1s.sqlite").as_record()
    shown = overview(record)
    (lost,) = shown.health
    text = overview_text(record, width)
    assert text.startswith("▌ Warning: 1,095 of 2,186 launches have no")
    assert any(line.startswith("969 ms traced span") for line in text.splitlines()[:rows])
    total, answer, why = (text.index(part[:30]) for part in ("969 ms", "Warning: 98 %", lost.why))
    assert total < answer < why


def test_every_disturbance_is_a_rule(tiny_run: RunDirectory) -> None:
    rules = " ".join(
        path.read_text()
        for path in Path(findings_of.__code__.co_filename).parent.glob("*_rules.py")
    )
    assert all(f'rule="{name}"' in rules for name in DISTURBANCES)


@pytest.mark.parametrize(
    ("module", "group"),
    [
        ("blocks.*.ffn.w1", "blocks.*.ffn"),
        ("model.layers.3.self_attn.q_proj", "model.layers.3.self_attn"),
        ("head", "head"),
        ("wte.embedding", "wte"),
        ("GPT_0.Block_*.MLP_*.Linear_*", "GPT_0.Block_*.MLP_*"),
    ],
)
def test_modules_are_grouped_below_the_layer(module: str, group: str) -> None:
    assert module_group(module) == group
