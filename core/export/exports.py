"""Registry of a run's exports. Writers are imported when they are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from sysbench.core.errors import SpecError
from sysbench.core.export.written_files import refuse_existing
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory


class Writer(Protocol):
    """Writes one export to a path and returns the files it made."""

    def __call__(self, run: RunDirectory, path: Path, *, force: bool) -> list[Path]: ...


@dataclass(frozen=True)
class Offer:
    """A line about an export below the report of a finished run, if it applies to the run."""

    label: str
    note: str
    applies: Callable[[RunDirectory, Record], bool]


@dataclass(frozen=True)
class Export:
    """One export format of a run, or also of an imported file.

    Attributes:
        purpose: Help text, without a capital.
        ending: Suffix to the run's id in the default name.
        writer: ``module:function`` in this package, a `Writer`.
        offer: Line below the report of a run, if any.
        is_folder: True if the default path is a folder; the writer then checks each file in it.
        of_files: True if imported files have it, written by `report_document.write_inspection`.
    """

    purpose: str
    ending: str
    writer: str
    offer: Offer | None = None
    is_folder: bool = False
    of_files: bool = False

    def load(self) -> Writer:
        module, _, name = self.writer.partition(":")
        function: Writer = getattr(import_module(f".{module}", __package__), name)
        return function


EXPORTS = {
    "perfetto": Export(
        "the chrome trace, for ui.perfetto.dev; to a name in .json unpacked",
        ".trace.json.gz",
        "written_files:write_trace",
        Offer("trace", "for ui.perfetto.dev", lambda run, record: run.trace_path.is_file()),
    ),
    "memory-viz": Export(
        "the CUDA allocator's snapshot, for pytorch.org/memory_viz",
        ".snapshot.pickle",
        "written_files:write_snapshot",
        Offer(
            "snapshot",
            "for pytorch.org/memory_viz",
            lambda run, record: run.snapshot_path.is_file(),
        ),
    ),
    "nsys": Export(
        "a script with the nsys profile command for this spec, its flags explained",
        ".nsys.sh",
        "nsys_script:write_script",
        Offer("nsys", "a script that profiles this spec", lambda run, record: True),
    ),
    "html": Export(
        "the whole report as one page, for any browser, without network",
        ".html",
        "report_document:write_page",
        of_files=True,
    ),
    "csv": Export(
        "all tables: a folder with a file each; to a name in .csv one tidy file",
        "-csv",
        "report_document:write_tables",
        Offer(
            "tables",
            "or md, json",
            lambda run, record: bool(record.timing or record.kernels or record.memory),
        ),
        is_folder=True,
        of_files=True,
    ),
    "md": Export(
        "the whole report in Markdown", ".md", "report_document:write_markdown", of_files=True
    ),
    "json": Export(
        "the record: every number, with its unit in its key",
        ".json",
        "report_document:write_record",
        of_files=True,
    ),
}
FILE_EXPORTS = tuple(kind for kind, export in EXPORTS.items() if export.of_files)


def default_path(run: RunDirectory, kind: str, folder: Path | None = None) -> Path:
    """Return the default path of an export, relative to the current folder."""
    return (folder or Path()) / f"{run.id}{EXPORTS[kind].ending}"


def write_export(
    run: RunDirectory, kind: str, out: Path | None = None, *, force: bool = False
) -> list[Path]:
    """Write one export and return the files it made.

    ``out`` is a file, or a folder for a file of the default name; ``csv`` writes its files into
    ``out`` unless that ends in ``.csv``.

    Raises:
        SpecError: Unknown kind, or the target exists and ``force`` is false.
        NotFoundError: The run has no such artifact; the message has the reason.
        DamagedFileError: The artifact or the record cannot be read.
    """
    if kind not in EXPORTS:
        raise SpecError("kind", kind, f"one of {', '.join(EXPORTS)}")
    export = EXPORTS[kind]
    path = out or default_path(run, kind)
    if not export.is_folder:
        if path.is_dir():
            path = default_path(run, kind, path)
        refuse_existing([path], force=force)
    return export.load()(run, path, force=force)
