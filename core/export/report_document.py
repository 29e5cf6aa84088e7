"""Reports of runs, imported files and comparisons as files, or served on loopback."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

from sysbench.core.compare.comparison import Comparison
from sysbench.core.compare.rounds import inside
from sysbench.core.errors import DamagedFileError, SpecError
from sysbench.core.export.exports import EXPORTS, FILE_EXPORTS, refuse_existing, write
from sysbench.core.export.page_document import (
    document,
    interval_chart,
    memory_chart,
    section,
    steps_chart,
    table,
    tag,
    text,
    with_code_tags,
)
from sysbench.core.export.page_run_page import file_page, run_figures, run_page
from sysbench.core.export.text_formats import (
    VERDICT_MARKS,
    escaped,
    findings_as_markdown,
    overview_as_markdown,
    record_as_markdown,
    report_tables,
    table_as_csv,
    table_as_markdown,
    tables_as_tidy_csv,
    with_code,
)
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.entries import InspectionEntry
from sysbench.core.inspection.inspection import Inspection, encode_inspection
from sysbench.core.record.record import Record, encode_record
from sysbench.core.runs.artifacts import layer_rows
from sysbench.core.runs.related import compile_break_even, runs_with_other_steps
from sysbench.core.runs.run_directory import RunDirectory, load_record
from sysbench.core.storage import open_regular
from sysbench.core.tables.cells import known_columns, literal_json
from sysbench.core.tables.comparison_passages import Passage, verdict_text
from sysbench.core.tables.context import headline
from sysbench.core.tables.ranks_tables import ranks_table
from sysbench.core.tables.section_tables import MIN_TREE_SHARE, SectionSource, tables_in, tables_of
from sysbench.core.tables.sections import INSPECTED
from sysbench.core.tables.table import Table, select
from sysbench.core.trace.module_tree import TreeNode, from_share, kernel_tree


def run_as_page(run: RunDirectory) -> str:
    """Return the report as one HTML file; DamagedFileError if a table cannot be read."""
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
    """Return non-empty tables by section; ``tree`` is of the kernels by layer, None without."""
    source = SectionSource(record=inspection.as_record(), tree=tree)
    sections = {name: tables_in(name, source) for name in FILE_ORDER}
    if inspection.ranks:
        sections["ranks"] = [ranks_table(inspection.ranks)]
    return {name: tables for name, tables in sections.items() if tables}


def inspection_as_markdown(inspection: Inspection, tables: Sequence[Table]) -> str:
    """Return a complete report: the file, findings, tables."""
    return "\n".join(_inspection_lines(inspection, tables)) + "\n"


def _inspection_lines(inspection: Inspection, tables: Sequence[Table]) -> Iterator[str]:
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

    ``out`` is a file, or a folder for one of the default name; ``csv`` writes one per table into it
    unless it ends in ``.csv``. SpecError for an unknown kind, or an existing target without
    ``force``.
    """
    if kind not in FILE_EXPORTS:
        raise SpecError("kind", kind, f"of a file one of {', '.join(FILE_EXPORTS)}")
    record = inspection.as_record()
    layers = layer_rows(entry.as_run, record)
    tree = kernel_tree(layers, record.memory) if layers else None
    short = from_share(tree, MIN_TREE_SHARE) if tree else None
    tables = [table for group in inspection_tables(inspection, short).values() for table in group]
    # The name of a file may contain that of a host.
    stem = inspection.kind if kind == "bundle" else Path(inspection.file).name
    default = f"{stem}{EXPORTS[kind].ending}"
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
        case "bundle":
            # lazy: it loads numpy, and other reports do without
            from sysbench.core.export.bundle_writing import inspection_as_bundle

            data = inspection_as_bundle(entry, inspection)
        case _:
            data = literal_json(encode_inspection(inspection))
    return [write(path, data)]


VERDICT_CLASSES = {"faster": "good", "slower": "bad"}
"""Classes of the page for verdicts; only a difference has a colour."""


def comparison_as_markdown(comparison: Comparison, passages: Iterable[Passage]) -> str:
    """Write the verdict, the two sides, then the passages."""
    return "\n".join(_comparison_lines(comparison, passages)) + "\n"


def _comparison_lines(comparison: Comparison, passages: Iterable[Passage]) -> Iterator[str]:
    found = verdict_text(comparison)
    mark = "" if comparison.of_files else f"{VERDICT_MARKS[comparison.verdict]} Step time: "
    yield f"### {mark}{escaped(found.headline)}"
    yield ""
    yield from (f"- {with_code(reason)}" for reason in found.reasons)
    yield f"- A: {escaped(comparison.a)}"
    yield f"- B: {escaped(comparison.b)}"
    for passage in passages:
        yield ""
        yield f"## {escaped(passage.title)}"
        for sentence in (*passage.sentences, *passage.notes):
            yield ""
            yield with_code(sentence)
        if passage.table is not None:
            yield ""
            yield table_as_markdown(passage.table)


