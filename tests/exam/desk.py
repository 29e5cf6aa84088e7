"""The folder of the questions: files of the repository, and small ones with known contents."""

from __future__ import annotations

import shutil
from pathlib import Path

from sysbench.core.runs.run_directory import RunDirectory
from tests.imported_files import write_snapshot, write_trace
from tests.nsys_double.build import ExportWriter

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
RUN_A, RUN_B = "20261121-120000-tiny-cpu0", "20261121-120100-tiny-cpu0"
MIB = 2**20

GEMM, NORM, COPY = "ampere_sgemm_128x64_tn", "layer_norm_kernel", "elementwise_copy_kernel"
BEFORE = [[(GEMM, 400), (NORM, 60)], [(GEMM, 410), (NORM, 60)], [(GEMM, 405), (NORM, 60)]]
"""Kernels of the steps in ``before.json``, with their durations in µs."""
AFTER = [[*step, (COPY, 120)] for step in BEFORE]
LOADER = ("/job/data.py", 12, "load_batch")
MODEL = ("/job/model.py", 40, "forward")
HEAD = ("/job/model.py", 77, "logits")
BLOCKS = [(64 * MIB, [HEAD]), (24 * MIB, [MODEL]), (24 * MIB, [MODEL]), (8 * MIB, [LOADER])]
"""Blocks in ``snapshot.pickle``: bytes and stack."""
LAUNCHES = [("gemm<float>", 100, 700), ("softmax<float>", 720, 900), ("gemm<float>", 1000, 1500)]
"""Kernels in ``export.sqlite``: start and end in µs."""


def make_desk(folder: Path, home: Path) -> None:
    """Write the files, and a home with the same stored run under two ids."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(FIXTURES / "ranks", folder / "ranks")
    shutil.copy(ROOT / "examples" / "base.toml", folder)
    write_trace(folder / "before.json", BEFORE)
    write_trace(folder / "after.json", AFTER)
    write_snapshot(folder / "snapshot.pickle", BLOCKS)
    export = ExportWriter(folder / "export.sqlite")
    export.range("step", 0, 1_600_000)
    for name, start, end in LAUNCHES:
        at = start - 50
        export.launch(f"void {name}()", at * 1000, start * 1000, end * 1000)
    export.write()
    for name in (RUN_A, RUN_B):
        run = RunDirectory(home / "runs" / name)
        shutil.copytree(FIXTURES / "tiny-cpu", run.path)
        for path in (run.header_path, run.record_path):
            path.write_text(path.read_text().replace(RUN_A, name))
