"""The engine as a library, the way the README shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sysbench.core import Library, RunSpec, SysbenchError, open_run, run, start
from sysbench.core.record.events import RunEnded, StepsTimed

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_home(sysbench_home: Path) -> Path:
    return sysbench_home


def test_the_example_of_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["result"].record.status == "finished"  # type: ignore[attr-defined]


def test_events_drive_the_run_whose_tables_are_data_frames_with_units_in_their_columns() -> None:
    spec = RunSpec(device="cpu", steps=6, warmup=1, step="inference")
    measured, events = start(spec, ["timing"])
    seen = list(events)
    assert isinstance(seen[-1], RunEnded)
    assert any(isinstance(event, StepsTimed) for event in seen)
    assert [type(event) for event in measured.events()] == [type(event) for event in seen]
    frame = measured.tables()["timing"]
    assert frame["median_ms"].gt(0).all()
    assert open_run("last").record == measured.record
    assert [entry.id for entry in Library().entries("tiny inference")] == [measured.id]
    assert Library().entries("tiny train") == []


def test_what_cannot_be_measured_here_is_refused_before_anything_is_written(
    own_home: Path,
) -> None:
    with pytest.raises(SysbenchError, match="cuda:99"):
        run(RunSpec(device="cuda:99"))
    assert not own_home.exists()
