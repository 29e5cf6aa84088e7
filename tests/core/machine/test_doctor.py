from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.machine.doctor_checks import (
    Modes,
    Survey,
    check_compiler,
    check_counters,
    check_home,
    check_modes,
    check_peaks,
    check_shared_memory,
    check_terminal,
    check_torch,
    gpu_checks,
    may_profile,
)

RunPython = Callable[..., Any]

EXAMINE = """
import sys, msgspec
from sysbench.core.machine.doctor_checks import examine
checks = examine()
assert "torch" not in sys.modules
sys.stdout.buffer.write(msgspec.json.encode({check.name: check for check in checks}))
"""


def test_without_a_gpu_the_first_line_says_why(without_nvml: RunPython) -> None:
    checks = without_nvml(EXAMINE)
    assert next(iter(checks)) == "GPU"
    assert checks["GPU"]["status"] == "missing"
    assert "no NVIDIA driver" in checks["GPU"]["found"]
    assert not {"telemetry", "activity counters", "hardware counters"} & set(checks)


def test_whatever_is_not_ok_says_its_cost_and_a_remedy(
    on_stub: RunPython, without_nvml: RunPython
) -> None:
    for checks in (
        without_nvml(EXAMINE, PATH="", SYSBENCH_HOME="/proc/none", TERM="dumb"),
        on_stub(EXAMINE, NVML_STUB_MIG="0", NVML_STUB_PROCESSES="1:1024"),
    ):
        for check in checks.values():
            is_ok = check["status"] == "ok"
            assert bool(check["costs"]) != is_ok, check
            assert bool(check["remedy"]) != is_ok, check


def test_a_capable_gpu(on_stub: RunPython) -> None:
    checks = on_stub(EXAMINE)
    assert checks["GPU"]["status"] == "ok"
    assert "driver 580.95.05, CUDA up to 13.0" in checks["GPU"]["found"]
    assert checks["telemetry"]["status"] == "ok"
    assert checks["activity counters"]["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "remedy"), [(9, "modprobe"), (18, "reboot"), (4, "/dev/nvidia"), (999, "Xid")]
)
def test_each_reason_of_a_silent_driver_has_its_remedy(
    on_stub: RunPython, code: int, remedy: str
) -> None:
    check = on_stub(EXAMINE, NVML_STUB_INIT=str(code))["GPU"]
    assert check["status"] == "missing" and remedy in check["remedy"]


@pytest.mark.parametrize(
    ("setting", "words", "remedy"),
    [
        ({}, "compute mode default, persistence on, ECC on, uncorrected errors 0", ""),
        ({"PERSISTENCE": "0"}, "persistence off", ""),
        ({"COMPUTE_MODE": "2"}, "compute mode prohibited", "nvidia-smi -c DEFAULT"),
        ({"COMPUTE_MODE": "3"}, "compute mode exclusive process", "nvidia-smi -c DEFAULT"),
        ({"REMAP_PENDING": "1"}, "damaged rows", "reset the GPU"),
        ({"ECC_ERRORS": "3"}, "uncorrected errors 3", "reset the GPU"),
    ],
)
def test_modes_of_a_gpu_that_decide_how_it_measures(
    on_stub: RunPython, setting: dict[str, str], words: str, remedy: str
) -> None:
    settings = {f"NVML_STUB_{name}": value for name, value in setting.items()}
    check = on_stub(EXAMINE, **settings)["GPU modes"]
    assert words in check["found"] and remedy in check["remedy"]
    assert (check["status"] == "ok") == (not remedy)


def test_a_gpu_that_only_torch_sees_is_no_missing_driver() -> None:
    survey = Survey(unavailable="no NVIDIA driver", seen_by_torch=2)
    (check,) = gpu_checks(survey)
    assert check.status == "warning" and check.found.startswith("torch finds 2 GPUs")
    assert "compute,utility" in check.remedy


def test_mps_is_named() -> None:
    check = check_modes([Modes(3, True, True, 0, False)], has_mps=True)
    assert check.status == "warning" and "MPS runs" in check.found


