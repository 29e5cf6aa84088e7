"""The report of a run as files: an HTML page, tables as CSV, Markdown, the record as JSON."""

from __future__ import annotations

from pathlib import Path

from sysbench.core.export.page_run_page import run_page
from sysbench.core.export.text_formats import record_as_markdown, table_as_csv, tables_as_tidy_csv
from sysbench.core.export.written_files import refuse_existing, write
from sysbench.core.record.record import encode_record
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.related import compile_break_even, runs_with_other_steps
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.stored_records import load_record
from sysbench.core.tables.sections import tables_of
from sysbench.core.trace.module_tree import kernel_tree


def run_as_page(run: RunDirectory) -> str:
    """Return the report as one HTML file.

    Raises:
        DamagedFileError: The record or the trace table cannot be read.
    """
    record = load_record(run)
    kernels = layer_rows(run, record)
    tree = kernel_tree(kernels, record.memory) if kernels else None
    return run_page(
        record, tables_of(record, runs_with_other_steps(record), compile_break_even(record)), tree
    )


def write_page(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    return [write(path, run_as_page(run).encode())]


def write_tables(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    """Write one CSV file per table into a folder, or one tidy file to a name in ``.csv``."""
    record = load_record(run)
    tables = tables_of(record, runs_with_other_steps(record), compile_break_even(record))
    if path.suffix == ".csv":
        refuse_existing([path], force=force)
        return [write(path, tables_as_tidy_csv(tables))]
    targets = {path / f"{table.name}.csv": table for table in tables}
    refuse_existing(list(targets), force=force)
    return [write(target, table_as_csv(table)) for target, table in targets.items()]


def write_markdown(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    record = load_record(run)
    text = record_as_markdown(record, runs_with_other_steps(record), compile_break_even(record))
    return [write(path, text.encode())]


def write_record(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    return [write(path, encode_record(load_record(run)))]
