"""The registry of sections: complete, light, and the same for everything that reads it."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from sysbench.core.inspection.inspection import Inspection
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.tables.section_tables import (
    READING_ORDER,
    SectionSource,
    make_tables,
    tables_in,
    tables_of,
)
from sysbench.core.tables.sections import INSPECTED, SECTIONS


def test_a_section_is_about_a_field_of_the_record() -> None:
    blocks = {section.block for section in SECTIONS.values()} - {""}
    assert blocks <= set(Record.__struct_fields__)
    assert all(hasattr(Inspection, SECTIONS[name].block) for name in INSPECTED)


def test_every_table_of_a_record_belongs_to_one_section(gpu_run: RunDirectory) -> None:
    record = gpu_run.record()
    made = [
        table.name for name in SECTIONS for table in make_tables(name, SectionSource(record=record))
    ]
    assert len(made) == len(set(made))
    names = [table.name for table in tables_of(record)]
    assert set(names) - set(made) == {"spec", "tree"}  # no tree was given above


def test_the_reading_order_names_sections_and_tables_that_exist(gpu_run: RunDirectory) -> None:
    names = {table.name for table in tables_of(gpu_run.record())}
    assert set(READING_ORDER) <= names | set(SECTIONS)
    assert READING_ORDER[-1] == [*SECTIONS][-1] == "environment"


@pytest.mark.parametrize("name", SECTIONS)
def test_a_record_without_blocks_has_no_tables_of_them(name: str, gpu_run: RunDirectory) -> None:
    record = gpu_run.record()
    blocks = {section.block: None for section in SECTIONS.values() if section.block}
    empty = msgspec.structs.replace(record, passes=[], findings=[], environment={}, **blocks)
    assert tables_in(name, SectionSource(record=empty)) == []


def test_the_names_load_nothing_heavy() -> None:
    code = (
        "import sys, sysbench.core.tables.sections\n"
        "print(sorted({'numpy', 'pandas', 'torch', 'psutil', 'rich'} & set(sys.modules)))\n"
    )
    shown = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"
