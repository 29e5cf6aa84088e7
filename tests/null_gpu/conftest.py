"""Processes that see null GPUs. Where none is built, the tests that need one are skipped."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.storage import HOME_VARIABLE
from tests.null_gpu.place import VARIABLE, Place, place

DISTURBING = ("CUDA_", "NVML_STUB_", "NULL_GPU_", "LD_LIBRARY_PATH", "PYTORCH_")


@dataclass(frozen=True)
class NullGpu:
    """Starts processes on null GPUs that nobody else sees.

    Attributes:
        where: The null GPU that was built.
        home: Data folder of the program.
        board: Name under which these processes tell NVML of their memory.
    """

    where: Place
    home: Path
    board: str

    def environment(self, **settings: object) -> dict[str, str]:
        """All variables for a process; in capitals as they are, others are settings."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(DISTURBING)}
        plain = {k: str(v) for k, v in settings.items() if k.isupper()}
        own = {k: v for k, v in settings.items() if not k.isupper()}
        return {
            **kept,
            **self.where.environment(board=self.board, **own),
            **{HOME_VARIABLE: str(self.home), "OMP_NUM_THREADS": "1"},
            **plain,
        }

    def python(self, code: str, **settings: object) -> Any:
        """What a program prints, decoded from JSON."""
        done = subprocess.run(
            [str(self.where.python), "-P", "-c", code],
            env=self.environment(**settings),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    def sysbench(self, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
        """The command line of the program, in the environment with the CUDA build of torch."""
        return subprocess.run(
            [str(self.where.python), "-P", "-m", "sysbench.tui.cli", *arguments],
            env=self.environment(**settings),
            capture_output=True,
            text=True,
        )

    def record(self, *arguments: str, exit_code: int = 0, **settings: object) -> dict[str, Any]:
        """The record of a run on the null GPU."""
        done = self.sysbench("run", "--json", "--set", "device=cuda", *arguments, **settings)
        assert done.returncode == exit_code, done.stderr[-4000:] + done.stdout[-2000:]
        record: dict[str, Any] = json.loads(done.stdout)
        return record


Make = Callable[[], NullGpu]


@pytest.fixture(scope="session")
def make_null_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes null GPUs; skips where none is built."""
    where, boards = place(), []

    def make() -> NullGpu:
        if not where.is_built:
            pytest.skip(f"no null GPU in {where.folder}: `make null-gpu`, or set {VARIABLE}")
        boards.append(f"null-gpu-test-{uuid.uuid4().hex}")
        return NullGpu(where, tmp_path_factory.mktemp("null-gpu-home"), boards[-1])

    yield make
    for board in boards:
        Path("/dev/shm", board).unlink(missing_ok=True)


@pytest.fixture
def null_gpu(make_null_gpu: Make) -> NullGpu:
    """Null GPUs of this test alone."""
    return make_null_gpu()
