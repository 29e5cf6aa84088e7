"""The file of an export: layouts of several versions, its rows counted, nothing written to it."""

from __future__ import annotations

import runpy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.errors import DamagedFileError, NotFoundError
from sysbench.core.trace.nsys_events import ROWS_AT_ONCE
from sysbench.core.trace.nsys_export import read_contents, read_export

BUILD = runpy.run_path(str(Path(__file__).parents[2] / "nsys_double" / "build.py"))
MAIN = BUILD["MAIN"]


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    return BUILD["ExportWriter"](tmp_path / "export.sqlite")


def test_later_schema_is_read_and_reported(tmp_path: Path) -> None:
    writer = BUILD["ExportWriter"](tmp_path / "next.sqlite", version="4.0.1")
    writer.launch("k", 0, 10, 20)
    export = read_export(writer.write())
    assert len(export.kernel_summary) == 1
    assert "4.0.1" in export.missing["schema"]


def test_columns_of_an_earlier_layout_may_be_absent(writer: Any) -> None:
    writer.range("step", 0, 100)
    writer.launch("k", 10, 200, 210)
    path = writer.write()
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN endGlobalTid")
        database.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN domainId")
        database.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN textId")
    (row,) = read_export(path).nvtx.rows
    assert (row.range, row.projected_ns) == ("step", 10)


def test_an_index_does_not_change_what_is_read(writer: Any) -> None:
    for index, name in enumerate("cab"):
        writer.range(name, 100 * index, 100 * index + 50)
        writer.launch("k", 100 * index + 10, 1000, 1000 + index)
    path = writer.write()
    plain = read_export(path)
    with sqlite3.connect(path) as database:
        database.execute("CREATE INDEX by_text ON NVTX_EVENTS(text)")
        database.execute("CREATE INDEX by_id ON NVTX_EVENTS(textId)")
    assert read_export(path) == plain


def calls(path: Path, count: int) -> None:
    """Add calls that launched nothing."""
    with sqlite3.connect(path) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT ?) "
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start, end, eventClass, globalTid, correlationId, nameId, returnValue) "
            "SELECT 1000 + i, 1001 + i, 0, ?, 1000 + i, 1, 0 FROM n",
            (count, MAIN),
        )


def test_progress_counts_all_rows(writer: Any) -> None:
    writer.range("step", 0, 100)
    writer.launch("k", 10, 200, 210)
    path = writer.write()
    calls(path, 2 * ROWS_AT_ONCE)
    reports: list[tuple[int, int]] = []
    read_contents(path, lambda done, total: reports.append((done, total)))
    # A kernel, the calls, a range, and once more its text.
    rows = 1 + (1 + 2 * ROWS_AT_ONCE) + 1 + 1
    assert {total for _, total in reports} == {rows}
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] == rows and len(reports) >= 5


def test_a_table_without_numbers_of_rows_is_read_all_the_same(writer: Any) -> None:
    writer.launch("k", 10, 200, 210)
    path = writer.write()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (start PRIMARY KEY, eventType) WITHOUT ROWID")
    reports: list[tuple[int, int]] = []
    contents = read_contents(path, lambda done, total: reports.append((done, total)))
    assert len(contents.events.work) == 1 and reports[-1] == (2, 2)


def test_a_name_that_is_not_there_is_said_not_dropped(writer: Any) -> None:
    writer.launch("k", 0, 10, 20)
    path = writer.write()
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM StringIds")
    (row,) = read_export(path).kernel_summary
    assert row.name.startswith("[no name, string ")


def test_nothing_is_written_beside_the_file_or_into_it(writer: Any) -> None:
    writer.launch("k", 0, 10, 20)
    path = writer.write()
    path.chmod(0o444)
    before = path.read_bytes()
    read_export(path)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_files_that_are_no_exports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="No such file"):
        read_export(tmp_path / "absent.sqlite")
    with pytest.raises(NotFoundError, match="directory"):
        read_export(tmp_path)
    text = tmp_path / "text.sqlite"
    text.write_text("no database " * 100)
    with pytest.raises(DamagedFileError, match="not a database"):
        read_export(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(DamagedFileError, match="nsys did not export it"):
        read_export(other)


def test_an_export_without_a_single_event_is_one(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.commit()
    export = read_export(path)
    assert "the export has no kernels" in export.missing["kernels"]
    assert (export.kernels.rows, export.api_summary) == ([], [])
