"""The real pynvml against a stub of the driver's library."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.machine.nvml import CLOCK_REASONS, clock_words

RunPython = Callable[..., Any]
GIB = 2**30
BETWEEN_ACTIVITY = "0.11"

READ_THRICE = """
import os, sys, time, msgspec
from sysbench.core.machine.nvml import Nvml
with Nvml() as nvml:
    why = nvml.unavailable
    looks = []
    for slow in (True, False, True):
        looks.append(nvml.read(slow))
        time.sleep(float(os.environ.get('PAUSE', 0)))
sys.stdout.buffer.write(msgspec.json.encode({"why": why, "looks": looks}))
"""


def calls(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines())


def test_every_field_of_a_capable_gpu(on_stub: RunPython) -> None:
    answer = on_stub(READ_THRICE, PAUSE=BETWEEN_ACTIVITY)
    assert answer["why"] == ""
    assert answer["looks"][-1] == [
        {
            "index": 0,
            "name": "NVIDIA Stub [red]H[/]",
            "uuid": "GPU-000000a0-0000-4000-8000-000000000000",
            "lost": False,
            "utilization": 0.4,
            "sm_active": 0.925,
            "tensor_active": 0.61,
            "dram_active": 0.38,
            "memory_used_bytes": 10 * GIB,
            "memory_total_bytes": 79 * GIB,
            "power_watts": 612.0,
            "power_limit_watts": 700.0,
            "energy_joules": 1500.0,
            "sm_clock_mhz": 1755,
            "sm_clock_max_mhz": 1980,
            "memory_clock_mhz": 2619,
            "temperature_celsius": 61,
            "clock_reasons": [],
            "processes": [],
            "mig": False,
        }
    ]


def test_activity_needs_a_look_before(on_stub: RunPython) -> None:
    answer = on_stub(READ_THRICE, PAUSE=BETWEEN_ACTIVITY)
    first, second, _ = (look[0] for look in answer["looks"])
    assert (first["sm_active"], first["tensor_active"], first["dram_active"]) == (None,) * 3
    assert second["sm_active"] == 0.925


def test_two_gpus_are_distinguished(on_stub: RunPython) -> None:
    devices = on_stub(READ_THRICE, NVML_STUB_GPUS="2")["looks"][0]
    assert [device["index"] for device in devices] == [0, 1]
    assert [device["utilization"] for device in devices] == [0.4, 0.5]
    assert devices[0]["uuid"] != devices[1]["uuid"]


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilization"),
        ("nvmlDeviceGetMemoryInfo_v2", "memory_used_bytes"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
        ("nvmlDeviceGetMigMode", "mig"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
        ("nvmlGpmSampleGet", "sm_active"),
    ],
)
@pytest.mark.parametrize("code", ["3", "4"], ids=["not supported", "no permission"])
def test_a_field_refused_for_good_is_null_and_asked_once(
    on_stub: RunPython, tmp_path: Path, function: str, field: str, code: str
) -> None:
    log = tmp_path / "log"
    answer = on_stub(READ_THRICE, NVML_STUB_REFUSE=f"{function}:{code}", NVML_STUB_LOG=str(log))
    assert [look[0][field] for look in answer["looks"]] == [None, None, None]
    assert calls(log)[f"{function} 0"] == 1
    assert answer["looks"][-1][0]["sm_clock_mhz"] == 1755


def test_a_field_refused_for_now_is_null_and_asked_again(
    on_stub: RunPython, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    function = "nvmlDeviceGetUtilizationRates"
    answer = on_stub(READ_THRICE, NVML_STUB_REFUSE=f"{function}:10", NVML_STUB_LOG=str(log))
    assert [look[0]["utilization"] for look in answer["looks"]] == [None, None, None]
    assert calls(log)[f"{function} 0"] == 3


def test_slow_fields_are_queried_on_request_and_repeated_in_between(
    on_stub: RunPython, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    answer = on_stub(READ_THRICE, NVML_STUB_LOG=str(log))
    newer, older = "nvmlDeviceGetTemperatureV 0", "nvmlDeviceGetTemperature 0"
    assert calls(log)[newer] + calls(log)[older] == 2
    assert calls(log)["nvmlDeviceGetUtilizationRates 0"] == 3
    assert [look[0]["temperature_celsius"] for look in answer["looks"]] == [61, 61, 61]


@pytest.mark.parametrize("refused", ["field186", "nvmlDeviceGetFieldValues"])
def test_power_falls_back_to_the_older_call(on_stub: RunPython, refused: str) -> None:
    device = on_stub(READ_THRICE, NVML_STUB_REFUSE=f"{refused}:3")["looks"][0][0]
    assert device["power_watts"] == 300.0


def test_each_batched_field_is_checked_by_itself(on_stub: RunPython) -> None:
    device = on_stub(READ_THRICE, NVML_STUB_REFUSE="field83:3")["looks"][0][0]
    assert (device["power_watts"], device["energy_joules"]) == (612.0, None)


def test_each_activity_counter_is_checked_by_itself(on_stub: RunPython) -> None:
    answer = on_stub(READ_THRICE, NVML_STUB_REFUSE="metric5:3", PAUSE=BETWEEN_ACTIVITY)
    device = answer["looks"][-1][0]
    assert (device["sm_active"], device["tensor_active"]) == (0.925, None)


def test_a_gpu_lost_midway_says_so_and_the_other_goes_on(
    on_stub: RunPython, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # Opening and the first look take fewer calls than that, two looks take more.
    answer = on_stub(READ_THRICE, NVML_STUB_GPUS="2", NVML_STUB_LOST="1:20", NVML_STUB_LOG=str(log))
    lost = [look[1]["lost"] for look in answer["looks"]]
    assert lost == [False, True, True]
    gone = answer["looks"][-1][1]
    assert gone["name"] == "NVIDIA Stub [red]H[/]"
    assert (gone["utilization"], gone["temperature_celsius"]) == (None, None)
    assert [look[0]["utilization"] for look in answer["looks"]] == [0.4, 0.4, 0.4]
    answered = sum(count for call, count in calls(log).items() if call.endswith(" 1"))
    assert answered == 21, "a lost GPU is not asked again"


def test_a_gpu_lost_before_it_is_opened(on_stub: RunPython) -> None:
    devices = on_stub(READ_THRICE, NVML_STUB_GPUS="2", NVML_STUB_LOST="0:0")["looks"][0]
    assert [(device["name"], device["lost"]) for device in devices] == [
        ("GPU 0", True),
        ("NVIDIA Stub [red]H[/]", False),
    ]


def test_mig_mode_hides_utilization_and_activity(on_stub: RunPython) -> None:
    device = on_stub(READ_THRICE, NVML_STUB_MIG="0", PAUSE=BETWEEN_ACTIVITY)["looks"][-1][0]
    assert device["mig"] is True
    assert (device["utilization"], device["sm_active"]) == (None, None)
    assert device["memory_used_bytes"] == 10 * GIB


def test_an_old_driver_is_asked_in_its_own_words(on_old_driver: RunPython) -> None:
    device = on_old_driver(READ_THRICE, NVML_STUB_REASONS="0x20")["looks"][-1][0]
    assert device["clock_reasons"] == ["software thermal"]
    assert device["temperature_celsius"] == 61
    assert device["sm_active"] is None


OLD_PYNVML = """
import pynvml
for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"):
    vars(pynvml).pop(name, None)