def comparison_page(
    comparison: Comparison, a: Record, b: Record, passages: Iterable[Passage]
) -> str:
    """Make a self-contained page: the verdict, the sides, charts, then the passages."""
    found = verdict_text(comparison)
    look = "" if comparison.of_files else VERDICT_CLASSES.get(comparison.verdict, "")
    chart = "" if comparison.of_files else interval_chart(comparison.step)
    head = "".join(
        (
            tag("h1", text(f"{found.glyph} {found.headline}"), class_=f"verdict {look}".strip()),
            *(tag("p", with_code_tags(reason), class_="quiet") for reason in found.reasons),
            chart,
            tag("div", _side("A", a), _side("B", b), class_="sides"),
        )
    )
    title = f"{found.headline} · sysbench-tui"
    sections = {**_passages(passages), **dict(_charts(a, b))}
    return document(title, head, sections, f"A {comparison.a}, B {comparison.b}: {found.headline}")


def _side(letter: str, record: Record) -> str:
    first, *further = headline(record) if record.spec else [record.id]
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.created_ns / 1e9))
    figures = " · ".join(run_figures(record))
    lines = [*further[:2], *([record.id, f"started {stamp}"] if record.spec else [])]
    return tag(
        "div",
        tag("p", tag("b", letter), " ", tag("b", text(first))),
        tag("p", text(figures)) if figures else "",
        *(tag("p", text(line), class_="quiet") for line in lines),
    )


def _passages(passages: Iterable[Passage]) -> dict[str, str]:
    sections: dict[str, str] = {}
    for passage in passages:
        inside = [
            *(tag("p", with_code_tags(sentence)) for sentence in passage.sentences),
            *(tag("p", text(note), class_="quiet") for note in passage.notes),
        ]
        if passage.table is not None:
            shown = select(passage.table, known_columns(passage.table))
            inside.append(table(shown, passage.perturbed))
        sections[passage.name] = section(passage.title, *inside, anchor=passage.name)
    return sections


def _charts(a: Record, b: Record) -> Iterator[tuple[str, str]]:
    if a.timing and b.timing:
        charts = [
            _labelled(letter, steps_chart(timing.samples_ms, inside(timing).median_ms))
            for letter, timing in (("A", a.timing), ("B", b.timing))
        ]
        if any(charts):
            title = "Steps of each side, and their median"
            yield "step-times", section(title, *charts, anchor="step-times")
    if a.memory and b.memory:
        charts = [
            _labelled(letter, memory_chart(memory.timeline))
            for letter, memory in (("A", a.memory), ("B", b.memory))
        ]
        if any(charts):
            yield "timeline", section("Live bytes of each side", *charts, anchor="timeline")


def _labelled(letter: str, chart: str) -> str:
    return tag("p", tag("b", letter)) + chart if chart else ""


LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
"""Accepted host names, at any port because a tunnel has its own. Rejecting others prevents DNS
rebinding."""
SILENT_SECONDS = 30.0
"""Silence after which a client is dropped, because each holds a thread."""


class PageServer:
    """Serves one run until `close`, on loopback and below the token only.

    Attributes:
        url: Address for a browser on this machine, or through a tunnel of the port.
    """

    def __init__(self, run: RunDirectory, port: int = 0) -> None:
        """Build the page and open the port; 0 picks a free one. Raises SpecError if it is not
        available."""
        token = secrets.token_urlsafe(16)
        base = f"/{token}/"
        served: dict[str, bytes | Path] = {
            base: run_as_page(run).encode(),
            f"{base}record.json": run.record_path,
            f"{base}trace.json.gz": run.trace_path,
            f"{base}snapshot.pickle": run.snapshot_path,
        }
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(served, run.path))
        except (OSError, OverflowError) as error:
            raise SpecError("port", port, f"a port that is free here: {error}") from error
        self.port: int = self._server.server_address[1]
        self.url = f"http://{LOOPBACK}:{self.port}{base}"

    def serve(self) -> None:
        """Answer requests until another thread calls `close`."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(served: Mapping[str, bytes | Path], inside: Path) -> type[BaseHTTPRequestHandler]:
    """Serve pages as they are, and files to download that lie inside a folder, by their path."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "sysbench-tui"
        sys_version = ""
        timeout = SILENT_SECONDS

        def handle(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                super().handle()

        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            elif (content := served.get(self.path)) is None:
                self.send_error(HTTPStatus.NOT_FOUND)
            elif isinstance(content, bytes):
                self._send("text/html; charset=utf-8", io.BytesIO(content))
            else:
                try:
                    # A run of another user may contain links to private files, also later.
                    file = open_regular(content, inside)
                except (OSError, DamagedFileError):
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                with file:
                    self._send("application/octet-stream", file)

        def _send(self, kind: str, file: IO[bytes]) -> None:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: every path contains the token."""

    return Handler
