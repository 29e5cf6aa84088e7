"""Sections of the command line and of the screens: those of the registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sysbench.core.export.report_document import inspection_tables
from sysbench.core.inspection.inspection import Inspection
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables import section_tables
from sysbench.core.tables.section_tables import SectionSource, tables_of
from sysbench.core.tables.sections import SECTIONS, Section
from sysbench.core.tables.table import Table
from sysbench.tui.cli import main
from sysbench.tui.commands.report_sections import TreeOptions, section_lines
from sysbench.tui.screens.memory_tab import memory_view_of


def test_help_offers_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    text = "".join(capsys.readouterr().out.split())
    assert f"{{{','.join(SECTIONS)}}}" in text


def add_table(monkeypatch: pytest.MonkeyPatch, section: str, added: Table) -> None:
    """Let a section have one more table, and change nothing else."""
    make = section_tables.make_tables

    def with_added(name: str, source: SectionSource) -> Iterator[Table]:
        yield from make(name, source)
        yield from [added] if name == section else []

    monkeypatch.setattr(section_tables, "make_tables", with_added)


def test_a_new_section_is_shown_and_exported(
    gpu_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Table(name="pulse", title="Something new", columns=("a",), rows=((1,),))
    last = SECTIONS["environment"]
    monkeypatch.delitem(SECTIONS, "environment")
    monkeypatch.setitem(SECTIONS, "pulse", Section())
    monkeypatch.setitem(SECTIONS, "environment", last)
    add_table(monkeypatch, "pulse", added)
    record = gpu_run.record()
    assert [table.name for table in tables_of(record)][-2:] == ["pulse", "environment"]
    lines = section_lines(gpu_run, record, "pulse", 100, 100, TreeOptions())
    assert any("Something new" in text for line in lines for text, _ in line)


def test_a_new_table_of_a_section_reaches_every_reader(
    gpu_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Table(name="added", title="Something added", columns=("a",), rows=((1,),))
    add_table(monkeypatch, "memory", added)
    record = gpu_run.record()
    names = [table.name for table in tables_of(record)]
    assert names.index("largest") < names.index("added") < names.index("telemetry")
    lines = section_lines(gpu_run, record, "memory", 100, 100, TreeOptions())
    assert any("Something added" in text for line in lines for text, _ in line)
    tab = memory_view_of(record)
    assert tab is not None
    assert [*tab.tables][-1] == "added"
    file = Inspection(kind="memory-snapshot", file="a.pickle", file_bytes=1, memory=record.memory)
    assert inspection_tables(file, None)["memory"][-1] == added
