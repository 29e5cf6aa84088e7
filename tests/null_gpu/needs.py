"""What an installed torch wants of CUDA: libraries, symbols, versions. Read from its files."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OWN = ("libc10", "libtorch", "libshm", "libgomp", "libcaffe2")
SYSTEM = ("libc.", "libm.", "libdl.", "librt.", "libpthread.", "libgcc_s", "libstdc++", "ld-linux")

# Symbols without a version, by the start of their names, first match: they do not tell their home.
HOMES = (
    ("nccl", "libnccl.so"),
    ("nvshmem", "libnvshmem_host.so"),
    ("cuFile", "libcufile.so"),
    ("cusparseLt", "libcusparseLt.so"),
    ("cu", "libcuda.so"),
)
DRIVER = "libcuda.so.1"


class Unfit(Exception):
    """This torch cannot be given a null GPU; the text says why."""


@dataclass(frozen=True)
class Versions:
    """Versions that torch was built with, from its package's data.

    Attributes:
        torch, cuda: As torch writes them; cuda such as ``13.0``.
        cudnn, nccl, cublas: As their libraries number them.
        triton: The requirement, or None.
    """

    torch: str
    cuda: str
    cudnn: int
    nccl: int
    cublas: int
    triton: str | None


@dataclass(frozen=True)
class Needs:
    """Symbols by library, and the version that a library's symbols carry where they carry one."""

    symbols: dict[str, set[str]]
    versions: dict[str, str]


def output_of(*command: str) -> str:
    """What a program prints.

    Raises:
        Unfit: It ended with an error.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unfit(f"{' '.join(command[:6])} …\n{done.stderr[-4000:]}")
    return done.stdout


def versions_of(site: Path) -> Versions:
    """Versions of the torch that is installed in a ``site-packages``.

    Raises:
        Unfit: There is none, it is built without CUDA, or for a CUDA before 13.
    """
    found = next(iter(metadata.distributions(name="torch", path=[str(site)])), None)
    if found is None:
        raise Unfit(f"there is no torch in {site}")
    text = (site / "torch" / "version.py").read_text("utf-8")
    cuda = re.search(r"^cuda[^=]*=\s*'([\d.]+)'", text, re.MULTILINE)
    if cuda is None:
        raise Unfit(f"torch {found.version} is built without CUDA")
    if int(cuda[1].partition(".")[0]) < 13:
        raise Unfit(f"torch {found.version} is built for CUDA {cuda[1]}; 13 or later is needed")
    wanted = [requirement.partition(";")[0].strip() for requirement in found.requires or ()]
    triton = next((name for name in wanted if re.match(r"triton\b", name)), None)
    return Versions(
        torch=found.version,
        cuda=cuda[1],
        cudnn=_number(wanted, "nvidia-cudnn", found.version),
        nccl=_number(wanted, "nvidia-nccl", found.version),
        cublas=_number([f"cublas=={cuda[1]}"], "cublas", found.version),
        triton=triton,
    )


def _number(requirements: list[str], start: str, torch: str) -> int:
    """Major × 10000 + minor × 100 + patch, as these libraries number themselves."""
    for requirement in requirements:
        if match := re.match(start + r"[^=]*==([\d.]+)", requirement):
            major, minor, patch = [*map(int, match[1].split(".")), 0, 0][:3]
            return major * 10000 + minor * 100 + patch
    raise Unfit(f"torch {torch} does not tell which {start} it needs")


def needs_of(torch_libraries: Path) -> Needs:
    """Symbols that the libraries of torch import from CUDA."""
    symbols: dict[str, set[str]] = defaultdict(set)
    versions: dict[str, str] = {}
    for library in sorted(torch_libraries.glob("lib*.so*")):
        for name in re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", str(library))):
            if not name.startswith(OWN + SYSTEM):
                symbols[name] |= set()
    symbols[DRIVER] |= set()
    for library in sorted(torch_libraries.glob("lib*.so*")):
        homes = _homes_of_versions(library)
        for name, version in _undefined(library):
            home = homes.get(version) if version else _home(name, symbols)
            if home is None or home not in symbols:
                continue
            symbols[home].add(name)
            if version:
                versions[home] = version
    return Needs(dict(symbols), versions)


def _undefined(library: Path) -> Iterator[tuple[str, str]]:
    for line in output_of("nm", "-D", "--undefined-only", str(library)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def _homes_of_versions(library: Path) -> dict[str, str]:
    """The library that each symbol version is to come from."""
    found, home = {}, ""
    for line in output_of("readelf", "-V", "-W", str(library)).splitlines():
        if match := re.search(r"File: (\S+)", line):
            home = match[1]
        elif home and (match := re.search(r"Name: (\S+)\s+Flags", line)):
            found[match[1]] = home
    return found


def _home(name: str, symbols: dict[str, set[str]]) -> str | None:
    if name.startswith("cupti"):
        return next((home for home in symbols if home.startswith("libcupti.so")), None)
    for start, library in HOMES:
        if re.match(start + "[A-Za-z]", name):
            return next((home for home in symbols if home.startswith(library)), None)
    return None


def driver_names(headers: Path) -> set[str]:
    """All functions of the driver, under the names by which its library has them."""
    text = (headers / "cuda.h").read_text("utf-8", "replace")
    newest = dict(
        re.findall(r"^\s*#define (cu[A-Z]\w+)\s+(cu[A-Z]\w+_v\d)\s*$", text, re.MULTILINE)
    )
    names = set(re.findall(r"^CUresult CUDAAPI (cu[A-Z]\w+)\(", text, re.MULTILINE))
    return {newest.get(name, name) for name in names}
