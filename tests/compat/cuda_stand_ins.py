"""CUDA libraries without a function in them, so that a CUDA build of torch imports without any.

Where an index has CUDA builds only, a test on the CPU would take 3 GB of libraries along that it
never calls. The dynamic linker wants each library and each of its names all the same. Here they
are compiled with every function saying "no CUDA-capable device" (100), which is what the real ones
say where there is no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

LIST = "stand-ins.txt"
"""Names of the libraries that were made, beside them."""
NO_DEVICE = 100
OF_NVIDIA = re.compile(r"_{0,2}(?:cu|nccl|nv)\w*")
TEXTS = re.compile(r"(?:String|Name)$")


def add_stand_ins(folder: Path) -> list[str]:
    """Compile what the libraries of a folder lack, into it; returns their names.

    Args:
        folder: ``torch/lib`` of an installed torch.

    Raises:
        RuntimeError: No C compiler or no binutils here, or one of them failed.
    """
    libraries = sorted(folder.glob("*.so*"))
    absent = {name for library in libraries for name in _absent(library)}
    lib_of_version: dict[str, str] = {}
    wanted: set[str] = set()
    for library in libraries:
        lib_of_version |= _versions(library)
        wanted |= _undefined(library)
    names: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in absent}
    for symbol in wanted:
        name, _, version = symbol.partition("@")
        if not OF_NVIDIA.fullmatch(name):
            continue
        # A name without a version is found in whichever library has it.
        home = lib_of_version.get(version) if version else min(absent, default=None)
        if home in names:
            names[home][version].add(name)
    (folder / LIST).write_text("\n".join(sorted(absent)), encoding="utf-8")
    for name, by_version in names.items():
        _compile(folder / name, by_version)
    return sorted(absent)


def remove_stand_ins(folder: Path) -> None:
    """Take them out of a folder again, all that were made."""
    made = folder / LIST
    if made.exists():
        for name in made.read_text(encoding="utf-8").split():
            (folder / name).unlink(missing_ok=True)
        made.unlink()


def _absent(library: Path) -> Iterable[str]:
    return re.findall(r"(\S+) => not found", _output("ldd", str(library)))


def _versions(library: Path) -> dict[str, str]:
    """Libraries by the versions of symbols that are required from them."""
    found: dict[str, str] = {}
    home = ""
    for line in _output("objdump", "-p", str(library)).splitlines():
        if match := re.match(r"\s+required from (\S+):", line):
            home = match[1]
        elif home and (match := re.match(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line)):
            found[match[1]] = home
    return found


def _undefined(library: Path) -> set[str]:
    lines = _output("nm", "-D", "--undefined-only", str(library)).splitlines()
    return {line.split()[-1] for line in lines if line.strip()}


def _compile(path: Path, by_version: dict[str, set[str]]) -> None:
    functions = {name for names in by_version.values() for name in names}
    source = "\n".join(map(_function, sorted(functions)))
    versions = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in by_version.items()
        if version
    ]
    script = path.with_name(f"{path.name}.map")
    script.write_text("\n".join(versions), encoding="utf-8")
    command = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if command is None:
        raise RuntimeError("no C compiler (cc, gcc, clang) on PATH")
    flags = ["-shared", "-fPIC", "-x", "c", f"-Wl,-soname,{path.name}"]
    flags += [f"-Wl,--version-script={script}"] if versions else []
    try:
        _output(command, *flags, "-o", str(path), "-", stdin=source)
    finally:
        script.unlink()


def _function(name: str) -> str:
    if TEXTS.search(name):
        return f'const char *{name}(void) {{ return "no CUDA library"; }}'
    return f"long {name}(void) {{ return {NO_DEVICE}; }}"


def _output(*command: str, stdin: str = "") -> str:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is not on PATH") from error
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
