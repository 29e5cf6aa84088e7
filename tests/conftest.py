"""What all tests share: an isolated home, one real run made only once, one run written by hand."""

from __future__ import annotations

import fcntl
import gc
import gzip
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from sysbench.core.inspection.inspection import Inspection
from sysbench.core.inspection.reading import read_tables
from sysbench.core.machine.devices import sample_of
from sysbench.core.predict.dry_run_client import Estimator
from sysbench.core.record.record import (
    Allocation,
    CategoryRow,
    Coverage,
    Finding,
    IdleRow,
    KernelRow,
    Kernels,
    LedgerRow,
    Memory,
    ModuleMemory,
    PassRecord,
    Record,
    Spread,
    Telemetry,
    Timeline,
    Timing,
)
from sysbench.core.runs.run_directory import RunDirectory, create_run, list_runs
from sysbench.core.spec.spec import RunSpec
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.trace.nsys_export import read_export
from tests import drawn, factories
from tests.null_gpu.place import is_null

# One thread: with more, a busy machine makes operators wait for each other.
TINY_RUN = ("run", "--set", "model=tiny", "--set", "steps=12", "--set", "threads=1", "--json")
OOM_RUN = (
    *("run", "--set", "model=tiny", "--set", "batch=32", "--set", "context=512"),
    *("--memory-limit", "300MiB", "--set", "threads=1", "--passes", "timing,memory", "--json"),
)


def pytest_configure() -> None:
    """Prepare the process before a test is imported."""
    drawn.seed()  # before processes that must draw the same start
    gc.disable()  # until the tests are collected
    _take_interrupts()
    # No example may fail for its time: a busy machine takes any.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "untimed", settings.default, deadline=None, suppress_health_check=slow
    )
    settings.load_profile("untimed")


def pytest_report_header() -> str:
    return f"inputs of sweeps are drawn with {drawn.SEED_VARIABLE}={drawn.seed()}"


def _take_interrupts() -> None:
    """Take interrupts again: a shell ignores them for what it starts in the background, programs
    inherit that, and some tests interrupt programs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never walk what importing made: a fifth of the suite's CPU
    time would go into looking at torch's and Textual's modules again and again."""
    _freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()


_frozen_for: Path | None = None
"""The file whose tests run: what was alive before it is frozen."""
_frozen_modules = 0
MANY_MODULES = 50


def _freeze(path: Path | None = None) -> None:
    """Take what is alive out of the collector's sight."""
    global _frozen_for, _frozen_modules
    _frozen_for = path
    _frozen_modules = len(sys.modules)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Freeze what earlier files left and what the test before imported: a dry run looks at every
    object of its process, and nine tenths of its time went into torch's compiler and transformers.
    On a null GPU, leave out what needs the values that a kernel computes."""
    if item.path != _frozen_for or len(sys.modules) > _frozen_modules + MANY_MODULES:
        _freeze(item.path)
    if item.get_closest_marker("needs_values") and _is_on_null_gpu():
        pytest.skip("needs values, and a null GPU computes none")


@cache
def _is_on_null_gpu() -> bool:
    device = sample_of("cuda:0")
    return device is not None and is_null(device.name)


@pytest.fixture
def sysbench_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of the test's own, for this process and those it starts."""
    home = tmp_path / "home"
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    # A report on a terminal of a test's would wait for somebody to leave the pager.
    monkeypatch.setenv("PAGER", "cat")
    return home


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished real run of tiny with all passes, made by the command line. Do not change it.

    What the command printed is beside its home's ``runs``: ``stdout.json``, ``stderr.txt``.
    """
    return _made_once(tmp_path_factory, "tiny-home", TINY_RUN, exit_code=0)


@pytest.fixture(scope="session")
def oom_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A real run of tiny whose two passes ran out of a limit of 300 MiB. Do not change it."""
    return _made_once(tmp_path_factory, "oom-home", OOM_RUN, exit_code=1)