def test_fields_that_a_gpu_does_not_report(on_stub: RunPython) -> None:
    checks = on_stub(EXAMINE, NVML_STUB_REFUSE="nvmlDeviceGetTemperatureV:3")
    assert checks["telemetry"]["status"] == "ok", "the older call still answers"
    refused = "nvmlDeviceGetTemperatureV:3,nvmlDeviceGetTemperature:3,field83:3"
    checks = on_stub(EXAMINE, NVML_STUB_REFUSE=refused)
    assert checks["telemetry"]["found"] == "n/a: energy_joules, temperature_celsius"


def test_a_lost_gpu_and_its_neighbour(on_stub: RunPython) -> None:
    checks = on_stub(EXAMINE, NVML_STUB_GPUS="2", NVML_STUB_LOST="1:12")
    assert checks["GPU"]["status"] == "warning"
    assert "1 NVIDIA Stub [red]H[/] (lost)" in checks["GPU"]["found"]
    assert checks["telemetry"]["status"] == "ok"


def test_tenants_are_named(on_stub: RunPython) -> None:
    found = on_stub(EXAMINE, NVML_STUB_PROCESSES="4194305:2147483648")["other tenants"]["found"]
    assert found == "unseen process (pid 4194305) holds 2.00 GiB on GPU 0"


def test_a_busy_gpu_without_processes_is_suspicious(on_stub: RunPython) -> None:
    check = on_stub(EXAMINE)["other tenants"]
    assert check["status"] == "warning"
    assert check["found"] == "GPU 0 is 40 % busy without a visible process"


def test_no_tenants(on_stub: RunPython) -> None:
    check = on_stub(EXAMINE, NVML_STUB_REFUSE="nvmlDeviceGetUtilizationRates:3")["other tenants"]
    assert check["status"] == "ok"


@pytest.mark.parametrize(
    ("script", "nsys", "nvtx"),
    [
        ("echo NVIDIA Nsight Systems version 2026.3.1.10-1", "ok", "ok"),
        ("echo NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0", "ok", "warning"),
        ("exit 1", "warning", "ok"),
        ("echo hello", "warning", "ok"),
    ],
)
def test_which_nvtx_ranges_nsys_can_record(
    without_nvml: RunPython, tmp_path: Path, script: str, nsys: str, nvtx: str
) -> None:
    command = tmp_path / "nsys"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    checks = without_nvml(EXAMINE, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (checks["nsys"]["status"], checks["nvtx"]["status"]) == (nsys, nvtx)


def test_nvtx_under_a_profiler_that_does_not_hear_it(
    without_nvml: RunPython, tmp_path: Path
) -> None:
    checks = without_nvml(EXAMINE, NVTX_INJECTION64_PATH=str(tmp_path / "none.so"))
    assert checks["nvtx"]["status"] == "warning"


NO_GPU = Survey(unavailable="no NVIDIA driver")
CUDA_12 = Survey(unavailable="", cuda="12.4", driver="550.1")


@pytest.mark.parametrize(
    ("version", "cuda", "gpu", "status"),
    [
        (None, None, NO_GPU, "missing"),
        ("2.13.0+cpu", None, NO_GPU, "ok"),
        ("2.13.0+cpu", None, CUDA_12, "warning"),
        ("2.13.0+cu130", "13.0", CUDA_12, "warning"),
        ("2.13.0+cu128", "12.8", CUDA_12, "ok"),
        ("2.13.0+cu118", "11.8", CUDA_12, "ok"),
        ("2.13.0+cu130", "13.0", NO_GPU, "ok"),
    ],
)
def test_torch_against_the_driver(
    version: str | None, cuda: str | None, gpu: Survey, status: str
) -> None:
    assert check_torch({"version": version, "cuda": cuda}, gpu).status == status


@pytest.mark.parametrize(
    ("parameters", "is_admin", "status"),
    [
        ("EnableMSI: 1\nRmProfilingAdminOnly: 0\n", False, "ok"),
        ("RmProfilingAdminOnly: 1\n", False, "warning"),
        ("RmProfilingAdminOnly: 1\n", True, "ok"),
        ("", False, "warning"),
    ],
)
def test_hardware_counters(parameters: str, is_admin: bool, status: str) -> None:
    assert check_counters(parameters, is_admin=is_admin).status == status


def test_a_gpu_without_known_peaks_is_named_with_what_it_costs() -> None:
    check = check_peaks(["NVIDIA H100 80GB HBM3", "NVIDIA H20"])
    assert check.status == "warning"
    assert "H20" in check.found and "H100" not in check.found
    assert "--measure" in check.remedy
    assert check_peaks(["NVIDIA H100 80GB HBM3"]).status == "ok"


@pytest.mark.parametrize(
    ("rights", "driver", "may"),
    [
        ("000001ffffffffff", "580.95.05", True),  # root
        ("00000000a80425fb", "580.95.05", False),  # root in Docker: no CAP_SYS_ADMIN
        ("00000000a82425fb", "580.95.05", True),  # --cap-add=SYS_ADMIN
        ("0000004000000000", "580.95.05", True),  # CAP_PERFMON
        ("0000004000000000", "550.144.03", False),
        ("0000004000000000", None, False),
        ("0000000000000000", "580.95.05", False),
    ],
)
def test_root_in_a_container_is_no_administrator(
    rights: str, driver: str | None, may: bool
) -> None:
    status = f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{rights}\nCapBnd:\t0\n"
    assert may_profile(status, driver) == may


def test_a_process_with_unknown_rights_is_no_administrator() -> None:
    assert not may_profile("", "580.95.05")


@pytest.mark.parametrize(
    ("total_bytes", "status"), [(2**36, "ok"), (2**30, "ok"), (64 * 2**20, "warning")]
)
def test_room_for_what_ranks_share(total_bytes: int, status: str) -> None:
    assert check_shared_memory(total_bytes).status == status
    assert check_shared_memory(None).status == "warning"


def test_only_several_gpus_share_memory(on_stub: RunPython) -> None:
    assert "shared memory" in on_stub(EXAMINE, NVML_STUB_GPUS="2")
    assert "shared memory" not in on_stub(EXAMINE)


def test_a_good_terminal() -> None:
    environ = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "en_US.UTF-8"}
    check = check_terminal(environ, (120, 40))
    assert check.status == "ok"
    assert check.found == "xterm-256color, 120×40, 24-bit colour, UTF-8"


