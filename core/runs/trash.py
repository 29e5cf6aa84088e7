"""Deleted runs, until the trash is emptied: ``trash/TIME.ID`` in the data folder.

A run is moved by one rename, so it is either in the library or in the trash, also after a crash.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import msgspec

from sysbench.core.errors import DamagedFileError, DeviceBusyError, NotFoundError, SysbenchError
from sysbench.core.experiments.experiment import experiment_meant
from sysbench.core.runs.run_directory import RunDirectory, is_run_id, runs_folder
from sysbench.core.storage import has_folder, home, make_folder


class KeptRunError(SysbenchError):
    """A run that cannot be deleted: it is live, or something else refers to it."""


class Trashed(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted_ns: int
    path: str


def trash_folder(root: Path | None = None) -> Path:
    return (root or home()) / "trash"


def trash_run(run: RunDirectory, root: Path | None = None) -> Trashed:
    """Move a run of the library to the trash.

    Raises KeptRunError if a supervisor works on it, or is about to; NotFoundError or OSError.
    """
    place = runs_folder(root) / run.id
    # Only runs in the library are deleted: a run at a path may belong to another user.
    if run.path.resolve() != place.resolve() or place.is_symlink() or not place.is_dir():
        raise NotFoundError(f"{run.path} is not a run of this library: nothing is deleted")
    beginning = run.is_beginning() and not run.record_path.exists()
    # Between two rounds of an experiment no process holds the run, and the next one needs it.
    if beginning or run.is_live() or experiment_meant(run.id, root) is not None:
        raise KeptRunError(f"run {run.id} is live: `sysbench-tui stop {run.id}` ends it first")
    make_folder(trash_folder(root))
    deleted_ns = time.time_ns()
    target = trash_folder(root) / f"{deleted_ns}.{run.id}"
    try:
        # Held during the move, so that no supervisor begins in between.
        with run.hold():
            os.rename(place, target)
    except DeviceBusyError as error:
        raise KeptRunError(f"{error}: it is live, and is not deleted") from error
    return Trashed(id=run.id, deleted_ns=deleted_ns, path=str(target))


def list_trash() -> list[Trashed]:
    """Return the deleted runs, the last deleted one first."""
    deleted_runs = []
    folder = trash_folder()
    for path in folder.iterdir() if has_folder(folder) else ():
        deleted, _, run_id = path.name.partition(".")
        if deleted.isdecimal() and is_run_id(run_id) and path.is_dir():
            deleted_runs.append(Trashed(id=run_id, deleted_ns=int(deleted), path=str(path)))
    return sorted(deleted_runs, key=lambda trashed: trashed.deleted_ns, reverse=True)


def find_trashed(text: str) -> Trashed:
    """Find a deleted run by id, a unique part of one, or ``last``; raises NotFoundError."""
    deleted_runs = list_trash()
    if text == "last" and deleted_runs:
        return deleted_runs[0]
    matches = [row for row in deleted_runs if row.id == text] or [
        row for row in deleted_runs if text in row.id
    ]
    if len({row.id for row in matches}) == 1:
        return matches[0]  # a copy of a run can be deleted under its id too: the last is meant
    if matches:
        some = ", ".join(row.id for row in matches[:4])
        raise NotFoundError(f"deleted run {text!r} is ambiguous: {some}")
    raise NotFoundError(
        f"no run {text!r} in {trash_folder()}; `sysbench-tui list --trash` lists them"
    )


def restore(trashed: Trashed, root: Path | None = None) -> RunDirectory:
    """Move a deleted run back; DamagedFileError if the library has one of that id again."""
    run = RunDirectory(runs_folder(root) / trashed.id)
    make_folder(run.path.parent)
    if run.path.exists():
        raise DamagedFileError(f"there is a run {run.id} again: {trashed.path} stays in the trash")
    try:
        os.rename(trashed.path, run.path)
    except FileNotFoundError as error:
        raise NotFoundError(f"{trashed.path} is gone") from error
    return run


def empty_trash() -> list[Trashed]:
    """Remove the deleted runs permanently, and return them; OSError if one could not be removed."""
    gone = list_trash()
    for trashed in gone:
        shutil.rmtree(trashed.path)
    return gone