def _made_once(
    factory: pytest.TempPathFactory, name: str, arguments: Sequence[str], exit_code: int
) -> RunDirectory:
    """The run of a command, made by the first process that asks for it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    home = base / name
    home.mkdir(exist_ok=True)
    with (home / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "stdout.json").exists():
            _make_run(home, arguments, exit_code)
    (run,) = list_runs(home)
    return run


def _make_run(home: Path, arguments: Sequence[str], exit_code: int) -> None:
    environment = {**os.environ, HOME_VARIABLE: str(home), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, "-P", "-m", "sysbench.tui.cli", *arguments],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert result.returncode == exit_code, result.stderr.decode() + result.stdout.decode()[-4000:]
    (home / "stderr.txt").write_bytes(result.stderr)
    (home / "stdout.json").write_bytes(result.stdout)


@pytest.fixture(scope="session")
def estimator() -> Iterator[Estimator]:
    """A process of exact mode for all tests that are not about processes.

    It starts here: one that a thread started would end with the thread.
    """
    with Estimator() as estimator:
        yield estimator


@pytest.fixture
def one_process(estimator: Estimator, monkeypatch: pytest.MonkeyPatch) -> None:
    """`estimate` asks the shared process alone."""
    name = "sysbench.tui.commands.estimate.Estimator"
    monkeypatch.setattr(name, lambda: nullcontext(estimator))
    monkeypatch.setattr("sysbench.tui.commands.estimate_answers.MAX_PLAYERS", 1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces, snapshots and exports with their answers: beside the checkout, or where
    ``SYSBENCH_TEST_DATA`` says."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SYSBENCH_TEST_DATA", beside))
    if not folder.is_dir():
        pytest.skip("the real data is not at hand; SYSBENCH_TEST_DATA names its folder")
    return folder


@pytest.fixture(scope="session")
def inspected() -> Callable[[Path], Inspection]:
    """The tables of a file; a second test that asks for them does not wait for them."""
    return cache(lambda path: read_tables(path, lambda *_: None).inspection)


# A name that attacks every output format: markup, columns, lines, quotes, a terminal.
HOSTILE = 'void k<float, 4>(int*) | [bold]"x",\n=1+1\x1b[31m'


def _spread(median: float) -> Spread:
    return factories.spread(
        median,
        median * 0.99,
        median * 1.01,
        mad_ms=0.1,
        iqr_ms=0.2,
        std_ms=0.15,
        min_ms=median * 0.9,
        max_ms=median * 1.2,
        p10_ms=median * 0.95,
        p90_ms=median * 1.1,
        n=40,
        drift=0.001,
    )


TIMING = Timing(
    clock="cuda-events",
    step=_spread(10.0),
    phases={"forward": _spread(3.0), "backward": _spread(6.0), "optimizer": _spread(1.0)},
    issue=_spread(8.0),
    wall_ms=10.2,
    first_step_ms=900.0,
    warmup_ms=[900.0, 11.0, 10.1],
    warmup_settled=True,
    samples_ms=[10.0] * 40,
    phase_samples_ms={},
    stop_reason="settled to 0.5 %",
    settled=True,
    tokens_per_second=51_200.0,
    model_flops=2.2e9,
    tflops=0.22,
    mfu=None,
    missing={"mfu": "the peak of this device is not known"},
)


def _kernel(name: str, ns: float, category: str) -> KernelRow:
    return KernelRow(
        name=name,
        category=category,
        phase="forward",
        module="blocks.0",
        op="aten::mm",
        calls=2.5,
        total_ns=ns,
        exclusive_ns=ns,
        mean_ns=ns / 2.5,
        min_ns=1.0,
        max_ns=ns,
        share=ns / 10e6,
    )


KERNELS = Kernels(
    source="kernels",
    steps=3,
    step_ms=10.0,
    busy_ns=8e6,
    span_ns=9e6,
    phases_ns={"forward": 10e6},
    rows=[
        _kernel(HOSTILE, 4e6, "gemm"),
        *(_kernel(f"kernel_{index}", 100e3, "elementwise") for index in range(40)),
    ],
    categories=[
        CategoryRow("gemm", "forward", 2.5, 4e6, 0.4),
        CategoryRow("elementwise", "forward", 100, 4e6, 0.4),
    ],
    idle=[IdleRow("host late", 1.5e6, 0.15)],
    unattributed_ns=0.5e6,
    coverage=Coverage(launches=120, kernels=120, unlinked=3, explained=0.95, with_module=0.9),
)

MEMORY = Memory(
    source="cuda-snapshot",
    peak_allocated_bytes=2**30,
    peak_reserved_bytes=2**30 + 2**28,
    end_allocated_bytes=2**29,
    driver_used_bytes=2**31,
    baseline_bytes=0,
    peak_phase="backward",
    peak_ms=4.0,
    first_step_peak_bytes=2**29,
    ledger=[LedgerRow("parameters", 2**29), LedgerRow("activations", 2**29)],
    card=[LedgerRow("allocated", 2**30), LedgerRow("outside the allocator", 2**30)],
    columns={"steady end": [LedgerRow("parameters", 2**29)]},
    modules=[ModuleMemory("blocks.0", 1, 2, 3, 4)],
    largest=[
        Allocation(2**28, "activations", "forward", HOSTILE, 1.0, None, ["f (a.py:1)", "g"]),
    ],
    timeline=Timeline([0.0], [2**30], {}, []),
    predicted_peak_bytes=2**30,
)


@pytest.fixture
def gpu_run(sysbench_home: Path) -> RunDirectory:
    """A run directory as a finished CUDA run leaves it, with every block and artifact."""
    spec = RunSpec(model="tiny", device="cuda:0", precision="bf16")
    run = create_run(spec, ["timing", "trace", "memory"])
    run.write_record(
        Record(
            id=run.id,
            identity=spec.identity,
            status="finished",
            created_ns=run.header().created_ns,
            spec=msgspec.to_builtins(spec),
            parameters=spec.dimensions.parameters,
            environment={
                "device": {"name": "NVIDIA H100 80GB HBM3"},
                "torch": {"version": "2.13.0"},
                "settings": {"threads": 3},
                "cpu": {"model": "EPYC", "quota": None},
                "missing": {"cpu.quota": "no limit is set"},
            },
            passes=[
                PassRecord("timing", "finished", "finished", 5.0, 10.0),
                PassRecord("trace", "finished", "finished", 6.0, 10.5),
                PassRecord("memory", "finished", "finished", 7.0, 12.0),
            ],
            findings=[Finding("settled", "good", "Settled *well*.", HOSTILE, "Rest.")],
            timing=TIMING,
            kernels=KERNELS,
            memory=MEMORY,
            telemetry=Telemetry(
                interval_seconds=0.5,
                samples=12,
                series={
                    "device0.power_watts": {"min": 80, "median": 600.5, "max": 700, "n": 12},
                    "device0.memory_used_bytes": {"min": 1, "median": 2**30, "max": 2**31, "n": 12},
                },
                clock_reasons=["power cap"],
                other_processes=[{"pid": 7, "name": "python"}],
            ),
            missing={"compile": "compile is off"},
        )
    )
    run.trace_path.parent.mkdir()
    run.trace_path.write_bytes(gzip.compress(json.dumps({"traceEvents": []}).encode()))
    run.snapshot_path.parent.mkdir()
    run.snapshot_path.write_bytes(pickle.dumps({"segments": []}, protocol=4))
    return run


@pytest.fixture
def nsys_export(tmp_path: Path) -> Path:
    """A range around the launch of one kernel, as nsys exports it."""
    path = tmp_path / "report.sqlite"
    thread = (1 << 24) + 3
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            f"""
            CREATE TABLE StringIds AS SELECT 1 AS id, 'gemm_kernel' AS value;
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1100 AS start, 1800 AS "end",
                0 AS deviceId, 7 AS streamId, 5 AS correlationId, {1 << 24} AS globalPid,
                1 AS demangledName, 1 AS shortName;
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME AS SELECT 500 AS start, 600 AS "end",
                {thread} AS globalTid, 5 AS correlationId, 1 AS nameId;
            CREATE TABLE NVTX_EVENTS AS SELECT 0 AS start, 2000 AS "end", 59 AS eventType,
                '[bold]forward' AS text, {thread} AS globalTid;
            """
        )
    return path


@pytest.fixture
def nsys_run(gpu_run: RunDirectory, nsys_export: Path) -> RunDirectory:
    """The CUDA run with an nsys pass in place of the trace pass."""
    record = gpu_run.record()
    gpu_run.write_record(
        msgspec.structs.replace(
            record,
            kernels=None,
            passes=[*record.passes, PassRecord("nsys", "finished", "finished", 9.0)],
            nsys=read_export(nsys_export).block(),
        )
    )
    return gpu_run