@pytest.mark.parametrize(
    ("changes", "size", "word"),
    [
        ({"TERM": "dumb"}, (120, 40), "do not work"),
        ({}, None, "do not work"),
        ({}, (79, 24), "80×24"),
        ({}, (80, 23), "80×24"),
        ({"LC_ALL": "C"}, (80, 24), "ASCII"),
        ({"TMUX": "/tmp/tmux-0", "COLORTERM": ""}, (80, 24), "256 colours"),
        ({"SSH_CONNECTION": "a 1 b 22", "COLORTERM": ""}, (80, 24), "256 colours"),
    ],
)
def test_what_a_terminal_lacks(
    changes: dict[str, str], size: tuple[int, int] | None, word: str
) -> None:
    environ = {"TERM": "xterm", "COLORTERM": "truecolor", "LANG": "C.UTF-8"} | changes
    check = check_terminal(environ, size)
    assert check.status == "warning"
    assert word in check.costs


def test_a_home_that_does_not_exist_yet(tmp_path: Path) -> None:
    check = check_home(tmp_path / "not" / "yet")
    assert check.status in ("ok", "warning")
    assert not (tmp_path / "not").exists()


def test_a_home_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = check_home(tmp_path / "file" / "home")
    assert check.status == "missing"
    assert "SYSBENCH_HOME" in check.remedy


def test_no_compiler(tmp_path: Path) -> None:
    check = check_compiler({"PATH": str(tmp_path)})
    assert check.status == "missing"
    assert "no C compiler, no C++ compiler" in check.found


def test_headers_are_those_of_the_workers_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"version": "3.12.1", "headers": str(tmp_path / "include")})
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho\necho 'sysbench-tui: {answer}'\n")
    python.chmod(0o755)
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    assert "Python.h" in check_compiler(os.environ).found
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    assert "Python.h" not in check_compiler(os.environ).found


def test_compilers_named_by_variables(tmp_path: Path) -> None:
    for name in ("my-cc", "my-cxx"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": str(tmp_path), "CC": "my-cc -O2", "CXX": "my-cxx"}
    found = check_compiler(environ).found
    assert "C compiler" not in found
    assert "C++ compiler" not in found
