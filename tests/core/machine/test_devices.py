from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.core.machine.devices import (
    device_capacity,
    in_bus_order,
    nvml_index,
    torch_facts,
    visible_devices,
)
from sysbench.core.machine.sample import DeviceSample
from sysbench.core.runs.worker_process import Job, WorkerProcess
from sysbench.core.spec.spec import RunSpec

RunPython = Callable[..., Any]

# With a resolved device its capacity, with a refused one the message.
RESOLVE = """
import json, os, sys
from sysbench.core.machine.devices import device_capacity, resolve_device
from sysbench.core.errors import SpecError
try:
    device = resolve_device(os.environ["DEVICE"])
    answer = device, device_capacity(device).capacity_bytes
except SpecError as error:
    assert error.field == "device"
    answer = "refused", str(error)
assert "torch" not in sys.modules
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def cuda_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder whose torch says that it was built for CUDA, and cannot be imported."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (folder / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.13.0+cu130'\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    return str(folder)


@pytest.mark.parametrize(
    ("asked", "got"), [("auto", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")]
)
def test_a_gpu_that_torch_can_use_is_taken(
    on_stub: RunPython, cuda_torch: str, asked: str, got: str
) -> None:
    answer = on_stub(RESOLVE, DEVICE=asked, NVML_STUB_GPUS="2", PYTHONPATH=cuda_torch)
    assert answer == [got, 79 * 2**30]


def test_a_device_beyond_the_last_names_those_there(on_stub: RunPython, cuda_torch: str) -> None:
    kind, message = on_stub(RESOLVE, DEVICE="cuda:2", NVML_STUB_GPUS="2", PYTHONPATH=cuda_torch)
    assert kind == "refused"
    assert "cuda:0, cuda:1" in message


@pytest.mark.parametrize("hidden", ["", "-1", "7", "GPU-nobody"])
def test_hidden_gpus_leave_the_cpu_and_are_named(
    on_stub: RunPython, cuda_torch: str, hidden: str
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": hidden, "PYTHONPATH": cuda_torch}
    assert on_stub(RESOLVE, DEVICE="auto", **environ)[0] == "cpu"
    kind, message = on_stub(RESOLVE, DEVICE="cuda:0", **environ)
    assert kind == "refused"
    assert f"CUDA_VISIBLE_DEVICES={hidden!r}" in message


def test_a_torch_for_the_cpu_is_the_reason_on_a_gpu_box(on_stub: RunPython, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda = None\n")
    environ = {"PYTHONPATH": str(tmp_path)}
    assert on_stub(RESOLVE, DEVICE="auto", **environ)[0] == "cpu"
    kind, message = on_stub(RESOLVE, DEVICE="cuda", **environ)
    assert kind == "refused"
    assert "torch 2.9.1+cpu was built without CUDA" in message


def test_no_driver_is_the_reason_without_one(without_nvml: RunPython, cuda_torch: str) -> None:
    assert without_nvml(RESOLVE, DEVICE="auto", PYTHONPATH=cuda_torch)[0] == "cpu"
    kind, message = without_nvml(RESOLVE, DEVICE="cuda:0", PYTHONPATH=cuda_torch)
    assert kind == "refused"
    assert "no NVIDIA driver" in message
    assert "take cpu" in message


ASKS_TORCH = """
import json, os
from sysbench.core.machine.devices import find_cuda, resolve_device
found = find_cuda()
print(json.dumps([resolve_device("auto"), len(found.devices), found.why_none, found.is_left_out]))
"""
HIP_TORCH = """
class cuda:
    def device_count(): return {count}
    def init(): {init}
"""


def hip_torch(folder: Path, count: int, init: str = "pass") -> str:
    """A folder with a torch for AMD's GPUs, of which NVML knows nothing."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(HIP_TORCH.format(count=count, init=init))
    (folder / "torch" / "version.py").write_text(
        "__version__ = '2.11.0+rocm6.4'\ncuda = None\nhip = '6.4.43482'\n"
    )
    return str(folder)


def test_a_torch_for_rocm_is_asked_for_its_devices(without_nvml: RunPython, tmp_path: Path) -> None:
    site = hip_torch(tmp_path, 3)
    assert without_nvml(ASKS_TORCH, PYTHONPATH=site) == ["cuda:0", 3, "", False]


def test_what_torch_says_of_no_device_is_the_reason(
    without_nvml: RunPython, tmp_path: Path
) -> None:
    site = hip_torch(tmp_path, 1, "raise RuntimeError('No HIP GPUs are available')")
    device, count, why, _ = without_nvml(ASKS_TORCH, PYTHONPATH=site)
    assert (device, count) == ("cpu", 0)
    assert why.endswith("torch 2.11.0+rocm6.4: No HIP GPUs are available")


