"""Which device a spec means on this machine, found out without importing torch."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import SpecError
from .telemetry.host import memory_capacity_bytes
from .telemetry.nvml import Nvml
from .telemetry.sample import DeviceSample


def resolve_device(text: str) -> str:
    """The device that a run takes: ``cpu`` or ``cuda:N``.

    ``auto`` is the first CUDA device where there is one that torch can use, else the CPU.
    Opens NVML, which can take a second on an idle driver: not for every keystroke.

    Raises:
        SpecError: A CUDA device was asked for that is not there; says why.
    """
    if text == "cpu":
        return text
    found, why_none = find_cuda()
    if text == "auto":
        return "cuda:0" if found else "cpu"
    if not found:
        raise SpecError(
            "device", text, f"{why_none}; take cpu, or see what `sysbench-tui doctor` advises"
        )
    ordinal = int(text.partition(":")[2] or 0)
    if ordinal >= len(found):
        there = ", ".join(f"cuda:{n}" for n in range(len(found)))
        raise SpecError("device", text, f"not among the CUDA devices that a run can see: {there}")
    return f"cuda:{ordinal}"


def find_cuda() -> tuple[list[DeviceSample | None], str]:
    """The CUDA devices of `visible_devices`, and if there are none a short reason."""
    with Nvml(gpm=False) as nvml:
        if nvml.unavailable:
            return [], nvml.unavailable
        found = visible_devices(nvml.read(), os.environ)
    if not found:
        value = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return [], f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU"
    torch = torch_facts()
    if torch["version"] is None:
        return [], "torch is not installed"
    if torch["cuda"] is None:
        return [], f"torch {torch['version']} was built without CUDA"
    return found, ""


def visible_devices(
    devices: Sequence[DeviceSample], environ: Mapping[str, str]
) -> list[DeviceSample | None]:
    """GPUs as CUDA numbers them, from GPUs as NVML does.

    A device is None where NVML cannot say which one it is: a MIG slice, or a number on a
    machine with unlike GPUs, that CUDA sorts by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    is_bus_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    is_known = is_bus_order or len({device.name for device in devices}) == 1
    numbered = [device if is_known and not device.mig else None for device in devices]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return numbered
    found: list[DeviceSample | None] = []
    for entry in map(str.strip, chosen.split(",")):
        with_uuid = [device for device in devices if entry and device.uuid.startswith(entry)]
        if entry.isdecimal() and int(entry) < len(devices):
            found.append(numbered[int(entry)])
        elif entry.startswith("MIG-"):
            found.append(None)
        elif len(with_uuid) == 1:
            found.append(with_uuid[0])
        else:
            # CUDA hides this entry, and all that follow it.
            break
    return found


def nvml_index(device: str, devices: Sequence[DeviceSample]) -> int | None:
    """The NVML index of ``cuda:N``; None on the CPU or where it cannot be told."""
    sample = _sample_of(device, visible_devices(devices, os.environ))
    return None if sample is None else sample.index


def capacity_bytes(device: str) -> int | None:
    """Memory that a run on ``cpu`` or ``cuda:N`` may fill, or None where nobody says."""
    if device == "cpu":
        return memory_capacity_bytes()
    sample = sample_of(device)
    return None if sample is None else sample.memory_total_bytes


def sample_of(device: str) -> DeviceSample | None:
    """What NVML says of ``cuda:N``; None where it cannot tell which one that is."""
    with Nvml(gpm=False) as nvml:
        return _sample_of(device, visible_devices(nvml.read(), os.environ))


def _sample_of(device: str, visible: list[DeviceSample | None]) -> DeviceSample | None:
    ordinal = int(device.partition(":")[2] or 0)
    is_there = device.startswith("cuda") and ordinal < len(visible)
    return visible[ordinal] if is_there else None


def torch_facts() -> dict[str, str | None]:
    """The torch that a worker would import: ``version``, ``cuda`` and ``path``.

    ``cuda`` is the version it was built for, None in a CPU build; all None without torch.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {"version": None, "cuda": None, "path": None}
    folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        text = ""
    return {
        "version": _assigned(text, "__version__"),
        "cuda": _assigned(text, "cuda"),
        "path": str(folder),
    }


def _assigned(source: str, name: str) -> str | None:
    """The text that a line such as ``cuda: Optional[str] = '13.0'`` gives to a name."""
    match = re.search(rf"^{name}\b[^=\n]*=\s*(.+)$", source, re.MULTILINE)
    value = ast.literal_eval(match[1].strip()) if match else None
    return value if isinstance(value, str) else None