"""


def test_an_old_pynvml_is_asked_in_its_own_words(on_stub: RunPython) -> None:
    """As 12.560: a box that brings its own torch may bring one."""
    device = on_stub(OLD_PYNVML + READ_THRICE, NVML_STUB_REASONS="0x20")["looks"][-1][0]
    assert device["clock_reasons"] == ["software thermal"]
    assert device["temperature_celsius"] == 61


AS_TORCH_ASKS = """
import ctypes, json
NAMES = (  # c10/cuda/driver_api.h and torch/cuda/__init__.py of torch 2.9 to 2.13
    "nvmlInit", "nvmlInit_v2", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUUID",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetGpuFabricInfoV",
)
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong)]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
missing = [name for name in NAMES if not hasattr(nvml, name)]
gpu, count, room = ctypes.c_void_p(), ctypes.c_uint(8), (Process * 8)()
codes = [
    nvml.nvmlInit_v2(),
    nvml.nvmlDeviceGetHandleByPciBusId_v2(b"00000000:00:00.0", ctypes.byref(gpu)),
    nvml.nvmlDeviceGetComputeRunningProcesses(gpu, ctypes.byref(count), room),
    nvml.nvmlDeviceGetHandleByPciBusId_v2(b"00000000:07:00.0", ctypes.byref(gpu)),
]
found = [(room[n].pid, room[n].bytes) for n in range(count.value)]
print(json.dumps({"missing": missing, "codes": codes, "found": found}))
"""


def test_the_stub_has_what_torch_asks_when_memory_runs_out(on_stub: RunPython) -> None:
    """A name that is missing, or a refusal, makes torch's out-of-memory an internal assert."""
    answer = on_stub(AS_TORCH_ASKS, NVML_STUB_PROCESSES="4211:1024,77:5")
    assert answer["missing"] == []
    assert answer["codes"] == [0, 0, 0, 2]
    assert answer["found"] == [[4211, 1024], [77, 5]]


