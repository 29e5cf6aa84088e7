"""Models of a user's that fail in unusual ways: the reason arrives, whole and at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sysbench.core.errors import DamagedFileError
from sysbench.core.machine.children import LineReader
from sysbench.core.record.events import (
    MAX_LINE_BYTES,
    AnyEvent,
    ResultReported,
    WorkerFailed,
    decode_event,
    encode_event,
)
from sysbench.core.runs.run_directory import find_run
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.failures import report_failure
from sysbench.tui.cli import main
from tests.faults.test_own_models import CASES, measure

MODELS = {
    "blank": ("raise RuntimeError(' \\n ')", "RuntimeError"),
    "surrogate": (r"open('/nowhere/\udcff')", r"No such file or directory: '/nowhere/\udcff'"),
    "long": ("raise ValueError('x' * 50_000_000)", "xxx"),
    "no text": (
        "raise type('Odd', (Exception,), {'__str__': lambda _: 1 / 0})",
        "its __str__ raises ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("name", ["blank", "surrogate", "long"])
def test_the_reason_is_in_the_end_of_the_pass(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, said = MODELS[name]
    record, ended, _ = measure(tmp_path, f"def make():\n    {code}\n", monkeypatch)
    assert (ended.outcome, record.status) == ("failed", "failed")
    assert said in ended.detail and ended.detail.isprintable() and len(ended.detail) < 700
    assert ended.detail.startswith("model.py:")


class Hostile(OSError):
    errno = property(lambda self: 1 // 0)


FORKS = {
    "in Python": "os.fork()",
    "in C": "ctypes.CDLL(None).fork()",
    "twice": "os.fork() and os.fork()",
}
SECOND = """
def make():
    is_first = {fork} != 0
    model = Model()
    if not is_first:
        model.head = nn.Sequential(model.head, nn.Linear(50, 50))
    return model
"""


@pytest.mark.parametrize("fork", FORKS.values(), ids=FORKS)
def test_a_fork_that_goes_on_as_a_second_worker_is_refused(
    sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: str
) -> None:
    record, ended, _ = measure(tmp_path, SECOND.format(fork=fork), monkeypatch)
    assert (ended.outcome, record.status) == ("finished", "finished")
    assert record.timing is not None and record.timing.step.n == 5
    assert record.parameters == 50 * 12 + 12 * 50 + 50
    run = find_run(record.id)
    assert "went on as a second worker" in run.log_path("timing").read_text()
    results = [event for event in run.tail().read() if isinstance(event, ResultReported)]
    assert len(results) == 1


def read_lines(code: str) -> list[bytes]:
    """Lines that a process writes, as a supervisor reads them."""
    command = [sys.executable, "-S", "-E", "-c", f"import sys; write = sys.stdout.write; {code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        reader, lines = LineReader(process.stdout.fileno(), process), []
        while not reader.ended:
            lines += reader.read(60)
        return lines


def test_long_lines_are_put_together_and_longer_ones_refused() -> None:
    lines = read_lines("write('a\\nb'); write('x' * 20_000_000 + '\\nlast\\nwithout an end')")
    assert lines == [b"a", b"b" + b"x" * 20_000_000, b"last"]
    with pytest.raises(DamagedFileError, match="more than 128 MiB"):
        read_lines(f"write('x' * {MAX_LINE_BYTES + 1})")


@pytest.mark.parametrize("name", ["blank", "surrogate", "long", "no text"])
@pytest.mark.usefixtures("one_process", "sysbench_home")
def test_the_reason_is_in_the_answer_of_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, said = MODELS[name]
    (tmp_path / "model.py").write_text(f"def make():\n    {code}\n")
    assert main(["estimate", f"{tmp_path}/model.py:make", "batch=2", "context=8"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and "model.py:2 in make" in line and len(line) < 20_000


def test_a_blank_message_of_a_review_ends_the_run(
    shared_data: Path, sysbench_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, ended, _ = measure(tmp_path, shared_data / CASES / "f8-blank-message", monkeypatch)
    assert (ended.outcome, record.status) == ("failed", "failed")
    assert ended.detail.endswith(": RuntimeError")


def circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def unimported() -> Exception:
    """As transformers raises it where another package cannot be imported."""
    error = ModuleNotFoundError("Could not import module 'DFineModel'.")
    error.__cause__ = RuntimeError("operator torchvision::nms does not exist")
    return error


def described(error: Exception, device: str = "cpu") -> WorkerFailed:
    """The event on an exception, as a reader of the run gets it."""
    failures: list[AnyEvent] = []
    report_failure(error, RunSpec(device=device, model="model.py:make"), failures.append)
    (event,) = (decode_event(encode_event(failure)) for failure in failures)
    assert isinstance(event, WorkerFailed)
    return event


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError(), "KeyError"),
        (ValueError("\n\n  the reason\nmore"), "\n\n  the reason\nmore"),
        (ValueError("\n" * 10**7 + "the end"), " characters … "),
        (ValueError("a\udc80b"), r"a\udc80b"),
        (OSError("no number", "why"), "[Errno no number] why"),
        (OSError(10**30, "why"), "why"),
        (Hostile(), "it cannot be described: ZeroDivisionError: "),
        (type("Odd", (Exception,), {"__str__": lambda _: 1 / 0})(), "its __str__ raises Zero"),
        (circle(), "first"),
        (unimported(), "'DFineModel'.: RuntimeError: operator torchvision::nms does not exist"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_exception_is_described_in_bounded_text(error: Exception, message: str) -> None:
    event = described(error)
    assert message in event.message
    assert event.kind == type(error).__name__
    assert len(event.message) + len(event.traceback) < 200_000


@pytest.mark.parametrize(
    ("message", "is_cuda_error"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might…", True),
        ("CUDA driver error: unknown error", True),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("The NVIDIA driver on your system is too old (found version 11040).", True),
        ("step failed: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm", True),
        ("Triton Error [CUDA]: device-side assert triggered", True),
        ("it is not deterministic because it uses CuBLAS: set CUBLAS_WORKSPACE_CONFIG", False),
        ("torch.backends.cudnn.enabled must be set", False),
        ("config key 'use_cudnn' is unknown", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_a_cuda_error_is_one_that_cuda_reports(
    message: str, is_cuda_error: bool, device: str
) -> None:
    for error in (RuntimeError(message), torch.AcceleratorError(message), ValueError(message)):
        expected = is_cuda_error and isinstance(error, RuntimeError) and device != "cpu"
        assert described(error, device).is_cuda_error == expected
