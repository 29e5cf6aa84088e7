"""A GPU's clock is locked, read back and freed, however the block ends; NVML is a stub."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunPython = Callable[..., Any]

LOCK = """
import json, sys
from sysbench.core.errors import SysbenchError
from sysbench.core.machine.clock_lock import locked_clock
from sysbench.core.machine.telemetry.nvml import Nvml

def clock():
    with Nvml(gpm=False) as nvml:
        return nvml.read()[0].sm_clock_mhz

seen = {}
try:
    with locked_clock(0, 1500) as read_back:
        seen |= {"read back": read_back, "inside": clock()}
        FAIL
except (SysbenchError, RuntimeError) as error:
    seen["error"] = str(error)
print(json.dumps(seen | {"after": clock()}))
"""

WAIT_INSIDE = """
import time
from sysbench.core.machine.clock_lock import locked_clock
with locked_clock(0, 1500):
    print("locked", flush=True)
    while True:  # pause() would sleep through a signal that comes just before it
        time.sleep(0.1)
"""


def test_the_clock_is_read_back_and_freed(on_stub: RunPython) -> None:
    seen = on_stub(LOCK.replace("FAIL", ""))
    assert seen == {"read back": 1500, "inside": 1500, "after": 1755}


def test_an_error_inside_frees_the_clock(on_stub: RunPython) -> None:
    seen = on_stub(LOCK.replace("FAIL", "raise RuntimeError('inside')"))
    assert (seen["error"], seen["after"]) == ("inside", 1755)


@pytest.mark.parametrize(("code", "said"), [("4", "needs root"), ("3", "cannot lock")])
def test_a_refusal_is_told(on_stub: RunPython, code: str, said: str) -> None:
    functions = ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")
    refused = ",".join(f"{name}:{code}" for name in functions)
    seen = on_stub(LOCK.replace("FAIL", ""), NVML_STUB_REFUSE=refused)
    assert said in seen["error"]
    assert "inside" not in seen


def test_a_clock_that_is_not_freed_is_told_with_the_command_that_frees_it(
    on_stub: RunPython,
) -> None:
    seen = on_stub(LOCK.replace("FAIL", ""), NVML_STUB_REFUSE="nvmlDeviceResetGpuLockedClocks:4")
    assert "nvidia-smi -i 0 -rgc" in seen["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_frees_the_clock(
    build_stub: Callable[..., Path], tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    stub = {"LD_LIBRARY_PATH": str(build_stub("nvml-signal")), "NVML_STUB_LOG": str(log)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", WAIT_INSIDE],
        env=os.environ | stub,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        process.send_signal(number)
        assert process.wait(30) != 0
    calls = log.read_text().splitlines()
    assert calls[-1] == "nvmlDeviceResetGpuLockedClocks 0"
