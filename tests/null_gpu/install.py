"""Make a null GPU: ``python -m tests.null_gpu.install``, or ``make null-gpu``.

A virtual environment gets a CUDA build of torch without the gigabytes of NVIDIA's libraries, finds
everything else where this interpreter finds it, and the stand-ins are compiled beside it. NVIDIA's
headers are read by the compiler and by nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from tests.null_gpu.build import build, missing_tools
from tests.null_gpu.needs import Unfit, versions_of
from tests.null_gpu.place import Place, place

# === and not ==: where an index of CPU builds is configured, == would take its 2.12.0+cpu.
TORCH = "torch===2.12.0"
# Packages of NVIDIA with the headers, for a version of CUDA.
HEADERS = ("nvidia-cuda-runtime", "nvidia-cuda-cupti", "nvidia-cuda-crt")
INTERPRETER_PATHS = "null_gpu_paths.pth"


def main() -> int:
    """Install what is missing, compile, and say what was made; the exit code."""
    where = place()
    try:
        if missing := missing_tools():
            raise Unfit(f"no {', '.join(missing)} on PATH")
        _make_environment(where)
        _install_torch(where, os.environ.get("NULL_GPU_TORCH") or "")
        versions = versions_of(where.site)
        if not (where.headers / f"cuda-{versions.cuda}").exists():
            _fetch_headers(where, versions.cuda)
        if os.environ.get("NULL_GPU_TRITON") and versions.triton:
            _pip(where, "install", "--no-deps", versions.triton)
        _see_our_packages(where)
        lines = build(where)
    except Unfit as error:
        print(f"null GPU: not built, {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    print(f"null GPU: built in {where.folder}; make test-null-gpu runs its tests")
    return 0


def _make_environment(where: Place) -> None:
    if not where.python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(where.folder)], check=True)
    # With our packages in sight, pip takes our torch for the one that is asked for.
    (where.site / INTERPRETER_PATHS).unlink(missing_ok=True)


def _see_our_packages(where: Place) -> None:
    # addsitedir and not the bare folder: an editable install is a .pth file there.
    paths = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(paths)]
    (where.site / INTERPRETER_PATHS).write_text("\n".join(lines) + "\n")


def _install_torch(where: Place, wanted: str) -> None:
    """Install the torch that is asked for; one that is there stays if none is."""
    if not wanted and (where.site / "torch" / "version.py").exists():
        return
    _pip(where, "install", "--no-deps", wanted or TORCH)


def _fetch_headers(where: Place, cuda: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in HEADERS:
            _pip(where, "download", "--no-deps", "--dest", folder, f"{name}=={cuda}.*")
        for wheel in Path(folder).glob("*.whl"):
            _unpack_headers(wheel, where.headers)
    (where.headers / f"cuda-{cuda}").touch()


def _unpack_headers(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, is_header, inner = name.partition("/include/")
            if is_header and inner and not inner.endswith("/"):
                target = into / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def _pip(where: Place, *arguments: str) -> None:
    command = [str(where.python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
        raise Unfit(f"{arguments[-1]} cannot be had: {reason}")


if __name__ == "__main__":
    sys.exit(main())
