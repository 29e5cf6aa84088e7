"""Exports that were damaged, or made to do harm: refused in our own words, or read."""

from __future__ import annotations

import json
import runpy
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import DamagedFileError
from sysbench.core.trace.nsys_export import read_export
from tests.drawn import seed

DOUBLE = Path(__file__).parents[2] / "nsys_double"
BUILD = runpy.run_path(str(DOUBLE / "build.py"))
SPOILT = 200
PATIENCE_SECONDS = 300
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    writer = BUILD["ExportWriter"](tmp_path / "export.sqlite")
    writer.range("step", 0, 100)
    for at in range(0, 100, 10):
        writer.launch("k", at, 200 + at, 205 + at)
    return Path(writer.write())


def change(export: Path, script: str) -> None:
    database = sqlite3.connect(export)
    database.executescript(script)
    database.commit()
    database.close()


def test_spoilt_exports_are_refused_or_read_in_bounded_memory(tmp_path: Path) -> None:
    # In a process of its own, which may take half a GiB.
    done = subprocess.run(
        [sys.executable, "-P", str(DOUBLE / "spoil.py"), str(tmp_path), str(SPOILT), seed()],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["untyped"] == []
    assert found["read"] + found["refused"] == SPOILT
    assert min(found["read"], found["refused"]) > SPOILT // 10


def test_an_endless_view_in_the_place_of_a_table_is_not_looked_at(export: Path) -> None:
    change(export, f"DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS {ENDLESS}")
    read = read_export(export)
    assert (read.nvtx.ranges, len(read.kernel_summary)) == (0, 1)


def test_a_computed_column_counts_as_absent(export: Path) -> None:
    change(
        export,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO other;"
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN start AS (length(zeroblob(999999)))",
    )
    with pytest.raises(DamagedFileError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column start"):
        read_export(export)


@pytest.mark.parametrize("value", ["'soon'", "x'00'", "9e99"])
def test_a_time_that_is_no_integer_is_refused(export: Path, value: str) -> None:
    change(export, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = {value} WHERE rowid = 3")
    with pytest.raises(DamagedFileError, match="KERNEL has a non-integer value"):
        read_export(export)


def test_times_that_no_recording_has_are_refused(export: Path) -> None:
    change(export, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 9223372036854775807")
    with pytest.raises(DamagedFileError, match="its times span"):
        read_export(export)


def test_more_devices_than_a_machine_has_are_refused(export: Path) -> None:
    rows = ", ".join(f"({at}, {at}, {at}, 1, 7, 1, 1)" for at in range(1100))
    columns = "start, end, deviceId, contextId, streamId, demangledName, shortName"
    change(export, f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES {rows}")
    with pytest.raises(DamagedFileError, match="on 1100 devices"):
        read_export(export)


def test_names_are_kept_as_they_are(tmp_path: Path) -> None:
    hostile = 'void k<[bold]"x"[/]>\x1b[31m\n\x00'
    writer = BUILD["ExportWriter"](tmp_path / "names.sqlite")
    writer.range(hostile, 0, 100)
    writer.launch(hostile, 10, 20, 30, short=hostile)
    read = read_export(writer.write())
    assert [row.name for row in read.kernel_summary] == [hostile]
    assert [row.range for row in read.nvtx.rows] == [hostile]
    assert [row.name for row in read.folded.rows] == [hostile]


def test_text_that_is_not_utf8_is_made_readable(export: Path) -> None:
    change(export, "UPDATE NVTX_EVENTS SET text = CAST(x'66ff67' AS TEXT)")
    assert [row.range for row in read_export(export).nvtx.rows] == ["f\N{REPLACEMENT CHARACTER}g"]
