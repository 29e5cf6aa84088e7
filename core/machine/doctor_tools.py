"""The doctor's checks of torch and related tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from sysbench.core.errors import InterpreterError
from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.machine.doctor_check import Check, row
from sysbench.core.machine.doctor_gpu import Survey
from sysbench.core.machine.interpreter import OPTION, chosen_python, probe_python, why_not_ready
from sysbench.core.machine.read_environment import workers_package

BROKEN_NVTX = (0, 2, 12)
"""From this version on, nsys of 2022 and 2023 records no ranges of the nvtx package."""


def check_python() -> Check | None:
    """Check the interpreter of the workers; None if it is this program's own."""
    name, another = "workers' Python", f"name another by {OPTION} or {PYTHON_VARIABLE}"
    costs = "nothing can be measured; closed-form estimates and old runs work"
    try:
        python = chosen_python()
        if not python:
            return None
        if why := why_not_ready(python):
            text = f"{python}: {why}"
            remedy = f"fix that, or {another}"
            return Check(name=name, status="missing", found=text, costs=costs, remedy=remedy)
        return row(name, f"{python}, {probe_python(python).version}")
    except InterpreterError as error:
        text = f"{error.value}: {error.allowed}"
        return Check(name=name, status="missing", found=text, costs=costs, remedy=another)


def check_torch(torch: Mapping[str, str | None], gpu: Survey) -> Check:
    version, cuda = torch["version"], torch["cuda"]
    if version is None:
        return row("torch", "not installed", "no torch")
    if cuda is None and gpu.unavailable:
        return row("torch", f"{version}, for the CPU")
    if cuda is None:
        return row("torch", f"{version}, built without CUDA", "CPU build")
    text = f"{version}, for CUDA {cuda}"
    # A driver runs every minor version of the major CUDA versions that it supports.
    if gpu.cuda and int(gpu.cuda.split(".")[0]) < int(cuda.split(".")[0]):
        return row("torch", f"{text}; the driver knows CUDA up to {gpu.cuda}", "old driver")
    return row("torch", text)


def nsys_version() -> str | None:
    """Return the version of nsys on PATH; empty if it prints none, None if there is no nsys."""
    command = shutil.which("nsys")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"\d+(\.\d+)+", done.stdout)
    return match[0] if match else ""


def check_nsys(version: str | None) -> Check:
    if version is None:
        return row("nsys", "not on PATH", "no nsys")
    if not version:
        return row("nsys", "on PATH, but it does not report its version", "silent nsys")
    return row("nsys", version)


def check_nvtx(nsys: str | None) -> Check:
    """Check that a profiler would receive the nvtx package's ranges."""
    version = workers_package("nvtx")
    if version is None:
        return row("nvtx", "not installed", "no nvtx")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if nsys and nsys.startswith(("2022.", "2023.")) and numbers >= BROKEN_NVTX:
        return row("nvtx", f"{version}, which nsys {nsys} cannot record", "nvtx of old nsys")
    if "NVTX_INJECTION64_PATH" in os.environ and _is_silent():
        text = f"{version}, but the profiler around this process does not record it"
        return row("nvtx", text, "silent nvtx")
    return row("nvtx", version)


def _is_silent() -> bool:
    """Return whether nvtx reaches no profiler, though one has injected its library."""
    import nvtx  # lazy: optional

    return type(nvtx.get_domain("sysbench")).__name__ == "DummyDomain"


def _headers() -> str:
    own_headers = sysconfig.get_path("include")
    try:
        python = chosen_python()
        return probe_python(python).headers or own_headers if python else own_headers
    except InterpreterError:  # `check_python` reports it
        return own_headers


def check_compiler(environ: Mapping[str, str]) -> Check:
    """Check that torch.compile can build: C for Triton's launchers, C++ for the CPU's kernels."""
    # Triton takes $CC, gcc or clang; inductor takes $CXX or g++.
    needed = {
        "C compiler": environ.get("CC", "").split()[:1] or ["gcc", "clang"],
        "C++ compiler": environ.get("CXX", "").split()[:1] or ["g++"],
    }
    present = {
        kind: next(
            (name for name in commands if shutil.which(name, path=environ.get("PATH"))), None
        )
        for kind, commands in needed.items()
    }
    absent = [kind for kind, command in present.items() if command is None]
    if not (Path(_headers()) / "Python.h").is_file():
        absent.append("Python.h")
    if absent:
        return row("compiler", f"no {', no '.join(absent)}", "no compiler")
    return row("compiler", ", ".join(map(str, present.values())))
