"""A study by hand: of six cells four have numbers, one ran out of memory, one was not run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sysbench.core.record.memory import Oom
from sysbench.core.record.record import PassRecord, Record, Timing
from sysbench.core.runs.run_directory import create_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import studies_folder
from sysbench.core.studies.schema import load_study
from sysbench.core.studies.study_directory import CellEntry, StudyDirectory, open_study
from sysbench.core.studies.study_grid import Cell, expand
from tests import factories

HOSTILE = "</script><script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
STUDY = f"""
title = "Contexts by size {HOSTILE}"
source = "nobody"
notes = ["Phases are timed directly. {HOSTILE}"]

[fixed]
step = "train"
device = "cpu"

[axes]
model = ["tiny", "cs336-2025/small"]
context = [128, 512, 1024]

[[tables]]
name = "times"
title = "Step times"
rows = ["model"]
columns = [
  {{ name = "128 (ms)", value = "timing.step.median_ms", where = {{ context = "128" }} }},
  {{ name = "512 (ms)", value = "timing.step.median_ms", where = {{ context = "512" }} }},
  {{ name = "1024 (ms)", value = "timing.step.median_ms", where = {{ context = "1024" }} }},
  {{ name = "growth", ratio = ["512 (ms)", "128 (ms)"] }},
]
"""
MEDIANS = {
    ("tiny", "128"): 10.0,
    ("tiny", "512"): 40.0,
    ("tiny", "1024"): 160.0,
    ("cs336-2025/small", "128"): 70.0,
}
OOM = ("cs336-2025/small", "1024")


def half_filled(home: Path) -> StudyDirectory:
    """The study in a home; its file is one of the person's own, called ``half``."""
    path = studies_folder(home) / "half.toml"
    path.parent.mkdir(parents=True)
    path.write_text(STUDY)
    study = load_study(path)
    directory = open_study(study, home)
    for cell in expand(study):
        place = (cell.point["model"], cell.point["context"])
        if place in MEDIANS or place == OOM:
            _fill(directory, cell, MEDIANS.get(place))
    return directory


ROUNDS = """
title = "Kernels by contexts"
repeat = {repeat}
[fixed]
model = "tiny"
device = "cpu"
[axes]
context = [128, 512]
kernel = [
    {{ label = "naive", attention = "naive" }},
    {{ label = "flash", attention = "sdpa-flash" }},
    {{ label = "math", attention = "sdpa-math" }},
]
[[tables]]
name = "kernels"
title = "Step times"
rows = ["context"]
columns = [
  {{ name = "naive", value = "timing.step.median_ms", where = {{ kernel = "naive" }} }},
  {{ name = "flash", value = "timing.step.median_ms", where = {{ kernel = "flash" }} }},
  {{ name = "math", value = "timing.step.median_ms", where = {{ kernel = "math" }} }},
  {{ name = "naive/flash", ratio = ["naive", "flash"] }},
  {{ name = "math/flash", ratio = ["math", "flash"] }},
]
"""
LEVELS = (10.0, 12.0, 9.0, 11.0, 15.0, 13.0, 10.5, 9.5)
"""Passes over the grid differ by more than the kernels do."""
FACTORS = {"128": (1.5, 1.0, 1.3), "512": (1.5, 1.0, 1.002)}


def filled_in_rounds(home: Path, repeat: int) -> StudyDirectory:
    """A study called ``kernels`` with up to eight rounds. Flash has the least time at
    context 128, and at 512 math has the same."""
    path = studies_folder(home) / "kernels.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ROUNDS.format(repeat=repeat))
    study = load_study(path)
    directory = open_study(study, home)
    for cell in expand(study):
        kernel = ("naive", "flash", "math").index(cell.point["kernel"])
        level = LEVELS[cell.repeat] * (1 + 0.0005 * cell.repeat * kernel)
        _fill(directory, cell, level * FACTORS[cell.point["context"]][kernel])
    return directory


def _fill(directory: StudyDirectory, cell: Cell, median_ms: float | None) -> None:
    """Give a cell its run, as its runner leaves it; without a median it ran out of memory."""
    assert cell.spec is not None
    run = create_run(cell.spec, cell.passes, directory.root)
    status = "oom" if median_ms is None else "finished"
    oom = _oom() if median_ms is None else None
    run.write_record(
        Record(
            id=run.id,
            identity=cell.spec.identity,
            status=status,  # type: ignore[arg-type]
            created_ns=1,
            spec=msgspec.to_builtins(cell.spec),
            parameters=cell.spec.dimensions.parameters,
            environment={"cpu": {"model": "EPYC"}, "torch": {"version": "2.13.0"}},
            passes=[PassRecord("timing", status, status, 1.0, oom=oom)],  # type: ignore[arg-type]
            timing=None if median_ms is None else _timing(cell.spec, median_ms),
        )
    )
    directory.append(
        CellEntry(
            cell=cell.id,
            status=status,  # type: ignore[arg-type]
            run=run.id,
            seconds=4.0,
            detail="" if oom is None else "out of memory in backward",
        )
    )


def _oom() -> Oom:
    return Oom(
        phase="backward",
        requested_bytes=512 * 2**20,
        allocated_bytes=2**30,
        message="not enough",
        stack=[],
    )


def _timing(spec: RunSpec, median_ms: float) -> Timing:
    return factories.timing(
        factories.spread(median_ms, n=10),
        phases={},
        first_step_ms=median_ms,
        samples_ms=[median_ms] * 10,
        stop_reason="settled",
        tokens_per_second=1e3 * spec.tokens_per_step / median_ms,
    )
