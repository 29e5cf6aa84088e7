"""Compile the stand-in for NVIDIA's library: ``python build.py FOLDER [-DOLD_DRIVER]``.

Afterwards ``LD_LIBRARY_PATH=FOLDER``, set before Python starts, shows the stub's GPUs to
everything that asks NVML.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("stub.c")
LIBRARY = "libnvidia-ml.so.1"


def compiler() -> str | None:
    """The system's C compiler, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build(folder: Path, *options: str) -> Path:
    """Compile into ``folder``, which is made; returns it.

    Raises:
        RuntimeError: There is no C compiler, or it refused.
    """
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler (cc, gcc, clang) on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    done = subprocess.run(
        [command, *flags, *options, "-o", str(folder / LIBRARY), str(SOURCE)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return folder


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), *sys.argv[2:]))