SHARES = """
import json, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByUUID("GPU-000000a1-0000-4000-8000-000000000000")
print(json.dumps({
    "uuid": pynvml.nvmlDeviceGetUUID(gpu),
    "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu),
}))
"""


def test_the_stub_finds_a_gpu_by_its_uuid(on_stub: RunPython) -> None:
    answer = on_stub(SHARES, NVML_STUB_GPUS="2")
    assert answer == {"uuid": "GPU-000000a1-0000-4000-8000-000000000000", "graphics": []}


def test_processes_are_named_and_their_memory_may_be_hidden(on_stub: RunPython) -> None:
    # Above the largest pid that Linux gives.
    gone = 2**22 + 1
    listed = f"{os.getpid()}:{3 * GIB},{gone}:-"
    processes = on_stub(READ_THRICE, NVML_STUB_PROCESSES=listed)["looks"][0][0]["processes"]
    assert processes == [
        {"pid": os.getpid(), "name": psutil.Process().name(), "memory_bytes": 3 * GIB},
        {"pid": gone, "name": "unseen process", "memory_bytes": None},
    ]


def test_graphics_programs_and_clients_of_mps_are_processes_too(on_stub: RunPython) -> None:
    lists = {"PROCESSES": "4211:1024", "GRAPHICS": "77:5,4211:1024", "MPS": "5000:9"}
    settings = {f"NVML_STUB_{name}": rows for name, rows in lists.items()}
    processes = on_stub(READ_THRICE, **settings)["looks"][0][0]["processes"]
    held = [(one["pid"], one["memory_bytes"]) for one in processes]
    assert held == [(4211, 1024), (77, 5), (5000, 9)]


def test_clock_reasons_become_words(on_stub: RunPython) -> None:
    device = on_stub(READ_THRICE, NVML_STUB_REASONS="0x24")["looks"][0][0]
    assert device["clock_reasons"] == ["power cap", "software thermal"]


@given(st.sets(st.sampled_from(sorted(CLOCK_REASONS))), st.integers(0, 7))
def test_no_clock_reason_is_dropped(bits: set[int], unknown: int) -> None:
    words = clock_words(sum(bits) | unknown << 16)
    assert words[: len(bits)] == [CLOCK_REASONS[bit] for bit in sorted(bits)]
    assert words[len(bits) :] == ([f"reason {unknown << 16:#x}"] if unknown else [])


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"NVML_STUB_INIT": "9"}, "installed but not loaded"),
        ({"NVML_STUB_INIT": "18"}, "updated while loaded"),
        ({"NVML_STUB_INIT": "999"}, "Unknown Error"),
        ({"NVML_STUB_GPUS": "0"}, "sees no GPU"),
        ({"NVML_STUB_REFUSE": "nvmlDeviceGetHandleByIndex_v2:4"}, "no permission"),
    ],
)
def test_a_driver_without_gpus_for_us_says_why(
    on_stub: RunPython, environ: dict[str, str], why: str
) -> None:
    answer = on_stub(READ_THRICE, **environ)
    assert why in answer["why"]
    assert answer["looks"] == [[], [], []]


def test_no_library_is_a_reason_and_no_error(without_nvml: RunPython) -> None:
    answer = without_nvml(READ_THRICE)
    assert answer["why"] == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
    assert answer["looks"] == [[], [], []]


def test_opening_twice_in_one_process_works(on_stub: RunPython) -> None:
    code = """
import json
from sysbench.core.machine.nvml import Nvml
with Nvml() as outer:
    with Nvml() as inner:
        names = [inner.read()[0].name]
    after = inner.read(), inner.unavailable
    names.append(outer.read()[0].name)
print(json.dumps({"names": names, "after": after}))
"""
    answer = on_stub(code)
    assert answer["names"] == ["NVIDIA Stub [red]H[/]"] * 2
    assert answer["after"] == [[], "NVML is closed"]
