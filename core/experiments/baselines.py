"""Named baselines: copies of runs' records that later runs are judged against.

``baselines/NAME.json`` in the data folder, or any file, for example of a CI. A baseline outlives
its run.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from sysbench.core.compare.compared_records import counted_ms
from sysbench.core.compare.gate_rule import check_timed
from sysbench.core.errors import DamagedFileError, NotFoundError, SpecError, SysbenchError
from sysbench.core.experiments.experiment_places import baselines_folder as baselines_folder
from sysbench.core.formatting import did_you_mean
from sysbench.core.record.environment import machine
from sysbench.core.record.record import SCHEMA, Record
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.storage import (
    UNREADABLE_JSON,
    has_folder,
    make_folder,
    read_json,
    write_atomically,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_ALLOWED = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A record under a name.

    Attributes:
        run: Id of the run that it was copied from.
        digest: SHA-256 of everything else in it; empty in older files.
    """

    name: str
    saved_ns: int
    run: str
    machine: dict[str, str | int | None]
    record: Record
    schema: int = SCHEMA
    digest: str = ""

    @property
    def rounds_ms(self) -> list[float]:
        return counted_ms(self.record.timing) if self.record.timing else []

    @property
    def spec(self) -> RunSpec:
        """Return the measured spec; SpecError if it is of another version of this program."""
        return parse_spec(self.record.spec)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list of baselines; a damaged one has its name and the problem."""

    name: str
    path: str
    baseline: Baseline | None = None
    problem: str = ""


def check_name(name: str) -> str:
    """Return the name, or raise SpecError if it cannot be a file's name."""
    if not NAME.fullmatch(name):
        raise SpecError("NAME", name, NAME_ALLOWED)
    return name


def baseline_path(name: str, root: Path | None = None) -> Path:
    return baselines_folder(root) / f"{check_name(name)}.json"


def save_baseline(
    name: str,
    record: Record,
    *,
    file: Path | None = None,
    force: bool = False,
    root: Path | None = None,
) -> Path:
    """Copy a run's record under a name, and return its file.

    Args:
        record: Record of a run that was timed and has ended.
        file: Path to write instead of the file in the data folder.
        force: Replace an existing baseline.

    Raises:
        SpecError: The name is invalid, the baseline exists, or no round of the run counts.
        WorkerFailed: The run failed.
        OSError: The file cannot be written.
    """
    path = _file_of(name, file, root)
    if record.status == "running":
        raise SpecError("RUN", record.id, "one that has ended: this one still runs")
    check_timed(record)
    if record.timing is None or not counted_ms(record.timing):
        raise SpecError("RUN", record.id, "one with a step time: no round of this one counts")
    if path.exists() and not force:
        raise SpecError("NAME", name, f"not taken yet; --force replaces {path}")
    baseline = Baseline(
        name=name,
        saved_ns=time.time_ns(),
        run=record.id,
        machine=machine(record.environment),
        record=record,
    )
    if file is None:
        make_folder(path.parent)
    baseline = msgspec.structs.replace(baseline, digest=_digest(msgspec.json.encode(baseline)))
    write_atomically(path, msgspec.json.format(msgspec.json.encode(baseline), indent=2))
    return path


def load_baseline(name: str, *, file: Path | None = None, root: Path | None = None) -> Baseline:
    """Read a baseline, from ``file`` if it is not in the data folder.

    Raises:
        NotFoundError: There is none, or the file contains another one.
        DamagedFileError: The file is not a baseline, or was changed after it was saved.
    """
    path = _file_of(name, file, root)
    baseline = _read(path)
    if baseline.name != name:
        raise NotFoundError(f"{path} contains the baseline {baseline.name!r}, not {name!r}")
    return baseline


def list_baselines(root: Path | None = None) -> list[Listed]:
    """Return all baselines of the data folder by name, damaged ones included."""
    folder = baselines_folder(root)
    paths = sorted(folder.glob("*.json")) if has_folder(folder) else []
    return [_listed(path, root) for path in paths if NAME.fullmatch(path.stem)]


def _listed(path: Path, root: Path | None) -> Listed:
    try:
        baseline = load_baseline(path.stem, root=root)
    except SysbenchError as error:
        return Listed(name=path.stem, path=str(path), problem=str(error))
    return Listed(name=path.stem, path=str(path), baseline=baseline)


def delete_baseline(name: str, root: Path | None = None) -> Path:
    """Remove a baseline, also a damaged one, and return its file; raises NotFoundError."""
    path = baseline_path(name, root)
    try:
        path.unlink()
    except FileNotFoundError:
        raise _not_there(path) from None
    return path


def _file_of(name: str, file: Path | None, root: Path | None) -> Path:
    check_name(name)
    return file or baseline_path(name, root)


def _read(path: Path) -> Baseline:
    try:
        data = read_json(path)
        baseline = msgspec.json.decode(data, type=Baseline)
    except FileNotFoundError:
        raise _not_there(path) from None
    except (OSError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is not a baseline: {error}") from error
    if max(baseline.schema, baseline.record.schema) > SCHEMA:
        raise DamagedFileError(f"{path} is of a later version, this one reads schema {SCHEMA}")
    times = baseline.rounds_ms
    if baseline.record.timing is not None:
        times = [*times, baseline.record.timing.step.median_ms]
    if not baseline.rounds_ms or not all(ms > 0 and math.isfinite(ms) for ms in times):
        raise DamagedFileError(f"{path} is not a baseline: it has no step time above zero")
    if baseline.digest and baseline.digest != _digest(data):
        raise DamagedFileError(f"{path} was changed after it was saved: save the baseline again")
    return baseline


def _digest(data: bytes) -> str:
    """Hash the content without the digest itself, whatever the layout and the order of keys."""
    content = msgspec.json.decode(data, type=dict[str, Any])
    content.pop("digest", None)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def _not_there(path: Path) -> NotFoundError:
    hint = did_you_mean(path.stem, [file.stem for file in path.parent.glob("*.json")])
    return NotFoundError(
        f"no baseline {path.stem!r}, there is no {path}; {hint}"
        "`sysbench-tui baseline list` shows all, `baseline save` makes one"
    )