@pytest.mark.parametrize(("code", "words"), [(18, "updated while loaded"), (9, "not loaded")])
def test_a_gpu_that_nvml_has_and_cannot_give_is_left_out(
    on_stub: RunPython, cuda_torch: str, code: int, words: str
) -> None:
    answer = on_stub(ASKS_TORCH, NVML_STUB_INIT=str(code), PYTHONPATH=cuda_torch)
    assert answer[0] == "cpu" and words in answer[2] and answer[3] is True


def test_a_gpu_that_is_hidden_is_not_left_out(on_stub: RunPython, cuda_torch: str) -> None:
    settings = {"NVML_STUB_INIT": "18", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": cuda_torch}
    assert on_stub(ASKS_TORCH, **settings)[3] is False


def test_a_torch_for_the_cpu_leaves_a_gpu_out(on_stub: RunPython, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda = None\n")
    assert on_stub(ASKS_TORCH, PYTHONPATH=str(tmp_path))[3] is True


def gpus(*names: str, mig: bool = False) -> list[DeviceSample]:
    return [
        DeviceSample(index=n, name=name, uuid=f"GPU-{n}f00", mig=mig)
        for n, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("environ", "indices"),
    [
        ({}, [0, 1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , GPU-2"}, [1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,2, 0,1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,GPU-1f"}, []),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,2"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234,0"}, [None]),
        ({"CUDA_VISIBLE_DEVICES": "0,MIG-1234,MIG-5678"}, [None]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234,MIG-1234"}, []),
    ],
)
def test_cuda_numbers_become_nvml_numbers(
    environ: dict[str, str], indices: list[int | None]
) -> None:
    found = visible_devices(gpus("A", "A", "A"), environ)
    assert [device and device.index for device in found] == indices


def test_unlike_gpus_are_known_by_the_order_that_workers_get() -> None:
    devices = gpus("A", "B")
    assert visible_devices(devices, {}) == devices
    assert visible_devices(devices, in_bus_order({"CUDA_VISIBLE_DEVICES": "1"})) == [devices[1]]
    assert visible_devices(devices, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == devices


def test_an_order_that_was_asked_for_stays_and_hides_unlike_gpus() -> None:
    devices, fastest = gpus("A", "B"), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert in_bus_order(fastest) == fastest
    assert visible_devices(devices, fastest) == [None, None]
    assert visible_devices(gpus("A", "A"), fastest) == gpus("A", "A")
    assert visible_devices(devices, fastest | {"CUDA_VISIBLE_DEVICES": "GPU-1"}) == [devices[1]]


def test_a_worker_numbers_its_devices_as_we_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    job = Job(spec=RunSpec(device="cpu"), name="timing", folder=str(tmp_path))
    worker = WorkerProcess(job, tmp_path / "log")
    try:
        # Its first event: the kernel shows no environment while it still starts the program.
        while not list(worker.events(60)):
            assert not worker.ended
        variables = psutil.Process(worker.pid).environ()
    finally:
        worker.close()
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_gpu_in_mig_mode_is_not_what_a_run_gets() -> None:
    for slices in (gpus("A", mig=True), gpus("A", "A", mig=True)):
        assert visible_devices(slices, {}) == [None]
    mixed = [gpus("A")[0], gpus("A", "A", mig=True)[1]]
    assert visible_devices(mixed, {}) == [None]
    assert visible_devices(mixed, {"CUDA_VISIBLE_DEVICES": "0"}) == [mixed[0]]


def test_nvml_index_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    devices = gpus("A", "A")
    assert nvml_index("cuda:0", devices) == 1
    assert nvml_index("cuda:1", devices) is None
    assert nvml_index("cpu", devices) is None


def test_a_gpu_reports_its_capability(on_stub: RunPython) -> None:
    code = (
        "import json; from sysbench.core.machine.devices import device_capacity; "
        "print(json.dumps([(m.capacity_bytes, m.capability) for m in map(device_capacity, "
        "('cuda:1', 'cuda:2', 'auto'))]))"
    )
    answer = on_stub(code, NVML_STUB_GPUS="2")
    assert answer == [[79 * 2**30, "9.0"], [None, None], [None, None]]


def test_capacity_of_the_cpu_is_the_machine_at_most() -> None:
    capacity = device_capacity("cpu").capacity_bytes
    assert capacity is not None
    assert 0 < capacity <= psutil.virtual_memory().total


def test_facts_of_the_torch_that_is_installed() -> None:
    import torch

    facts = torch_facts()
    assert facts["version"] == torch.__version__
    assert facts["cuda"] == torch.version.cuda
