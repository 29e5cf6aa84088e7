"""Attacks by files: large ones, small ones that grow, and none at all on a full disk."""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sysbench.core.runs.run_directory import create_run, list_runs
from sysbench.core.runs.supervisor import supervise
from tests.validation.attacks.common import (
    SPEC,
    Rows,
    checked,
    command,
    home,
    mib,
    peak_bytes,
    program,
)


def write_pieces(path: Path, piece: bytes, count: int, head: bytes = b"", end: bytes = b"") -> None:
    """Write a large file without holding it: a process begins with the memory of its parent."""
    with path.open("wb") as file:
        file.write(head)
        for _ in range(count):
            file.write(piece)
        file.write(end)


def logs() -> Rows:
    """Logs of 100 MB, with lines and without."""
    run, rows = create_run(SPEC, ["timing"]), []
    for _ in supervise(run):
        pass
    small = peak_bytes("show", "last", "--section", "log")
    for name, line in (("of 100 MB", b"x" * 99 + b"\n"), ("of 100 MB in one line", b"x" * 100)):
        write_pieces(run.log_path("timing"), line * 10_000, 100)
        run.record_path.unlink()
        grown = {
            "show": peak_bytes("show", "last"),
            "show --section log": peak_bytes("show", "last", "--section", "log"),
            "the same --json": peak_bytes("show", "last", "--section", "log", "--json"),
        }
        assert max(grown.values()) - small < 200 * 2**20, grown
        figures = ", ".join(f"{what} +{mib(max(0, peak - small))}" for what, peak in grown.items())
        rows.append(
            (f"log {name}", "its text, piece by piece; in JSON its last 16 MiB", "", figures)
        )
    return rows


def bombs() -> Rows:
    """Small files that grow: JSON in memory, gzip on the disk."""
    run = create_run(SPEC, ["timing", "trace"])
    for _ in supervise(run):
        pass
    usual = peak_bytes("list")
    write_pieces(run.record_path, b"[]," * 800_000, 100, b'{"environment":{"a":[', b"0]}}")
    json_bytes = run.record_path.stat().st_size
    grown = peak_bytes("list") - usual
    assert grown < 2 * json_bytes, grown
    run.record_path.unlink()
    with gzip.open(run.trace_path, "wb", compresslevel=9) as file:
        file.write(b"[")
        for _ in range(1100):
            file.write(b" " * 2**20)
    target = run.path / "unpacked.json"
    command("export", "last", "perfetto", "-o", str(target), code=1)
    assert not target.exists()
    inspected = peak_bytes("inspect", str(run.trace_path), code=2) - usual
    packed = mib(run.trace_path.stat().st_size)
    return [
        (
            f"a record of {mib(json_bytes)} that would take 7 GiB decoded",
            "the list: the record is refused before it is decoded",
            "",
            f"+{mib(grown)} while listed",
        ),
        (
            f"a trace of {packed} that unpacks to 1100 MiB",
            "the disk: `export perfetto -o x.json` ends and leaves nothing",
            "",
            f"inspect +{mib(max(0, inspected))}",
        ),
    ]


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="attack-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


LEFT_KIB = (0, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 1100, 1536, 2048, 4096)


def disk() -> Rows:
    """A disk with so little room that it is full at one write or another."""
    outcomes: dict[str, int] = {}
    settings = [f"--set={key}={value}" for key, value in SPEC.settings().items()]
    for left in LEFT_KIB:
        with small_disk("16m") as folder, home(folder / "home"):
            (folder / "home").mkdir()
            ballast = folder / "ballast"
            with suppress(OSError):
                ballast.write_bytes(b"x" * (16 * 2**20))
            room = os.statvfs(folder)
            free = room.f_bavail * room.f_frsize
            os.truncate(ballast, ballast.stat().st_size - max(0, left * 1024 - free))
            done = subprocess.run(program("run", *settings), capture_output=True, text=True)
            assert "Traceback" not in done.stderr, (left, done.stderr)
            command("list")  # on the full disk
            ballast.unlink()
            runs = list_runs()
            outcome = "not begun"
            if runs and (runs[0].header_path.exists() or runs[0].record_path.exists()):
                outcome = checked(runs[0]).status
                assert (outcome == "finished") == (done.returncode == 0), (left, done)
            else:
                assert done.returncode
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    counted = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    return [
        (
            f"a disk with {LEFT_KIB[0]} to {LEFT_KIB[-1]} KiB left, full at any write of a run",
            "what was written before; the list, also while it is full",
            "the pass under way; a run whose header does not fit does not begin",
            f"{sum(outcomes.values())} runs: {counted}",
        )
    ]
