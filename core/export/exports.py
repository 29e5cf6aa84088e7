"""Registry of a run's exports, and those that copy an artifact or write a script for nsys.

Writers are imported when they are called, and write files atomically.
"""

from __future__ import annotations

import gzip
import os
import re
import secrets
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Protocol, cast

import msgspec

from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError
from sysbench.core.formatting import format_bytes
from sysbench.core.machine.children import PROBE, python_child
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import home, make_folder, open_regular
from sysbench.core.tables.cells import literal, literal_json


def refuse_existing(paths: list[Path], *, force: bool) -> None:
    """Raise SpecError if a target exists, unless forced."""
    for path in paths:
        _refuse_special(path)
        if os.path.lexists(path) and not force:  # also true for a broken link
            raise SpecError("output", str(path), "exists already; --force replaces it")


def _refuse_special(path: Path) -> None:
    """Refuse what `replacing` may not replace: folders, devices, pipes, and links of the system,
    such as /dev/stdout, whatever they lead to."""
    if path.is_dir():
        raise SpecError("output", str(path), "is a folder; name a file")
    for link in _links(path):
        folder = os.path.realpath(link.parent)
        if folder == "/dev" or folder.startswith("/proc/"):
            raise SpecError("output", str(path), "is a link of the system and is not replaced")
    if path.exists() and not path.is_file():
        raise SpecError("output", str(path), "is not a regular file and is not replaced")


def _links(path: Path) -> Iterator[Path]:
    """Yield the links that opening a path would follow in its last part."""
    for _ in range(MAX_LINKS):
        if not path.is_symlink():
            return
        yield path
        path = path.parent / os.readlink(path)


MAX_LINKS = 40
"""After as many links Linux refuses a path, too."""


