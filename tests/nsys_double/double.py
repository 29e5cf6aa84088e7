"""Stands in for ``nsys`` where there is none: a test double of the outside program.

It takes the command line of ``nsys profile``, starts the target the way Nsight Systems does
(in a session of its own, with a helper that belongs to nobody), and hands out an export that
was made before instead of recording one. So it shows that our side of the contract holds,
and nothing about what nsys records.

``NSYS_DOUBLE_EXPORT`` names the export to hand out; without it the recording fails, after the
target has ended. ``NSYS_DOUBLE_HELPER`` names a file for the helper's process id.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

VERSION = "NVIDIA Nsight Systems version 2026.2.1.210-262123456789v0"
OPTIONS = (
    *("trace", "sample", "cpuctxsw", "capture-range", "capture-range-end", "cuda-graph-trace"),
    *("export", "force-overwrite", "output"),
)


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(VERSION)
        return 0
    if arguments == ["profile", "--help"]:
        print("".join(f"\t--{option}=\n" for option in OPTIONS))
        return 0
    begin = next(index for index, word in enumerate(arguments) if index and word[0] != "-")
    flags = dict(word.split("=", 1) for word in arguments[1:begin])
    return profile(Path(flags["--output"]), arguments[begin:])


def profile(output: Path, target: list[str]) -> int:
    helper = start_helper(os.environ.get("NSYS_DOUBLE_HELPER"))
    process = subprocess.Popen(
        target,
        start_new_session=True,
        env=os.environ | {"NSYS_PROFILING_SESSION_ID": "1"},
    )
    code = process.wait()
    if helper:
        os.kill(helper, 9)
    made = os.environ.get("NSYS_DOUBLE_EXPORT")
    if made is None:
        print("Generating report\r[1/2] [==50%   ] nsys.nsys-rep\rImporter error status: no luck")
        return 1
    print("\r".join(f"[2/2] [{'=' * part}{part * 10}%] nsys.sqlite" for part in range(10)))
    output.with_suffix(".nsys-rep").write_bytes(b"a report")
    shutil.copyfile(made, output.with_suffix(".sqlite"))
    return code


def start_helper(reported: str | None) -> int:
    """A process whose parent ends at once, in a session of its own; 0 if not asked for."""
    if reported is None:
        return 0
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write_end, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    pid = int(os.read(read_end, 32))
    Path(reported).write_text(str(pid))
    return pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
