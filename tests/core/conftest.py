"""Fixtures that put NVIDIA's library, or its absence, under a Python process of its own."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STUB = runpy.run_path(str(Path(__file__).parents[1] / "nvml_stub" / "build.py"))
DISTURBING = ("CUDA_", "NVML_STUB_", "NVTX_", "LD_LIBRARY_PATH")

RunPython = Callable[..., Any]
"""``run(code, NAME="value", …)``: what the code prints, decoded from JSON."""


def _python_with(folder: Path) -> RunPython:
    def run(code: str, **environ: str) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(DISTURBING)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=kept | {"LD_LIBRARY_PATH": str(folder)} | environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def build_stub(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a variant of the stub; the test is skipped where nothing can."""

    def build(name: str, *options: str) -> Path:
        if STUB["compiler"]() is None:
            pytest.skip("no C compiler to build the NVML stub with")
        folder: Path = STUB["build"](tmp_path_factory.mktemp(name), *options)
        return folder

    return build


@pytest.fixture(scope="session")
def on_stub(build_stub: Callable[..., Path]) -> RunPython:
    """Python where NVML is the stub, driven by the variables that stub.c explains."""
    return _python_with(build_stub("nvml"))


@pytest.fixture(scope="session")
def on_old_driver(build_stub: Callable[..., Path]) -> RunPython:
    """Python where NVML lacks the functions of newer drivers."""
    return _python_with(build_stub("old-nvml", "-DOLD_DRIVER"))


@pytest.fixture(scope="session")
def without_nvml(tmp_path_factory: pytest.TempPathFactory) -> RunPython:
    """Python that finds no NVML, on a machine with a GPU too: the file is no library."""
    folder = tmp_path_factory.mktemp("no-nvml")
    (folder / STUB["LIBRARY"]).touch()
    return _python_with(folder)
