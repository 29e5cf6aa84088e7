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

from sysbench.core.record.record import Kernels
from sysbench.core.trace.kernel_rows import kernel_rows
from sysbench.core.trace.time_ledger import TimeLedger

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


PID = 100
MAIN, BACKWARD = 100, 101
EPOCH_NS = 1_700_000_000_123_456_789


class TraceWriter:
    """Adds events at nanoseconds since an epoch that floats cannot hold, and writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[str] = []
        self.correlations = 0

    def add(
        self, cat: str, name: str, start: int, duration: int, *, tid: int = MAIN, **args: Any
    ) -> None:
        """One event; an argument's name may not hold spaces, so ``sequence`` is renamed."""
        if "sequence" in args:
            args["Sequence number"] = args.pop("sequence")
        self.events.append(
            f'{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {PID}, "tid": {tid}, '
            f'"ts": {_us(EPOCH_NS + start)}, "dur": {_us(duration)}, "args": {json.dumps(args)}}}'
        )

    def op(self, name: str, start: int, duration: int, **kind: Any) -> None:
        self.add("cpu_op", name, start, duration, **kind)

    def call(self, name: str, start: int, duration: int, **kind: Any) -> None:
        """A runtime call that launches nothing."""
        self.correlations += 1
        self.add("cuda_runtime", name, start, duration, correlation=self.correlations, **kind)

    def launch(
        self,
        at: int,
        name: str,
        start: int,
        duration: int,
        *,
        tid: int = MAIN,
        stream: int = 7,
        device: int = 0,
        cat: str = "kernel",
        **args: Any,
    ) -> None:
        """A launch of 2 ns at one time, and what it launched."""
        self.call("cudaLaunchKernel", at, 2, tid=tid)
        self.work(
            name,
            start,
            duration,
            stream=stream,
            device=device,
            cat=cat,
            correlation=self.correlations,
            **args,
        )

    def work(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        correlation: int,
        stream: int = 7,
        device: int = 0,
        cat: str = "kernel",
        **args: Any,
    ) -> None:
        """A kernel, copy or fill."""
        self.add(
            cat,
            name,
            start,
            duration,
            tid=stream,
            device=device,
            stream=stream,
            correlation=correlation,
            **args,
        )

    def text(self) -> str:
        return '{"traceEvents": [\n' + ",\n".join(self.events) + "\n]}"

    def write(self) -> Path:
        self.path.write_text(self.text())
        return self.path


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


@pytest.fixture
def writer(tmp_path: Path) -> TraceWriter:
    return TraceWriter(tmp_path / "trace.json")


def _assert_closed(ledger: TimeLedger) -> Kernels:
    parts = [*ledger.exclusive.tolist(), *ledger.idle.values(), ledger.unattributed]
    assert min(parts) >= 0
    assert sum(parts) == ledger.window.length
    assert ledger.busy == sum(ledger.exclusive.tolist())
    assert (ledger.exclusive <= ledger.work.end - ledger.work.start).all()
    kernels = kernel_rows(ledger)
    if ledger.window.length:
        shares = [row.share for row in kernels.rows] + [row.share for row in kernels.idle]
        unattributed = kernels.unattributed_ns / (kernels.step_ms * 1e6)
        assert sum(shares) + unattributed == pytest.approx(1)
        assert sum(row.share for row in kernels.categories) == pytest.approx(
            sum(row.share for row in kernels.rows)
        )
        assert sum(kernels.phases_ns.values()) == pytest.approx(
            kernels.step_ms * 1e6 if kernels.phases_ns else 0
        )
    return kernels


@pytest.fixture
def assert_closed() -> Callable[[TimeLedger], Kernels]:
    """Checks that a ledger and its table add up; returns the table."""
    return _assert_closed
