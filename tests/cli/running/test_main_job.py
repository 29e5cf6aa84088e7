"""The main job on a real run: one document, ledgers that close, artifacts that open."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.export.exports import write_export
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.section_tables import tables_of
from sysbench.core.tables.table import to_frame
from sysbench.tui.cli import main
from tests.envelope import content
from tests.factories import table_named


@pytest.fixture
def document(tiny_run: RunDirectory) -> Any:
    """Output of ``run --json``."""
    return content((tiny_run.path.parents[1] / "stdout.json").read_bytes(), of_record=True)


def test_run_printed_the_record_and_nothing_else(tiny_run: RunDirectory, document: Any) -> None:
    assert document == json.loads(tiny_run.record_path.read_bytes())
    assert (tiny_run.path.parents[1] / "stderr.txt").read_bytes() == b""
    assert document["status"] == "finished"
    assert document["identity"] == tiny_run.header().spec.identity
    assert document["spec"]["model"] == "tiny"
    assert document["environment"]["torch"]["version"]
    assert [one["outcome"] for one in document["passes"]] == ["finished"] * 3


def test_timing_has_its_public_keys(document: Any) -> None:
    keys = {"median_ms", "ci_low_ms", "ci_high_ms", "mad_ms", "mean_ms", "std_ms"}
    keys |= {"min_ms", "max_ms", "n"}
    timing = document["timing"]
    for block in (timing["step"], *timing["phases"].values()):
        assert keys <= set(block)
    assert {"forward", "backward", "optimizer"} <= set(timing["phases"])
    assert len(timing["samples_ms"]) == timing["step"]["n"] == 12
    assert timing["first_step_ms"] > 0
    assert timing["mfu"] is None and timing["missing"]["mfu"]


def test_kernel_shares_with_idle_and_unattributed_are_the_step(document: Any) -> None:
    kernels = document["kernels"]
    shares = sum(row["share"] for row in kernels["rows"] + kernels["idle"])
    shares += kernels["unattributed_ns"] / (kernels["step_ms"] * 1e6)
    assert shares == pytest.approx(1, abs=0.01)


def test_memory_ledger_is_the_peak(document: Any) -> None:
    memory = document["memory"]
    total = sum(row["bytes"] for row in memory["ledger"])
    assert total == pytest.approx(memory["peak_allocated_bytes"], rel=0.01)
    card = sum(row["bytes"] for row in memory["card"])
    assert card == pytest.approx(memory["driver_used_bytes"], rel=0.01)


def test_report_has_timing_operator_and_memory_tables(
    tiny_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(tiny_run.path)]) == 0
    text = capsys.readouterr().out
    titles = ("Trust", "Timing:", "Operators:", "Categories", "Memory ledger", "Largest")
    positions = [text.index(f"\n{title}") for title in titles]
    assert positions == sorted(positions)
    assert "aten::" in text
    assert "export" in text.partition("Artifacts")[2]


def test_every_section_of_a_real_run_prints(
    tiny_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for section in ("timing", "kernels", "memory", "telemetry", "log", "environment"):
        assert main(["show", str(tiny_run.path), "--section", section]) == 0
        assert "\x1b" not in capsys.readouterr().out


def test_trace_opens_as_a_chrome_trace(tiny_run: RunDirectory, tmp_path: Path) -> None:
    (out,) = write_export(tiny_run, "perfetto", tmp_path)
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    (plain,) = write_export(tiny_run, "perfetto", tmp_path / "trace.json")
    assert json.loads(plain.read_bytes())["traceEvents"] == events


def test_tables_of_a_real_run_leave_in_every_form(tiny_run: RunDirectory, tmp_path: Path) -> None:
    record = tiny_run.record()
    for path in write_export(tiny_run, "csv", tmp_path / "tables"):
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        assert rows and all(len(row) == len(header) for row in rows)
    (report,) = write_export(tiny_run, "md", tmp_path / "report.md")
    assert report.read_text().count("\n## ") == len(tables_of(record))
    frame = to_frame(table_named(record, "kernels"))
    assert frame["share"].sum() == pytest.approx(1, abs=0.01)


def test_snapshot_of_a_cpu_run_is_refused_with_the_reason(
    tiny_run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "snapshot.pickle"
    assert main(["export", str(tiny_run.path), "memory-viz", "-o", str(target)]) == 2
    assert "CUDA allocator" in capsys.readouterr().err
    assert not target.exists()


def test_run_compared_with_itself_differs_in_nothing(
    tiny_run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_run.path)
    assert main(["compare", path, path, "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["factors"] == []
    assert comparison["change"] == 0
    assert comparison["verdict"] == "not decidable"  # one process knows no spread
    assert main(["compare", path, path]) == 0
    assert "Nothing differs" in capsys.readouterr().out
