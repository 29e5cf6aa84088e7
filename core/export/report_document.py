"""Reports as files, of runs and of imported files: HTML, tables as CSV, Markdown, JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sysbench.core.errors import SpecError
from sysbench.core.export.exports import FILE_EXPORTS
from sysbench.core.export.page_run_page import file_page, run_page
from sysbench.core.export.text_formats import (
    escaped,
    findings_as_markdown,
    overview_as_markdown,
    record_as_markdown,
    report_tables,
    table_as_csv,
    tables_as_tidy_csv,
)
from sysbench.core.export.written_files import refuse_existing, write
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.entries import InspectionEntry
from sysbench.core.inspection.inspection import Inspection, encode_inspection
from sysbench.core.record.record import Record, encode_record
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.related import compile_break_even, runs_with_other_steps
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.stored_records import load_record
from sysbench.core.tables.cells import literal_json
from sysbench.core.tables.ranks_tables import ranks_table
from sysbench.core.tables.section_tables import MIN_TREE_SHARE, SectionSource, tables_in, tables_of
from sysbench.core.tables.sections import INSPECTED
from sysbench.core.tables.table import Table
from sysbench.core.trace.module_tree import TreeNode, from_share, kernel_tree


def run_as_page(run: RunDirectory) -> str:
    """Return the report as one HTML file.

    Raises:
        DamagedFileError: The record or the trace table cannot be read.
    """
    record = load_record(run)
    kernels = layer_rows(run, record)
    tree = kernel_tree(kernels, record.memory) if kernels else None
    return run_page(record, run_tables(record), tree)


def run_tables(record: Record) -> list[Table]:
    """Return every table of a run, in reading order."""
    return tables_of(record, runs_with_other_steps(record), compile_break_even(record))


def write_page(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    return [write(path, run_as_page(run).encode())]


def write_tables(run: RunDirectory, path: Path, *, force: bool) -> list[Path]:
    return write_csv(run_tables(load_record(run)), path, force=force)


def write_csv(tables: Sequence[Table], path: Path, *, force: bool) -> list[Path]:
    """Write one CSV file per table into a folder, or one tidy file to a name in ``.csv``."""
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
    return [write(path, literal_json(encode_record(load_record(run))))]


FILE_ORDER = tuple(dict.fromkeys(("findings", "kernels", "roofline", *INSPECTED)))
"""The tree is long and comes after both."""


def inspection_tables(inspection: Inspection, tree: TreeNode | None) -> dict[str, list[Table]]:
    """Return non-empty tables by section.

    Args:
        tree: Of the kernels by layer; None without kernels.
    """
    source = SectionSource(record=inspection.as_record(), tree=tree)
    sections = {name: tables_in(name, source) for name in FILE_ORDER}
    if inspection.ranks:
        sections["ranks"] = [ranks_table(inspection.ranks)]
    return {name: tables for name, tables in sections.items() if tables}


def inspection_as_markdown(inspection: Inspection, tables: Sequence[Table]) -> str:
    """Return a complete report: the file, findings, tables."""
    return "\n".join(_markdown(inspection, tables)) + "\n"


def _markdown(inspection: Inspection, tables: Sequence[Table]) -> Iterator[str]:
    yield f"# {escaped(Path(inspection.file).name)}"
    yield ""
    yield f"- {escaped(_about(inspection))}"
    yield ""
    yield from overview_as_markdown(inspection.as_record())
    yield from findings_as_markdown(inspection.findings)
    yield from report_tables(tables, inspection.as_record())


def _about(inspection: Inspection) -> str:
    words = [inspection.kind.replace("-", " "), format_bytes(inspection.file_bytes)]
    return " · ".join([*words, *([inspection.device] if inspection.device else [])])


def write_inspection(
    entry: InspectionEntry,
    inspection: Inspection,
    kind: str,
    out: Path | None = None,
    *,
    force: bool = False,
) -> list[Path]:
    """Write one export of an imported file and return the files it made.

    Args:
        entry: Holds the rows by layer.
        out: A file, or a folder for a file of the default name; ``csv`` writes one file per table
            into it unless it ends in ``.csv``.

    Raises:
        SpecError: Unknown kind, or the target exists and ``force`` is false.
    """
    if kind not in FILE_EXPORTS:
        raise SpecError("kind", kind, f"of a file one of {', '.join(FILE_EXPORTS)}")
    record = inspection.as_record()
    layers = layer_rows(entry.as_run, record)
    tree = kernel_tree(layers, record.memory) if layers else None
    short = from_share(tree, MIN_TREE_SHARE) if tree else None
    tables = [table for group in inspection_tables(inspection, short).values() for table in group]
    ending = "-csv" if kind == "csv" else f".{kind}"
    default = f"{Path(inspection.file).name}{ending}"
    path = out or Path(default)
    if kind == "csv" and path.suffix != ".csv":
        return write_csv(tables, path, force=force)
    if path.is_dir():
        path = path / default
    refuse_existing([path], force=force)
    match kind:
        case "html":
            title, about = Path(inspection.file).name, _about(inspection)
            data = file_page(title, about, record, tables, tree).encode()
        case "md":
            data = inspection_as_markdown(inspection, tables).encode()
        case "csv":
            data = tables_as_tidy_csv(tables)
        case _:
            data = literal_json(encode_inspection(inspection))
    return [write(path, data)]
