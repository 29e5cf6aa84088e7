"""Every export of a run: its kind, its purpose, and the function that writes it."""

from __future__ import annotations

from pathlib import Path

from ..analysis.kernels.tree import kernel_tree
from ..errors import SpecError
from ..record.record import Record, encode_record
from ..runs.artifacts import layer_rows
from ..runs.builder import settled_record
from ..runs.directory import RunDirectory
from ..runs.related import other_steps, worth_of
from ..tables.record import tables_of
from .artifacts import write_snapshot, write_trace
from .files import refuse_existing, write
from .nsys_script import spec_beside, write_script
from .page.run_page import run_page
from .text_formats import record_as_markdown, table_as_csv, tables_as_tidy_csv

EXPORTS = {
    "perfetto": "the chrome trace, for ui.perfetto.dev; to a name in .json unpacked",
    "memory-viz": "the CUDA allocator's snapshot, for pytorch.org/memory_viz",
    "nsys": "a script with the nsys profile command for this spec, its flags explained",
    "html": "the whole report as one page, for any browser, without network",
    "csv": "all tables: a folder with a file each; to a name in .csv one tidy file",
    "md": "the whole report in Markdown",
    "json": "the record: every number, with its unit in its key",
}

__all__ = ["EXPORTS", "default_path", "write_export"]

_ENDINGS = {
    "perfetto": ".trace.json.gz",
    "memory-viz": ".snapshot.pickle",
    "nsys": ".nsys.sh",
    "csv": "-csv",
    "md": ".md",
    "html": ".html",
    "json": ".json",
}


def default_path(run: RunDirectory, kind: str, folder: Path | None = None) -> Path:
    """The name an export gets when none is given; relative to the current folder."""
    return (folder or Path()) / f"{run.id}{_ENDINGS[kind]}"


def write_export(
    run: RunDirectory, kind: str, out: Path | None = None, *, force: bool = False
) -> list[Path]:
    """Write one export and return the files it made.

    ``out`` is a file, or a folder that gets a file of the default name; ``csv`` takes it as
    the folder for its files unless it ends in ``.csv``.

    Raises:
        SpecError: An unknown kind, or a target that exists already while ``force`` is false.
        NotFoundError: The run has no such artifact; the message says why.
        DamagedFileError: The artifact or the record cannot be read.
    """
    if kind not in EXPORTS:
        raise SpecError("kind", kind, f"one of {', '.join(EXPORTS)}")
    path = out or default_path(run, kind)
    if kind == "csv":
        return _write_tables(settled_record(run), path, force=force)
    if path.is_dir():
        path = default_path(run, kind, path)
    refuse_existing([path, *([spec_beside(path)] if kind == "nsys" else [])], force=force)
    match kind:
        case "perfetto":
            return write_trace(run, path)
        case "memory-viz":
            return write_snapshot(run, path)
        case "nsys":
            return write_script(run, path)
        case "md":
            record = settled_record(run)
            return [
                write(
                    path, record_as_markdown(record, other_steps(record), worth_of(record)).encode()
                )
            ]
        case "html":
            return [write(path, run_as_page(run).encode())]
        case _:
            return [write(path, encode_record(settled_record(run)))]


def run_as_page(run: RunDirectory) -> str:
    """The report as one HTML file.

    Raises:
        DamagedFileError: The record, or the trace pass's table, cannot be read.
    """
    record = settled_record(run)
    kernels = layer_rows(run, record)
    tree = kernel_tree(kernels, record.memory) if kernels else None
    return run_page(record, tables_of(record, other_steps(record), worth_of(record)), tree)


def _write_tables(record: Record, path: Path, *, force: bool) -> list[Path]:
    tables = tables_of(record, other_steps(record), worth_of(record))
    if path.suffix == ".csv":
        refuse_existing([path], force=force)
        return [write(path, tables_as_tidy_csv(tables))]
    targets = {path / f"{table.name}.csv": table for table in tables}
    refuse_existing(list(targets), force=force)
    return [write(target, table_as_csv(table)) for target, table in targets.items()]