def new_path(stem: str, suffix: str) -> Path:
    """Return an unused path in the current folder, or in the data folder if that is read-only."""
    folder = Path.cwd()
    if not os.access(folder, os.W_OK):
        folder = home()
        make_folder(folder)
    path = folder / f"{stem}{suffix}"
    number = 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    return path


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears at ``path`` once it is complete; a link is replaced, not followed.

    Raises SpecError if the folder cannot be written to, or something else than a file is in the
    way.
    """
    # An unpredictable new name, because the folder may be shared.
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        # One folder at most, so that a typo does not create a tree.
        path.parent.mkdir(exist_ok=True)
        file = part.open("xb")
    except FileExistsError as error:
        reason = f"cannot be written: {path.parent} is not a folder"
        raise SpecError("output", str(path), reason) from error
    except OSError as error:
        raise SpecError("output", str(path), f"cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        _refuse_special(path)  # again: it may have appeared since
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> Path:
    with replacing(path) as file:
        file.write(data)
    return path


def copy(source: IO[bytes], path: Path, most_bytes: int | None = None) -> Path:
    """Copy the rest of an open file; DamagedFileError, and no file, beyond ``most_bytes``."""
    copied = 0
    with replacing(path) as file:
        while piece := source.read(1 << 20):
            copied += len(piece)
            if most_bytes is not None and copied > most_bytes:
                raise DamagedFileError(f"it has more than {format_bytes(most_bytes)}")
            file.write(piece)
    return path


def write_trace(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
    """Copy the compressed trace; a name that ends in ``.json`` gets it uncompressed.

    Raises NotFoundError without a trace, DamagedFileError if it is not gzip'd JSON, lies outside
    the run, or expands too much.
    """
    source = run.trace_path
    if not source.is_file():
        raise NotFoundError(
            f"run {run.id} has no trace: run it again with --passes timing,trace "
            f"(looked for {source})"
        )
    with open_regular(source, inside=run.path) as packed:
        _check_head(packed, source)
        packed.seek(0)
        if out.suffix != ".json":
            return [copy(packed, out)]
        most_bytes = max(SMALL_BYTES, MAX_COMPRESSION_RATIO * os.fstat(packed.fileno()).st_size)
        try:
            with gzip.open(packed) as unpacked:
                return [copy(cast(IO[bytes], unpacked), out, most_bytes)]
        except (EOFError, zlib.error, gzip.BadGzipFile, DamagedFileError) as error:
            raise DamagedFileError(f"{source} is damaged: {error}") from error


SMALL_BYTES = 2**30
MAX_COMPRESSION_RATIO = 100
"""Largest compression ratio of a trace above `SMALL_BYTES`. Real ones reach 30; a gzip bomb has
1000."""


def _check_head(packed: IO[bytes], source: Path) -> None:
    try:
        with gzip.open(packed) as file:
            head = file.read(4096).lstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(f"{source} is not a gzip'd trace: {error}") from error
    if head[:1] not in (b"{", b"["):
        raise DamagedFileError(f"{source} is not a chrome trace: it does not start like JSON")


_PROTOCOL_4 = b"\x80\x04"


def write_snapshot(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
    """Copy the snapshot, a pickle of protocol 4, without loading it.

    Raises NotFoundError without one, DamagedFileError for another pickle, or one outside the run.
    """
    source = run.snapshot_path
    if not source.is_file():
        raise NotFoundError(_why_absent(run))
    with open_regular(source, inside=run.path) as file:
        if file.read(2) != _PROTOCOL_4:
            raise DamagedFileError(f"{source} is not a pickle of protocol 4")
        file.seek(0)
        return [copy(file, out)]


def _why_absent(run: RunDirectory) -> str:
    if run.header().spec.on_cuda:
        return f"run {run.id} has no memory snapshot: run it again with --passes memory"
    return (
        f"run {run.id} was on the CPU, and memory_viz reads snapshots of the CUDA allocator only; "
        "`export RUN csv` has the same ledger, modules and largest allocations as tables"
    )


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
    """One export format of a run, or ``of_files``, also of an imported file.

    The default name is the run's id with ``ending``; if it is a folder, the writer, a
    ``module:function`` of this package, checks each file in it.
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
        "exports:write_trace",
        Offer("trace", "for ui.perfetto.dev", lambda run, record: run.trace_path.is_file()),
    ),
    "memory-viz": Export(
        "the CUDA allocator's snapshot, for pytorch.org/memory_viz",
        ".snapshot.pickle",
        "exports:write_snapshot",
        Offer(
            "snapshot",
            "for pytorch.org/memory_viz",
            lambda run, record: run.snapshot_path.is_file(),
        ),
    ),
    "nsys": Export(
        "a script with the nsys profile command for this spec, its flags explained",
        ".nsys.sh",
        "exports:write_script",
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
    "bundle": Export(
        "one redacted file to send: record, tables, trace",
        ".bundle.zip",
        "bundle_writing:write_bundle",
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
    ``out`` unless that ends in ``.csv``. SpecError for an unknown kind, or an existing target
    without ``force``; NotFoundError or DamagedFileError if the run does not have it.
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


@dataclass(frozen=True, slots=True)
class Flag:
    text: str
    purpose: str

    @property
    def option(self) -> str:
        """The flag's name in ``--help``."""
        return self.text.partition("=")[0]


_ALWAYS = (
    Flag("--sample=none", "no CPU sampling: it slows the host threads that launch kernels"),
    Flag("--cpuctxsw=none", "no context switches: they need privileges and are not used here"),
    Flag("--export=sqlite", "a database beside the report, which newer and older tools can read"),
    Flag("--wait=primary", "end with the program, and not with the processes that it leaves"),
    Flag("--force-overwrite=true", "replace the report of an earlier call"),
)
_ON_CUDA = (
    Flag(
        "--trace=cuda,nvtx,osrt,cublas,cudnn",
        "kernels and copies, our phase and module ranges, waits of the host, library calls",
    ),
    Flag("--capture-range=cudaProfilerApi", "record the measured steps only, not the warm-up"),
    Flag("--capture-range-end=stop", "end the recording with them; the default kills the program"),
    Flag("--cuda-graph-trace=node", "kernels inside CUDA graphs one by one, not as one block"),
    Flag("--cuda-memory-usage=true", "device memory over time"),
)
_ON_CPU = (Flag("--trace=nvtx,osrt", "our phase and module ranges, and waits of the host"),)
_NO_RANGE_ON_CPU = "# The CPU has no profiler API to mark the measured steps: all is recorded."


def write_script(run: RunDirectory, out: Path, *, force: bool) -> list[Path]:
    """Write the script and the spec file that it reads."""
    header = run.header()
    spec = header.spec
    spec_path = out.with_suffix(".spec.json")
    refuse_existing([spec_path], force=force)
    write(spec_path, literal_json(msgspec.json.encode(spec)))
    write(out, script(run.id, spec, spec_path, header.python).encode())
    out.chmod(out.stat().st_mode | 0o111)
    return [out, spec_path]


def script(run_id: str, spec: RunSpec, spec_path: Path, python: str = "") -> str:
    """Return the text of the script; ``python`` runs the workers, empty for this program's."""
    flags, left_out, source = flags_for(spec, installed_options())
    flags = [*flags, Flag(f"--output={run_id}", "the report's name; .nsys-rep is added")]
    target = [
        *python_child("sysbench.core.worker", python=python),
        *("--spec", str(spec_path.resolve()), "--pass", "timing", "--capture"),
    ]
    one_line = shlex.join(["nsys", "profile", *(flag.text for flag in flags), *target])
    lines = [
        "#!/usr/bin/env bash",
        f"# Nsight Systems over the timing pass of {literal(run_id)}: same spec, fresh weights.",
        f"# Flags checked against {source}.",
        *([] if spec.on_cuda else [_NO_RANGE_ON_CPU]),
        "#",
        "# In one line:",
        f"#   {literal(one_line)}",
        "#",
        "# A step under nsys is not a timing: compare it with the run's bare step.",
        "set -eu",
        *([f"export PYTHONPATH={_quoted(str(PROBE))}"] if python else []),
        "flags=(",
    ]
    for flag in flags:
        lines += [f"  # {flag.purpose}", f"  {_quoted(flag.text)}"]
    lines += [f"  # left out, this nsys has no {flag.option}: {flag.purpose}" for flag in left_out]
    command = " ".join(map(_quoted, target))
    lines += [")", f'exec nsys profile "${{flags[@]}}" {command}', ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Quote a word for bash, with control characters as escapes of their bytes."""
    if text.isprintable():
        return shlex.quote(text)
    parts = (
        c if c.isprintable() and c not in "\\'" else "".join(f"\\x{b:02x}" for b in os.fsencode(c))
        for c in text
    )
    return f"$'{''.join(parts)}'"


def flags_for(spec: RunSpec, options: frozenset[str] | None) -> tuple[list[Flag], list[Flag], str]:
    """Return the flags to use, those missing in the installed nsys, and where its options come
    from."""
    wanted = [*(_ON_CUDA if spec.on_cuda else _ON_CPU), *_ALWAYS]
    if options is None:
        return wanted, [], "the options of nsys 2023.4 and later; no nsys here to ask"
    used = [flag for flag in wanted if flag.option in options]
    return used, [flag for flag in wanted if flag not in used], "`nsys profile --help` of this box"


def installed_options() -> frozenset[str] | None:
    """Return the long options of the installed nsys; None without one."""
    program = shutil.which("nsys")
    if program is None:
        return None
    try:
        text = subprocess.run(
            [program, "profile", "--help"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return frozenset(re.findall(r"--[a-z][a-z0-9-]+", text)) or None
