"""Bundles: one zip file with a run's record, or an imported file's tables, to send to somebody.

Parts have fixed names; the manifest comes first and is not packed. A bundle is untrusted: it is
read by the decoding process, with a limit for each part.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from typing import IO

import msgspec

from sysbench.core.errors import DamagedFileError
from sysbench.core.formatting import format_bytes
from sysbench.core.inspection.inspection import BUNDLE_HEAD, Inspection, decode_inspection
from sysbench.core.record.record import Kernels, decode_record
from sysbench.core.runs.run_directory import Header
from sysbench.core.storage import UNREADABLE_JSON, check_decoded
from sysbench.core.trace.lanes import decode_lanes

SCHEMA = 1
MANIFEST = BUNDLE_HEAD.decode()
HEADER, RECORD, INSPECTION = "run.json", "record.json", "inspection.json"
LAYERS, LANES, TRACE = "trace/kernels.json", "trace/lanes.msgpack", "trace/trace.json.gz"
MAX_PART_BYTES = {
    MANIFEST: 2**20,
    HEADER: 2**20,
    RECORD: 2**28,
    INSPECTION: 2**26,
    LAYERS: 2**28,
    LANES: 2**28,
    TRACE: 2**28,
}
"""The only names of parts, with the largest size of each."""
MAX_DIRECTORY_BYTES = 2**12
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+-]{0,127}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``redacted`` counts replaced texts by kind; ``left_out`` has the reason for each part of the
    run that is not in the bundle."""

    schema: int = SCHEMA
    version: str
    of: str
    redacted: dict[str, int] = {}
    left_out: dict[str, str] = {}
    parts: list[str] = []


def read_manifest(path: Path) -> Manifest:
    """
    Raises:
        DamagedFileError: Not a bundle.
    """
    return _manifest(_parts(path, only=MANIFEST), path)


def read_bundle(path: Path) -> tuple[Inspection, str, dict[str, bytes]]:
    """Return the tables, the id of the run (empty for an imported file), and the checked parts.

    Raises:
        DamagedFileError: A part is missing, too large, or not what its name says.
    """
    parts = _parts(path)
    manifest = _manifest(parts, path)
    for name, data in parts.items():
        if name.endswith(".json"):
            check_decoded(data, f"{name} in {path}")
    try:
        if LAYERS in parts:
            msgspec.json.decode(parts[LAYERS], type=Kernels)
        if LANES in parts:
            decode_lanes(parts[LANES], path / LANES)
        if INSPECTION in parts:
            return decode_inspection(parts[INSPECTION], path / INSPECTION), "", parts
        header = msgspec.json.decode(parts[HEADER], type=Header)
        record = decode_record(parts[RECORD], path / RECORD)
    except KeyError as error:
        raise DamagedFileError(f"{path} is a bundle without {error.args[0]}") from error
    except UNREADABLE_JSON as error:
        raise DamagedFileError(f"{path} is a damaged bundle: {error}") from error
    if not NAME.fullmatch(manifest.of) or header.id != manifest.of or record.id != manifest.of:
        raise DamagedFileError(f"{path} is a bundle whose parts are of different runs")
    inspection = Inspection(
        kind="bundle",
        file=manifest.of,
        file_bytes=path.stat().st_size,
        kernels=record.kernels,
        memory=record.memory,
        findings=record.findings,
        missing=record.missing,
    )
    return inspection, manifest.of, parts


def _manifest(parts: dict[str, bytes], path: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode(parts[MANIFEST], type=Manifest)
    except (KeyError, *UNREADABLE_JSON) as error:
        raise DamagedFileError(f"{path} is a bundle with a damaged manifest: {error}") from error
    if manifest.schema > SCHEMA:
        raise DamagedFileError(
            f"{path} is a bundle of schema {manifest.schema}, this version reads up to {SCHEMA}: "
            "upgrade"
        )
    return manifest


def _parts(path: Path, only: str = "") -> dict[str, bytes]:
    """Read the parts into memory; nothing is extracted by a name that the file contains."""
    try:
        with path.open("rb") as file:
            _check_directory(file, path)
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                if unknown := {*names} - {*MAX_PART_BYTES}:
                    name = min(unknown)
                    raise DamagedFileError(f"{path} is a bundle with an unknown part {name!r}")
                if len({*names}) < len(names):
                    raise DamagedFileError(f"{path} is a bundle with parts of the same name")
                chosen = [info for info in archive.infolist() if only in ("", info.filename)]
                return {info.filename: _part(archive, info, path) for info in chosen}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise DamagedFileError(f"{path} is a damaged bundle: {error}") from error


def _check_directory(file: IO[bytes], path: Path) -> None:
    """Check the size of the archive's directory, from the 22 bytes at its end, before it is read.

    A bundle has no comment, so that they are the last ones.
    """
    file.seek(max(0, file.seek(0, 2) - 22))
    end = file.read(22)
    entries, length = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    is_small = entries <= len(MAX_PART_BYTES) and length <= MAX_DIRECTORY_BYTES
    if not end.startswith(b"PK\5\6") or not is_small:
        raise DamagedFileError(f"{path} is not a whole bundle, or has too many parts")


def _part(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    most = MAX_PART_BYTES[info.filename]
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DamagedFileError(f"{path}: {info.filename} is encrypted or packed in another way")
    with archive.open(info) as part:
        data = part.read(most + 1)  # the size in the directory may be wrong
    if len(data) > most:
        raise DamagedFileError(f"{path}: {info.filename} has more than {format_bytes(most)}")
    return data
