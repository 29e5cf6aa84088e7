"""Resolve a spec's device on this machine, and read what it can do, without importing torch."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sysbench.core.errors import InterpreterError, SpecError
from sysbench.core.machine.children import child_environment
from sysbench.core.machine.interpreter import chosen_python, probe_python
from sysbench.core.machine.nvml import NO_GPU, Nvml
from sysbench.core.machine.sample import DeviceSample
from sysbench.core.storage import text_of

DEVICE_ORDER, BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""Variable by which CUDA numbers its devices, and the value that matches NVML's order.

Without it CUDA sorts different GPUs by an estimate of their speed.
"""


NVIDIA_GPU, AMD_GPU = Path("/dev/nvidia0"), Path("/dev/kfd")
"""Files that exist on a machine with such a GPU."""
ASK_TORCH = """
import torch
count, why = torch.cuda.device_count(), ""
try:
    torch.cuda.init()
except Exception as error:
    count, why = 0, " ".join(str(error).split())
print(count, why)
"""
ASK_SECONDS = 120.0


def in_bus_order(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a process that uses CUDA, in bus order unless it is set already."""
    return {DEVICE_ORDER: BUS_ORDER, **environ}


def resolve_device(text: str) -> str:
    """Resolve the device of a run: ``cpu`` or ``cuda:N``.

    ``auto`` is the first CUDA device that torch can use, else the CPU. Opens NVML, which can take a
    second on an idle driver, and asks torch without NVML: do not call it on every keystroke.

    Raises:
        SpecError: The requested CUDA device does not exist; the message has the reason.
    """
    if text == "cpu":
        return text
    found = find_cuda()
    devices = found.devices
    if text == "auto":
        return "cuda:0" if devices else "cpu"
    if not devices:
        raise SpecError(
            "device", text, f"{found.why_none}; take cpu, or see what `sysbench-tui doctor` advises"
        )
    ordinal = int(text.partition(":")[2] or 0)
    if ordinal >= len(devices):
        names = ", ".join(f"cuda:{n}" for n in range(len(devices)))
        raise SpecError("device", text, f"not among the CUDA devices that a run can see: {names}")
    return f"cuda:{ordinal}"


@dataclass(frozen=True, slots=True)
class FoundCuda:
    """CUDA devices of `visible_devices`, or a short reason why there are none.

    Attributes:
        is_left_out: Whether this machine has a GPU, that no run can use and nobody has hidden.
    """

    devices: list[DeviceSample | None]
    why_none: str = ""
    is_left_out: bool = False


def find_cuda() -> FoundCuda:
    """Return the result of `search_cuda` for the chosen interpreter."""
    with Nvml(gpm=False) as nvml:
        return search_cuda(nvml)


def search_cuda(nvml: Nvml, python: str | None = None) -> FoundCuda:
    """Ask an open NVML, and torch where NVML does not answer.

    A container may have CUDA without NVML, and AMD's GPUs have none. Torch then answers in a
    process of its own, which takes seconds, and once.

    Args:
        python: The worker's interpreter, as of `torch_facts`.
    """
    devices = visible_devices(nvml.read(), os.environ)
    if not nvml.unavailable and not devices:
        value = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return FoundCuda([], f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU{_repeats(value)}")
    is_here = NVIDIA_GPU.exists() or nvml.unavailable not in ("", *NO_GPU)
    why = nvml.unavailable
    try:
        torch = torch_facts(python)
    except InterpreterError:
        if not why:
            raise
        return FoundCuda([], why, is_left_out=is_here)  # the interpreter is refused elsewhere
    if torch["version"] is None:
        why = why or "torch is not installed"
    elif torch["cuda"] is None and torch["hip"] is None:
        why = why or f"torch {torch['version']} was built without CUDA"
    elif devices:
        return FoundCuda(devices)
    elif torch["hip"] is not None or _has_cuda_driver():
        count, torch_says = _ask_torch(chosen_python() if python is None else python, _hidden())
        if count:
            return FoundCuda([None] * count)
        why = f"{why}; torch {torch['version']}: {torch_says or 'no device'}"
        is_here |= torch["hip"] is not None and AMD_GPU.exists()
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return FoundCuda([], why, is_left_out=bool(devices) or (is_here and not is_hidden))


def _repeats(visible: str) -> str:
    entries = [*map(str.strip, visible.split(","))]
    return " because an entry is repeated" if len({*entries}) < len(entries) else ""


def _hidden() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")))


def _has_cuda_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@cache
def _ask_torch(python: str, hidden: tuple[str | None, ...]) -> tuple[int, str]:
    """Return the number of devices that torch finds, and its reason for none.

    Args:
        hidden: Variables that decide it.
    """
    command = [python or sys.executable, "-P", "-c", ASK_TORCH]
    environ = in_bus_order(child_environment(python, os.environ))
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, str(error)
    last = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1:] or [""]
    if done.returncode:
        return 0, last[0]
    count, _, why = last[0].partition(" ")
    return int(count), why


def visible_devices(
    devices: Sequence[DeviceSample], environ: Mapping[str, str]
) -> list[DeviceSample | None]:
    """Convert GPUs from NVML's to CUDA's numbering.

    A device is None if NVML cannot identify it: a MIG slice, or a number on a machine with
    different GPUs and CUDA_DEVICE_ORDER by speed. Workers start with `in_bus_order`.

    CUDA shows no device if an entry of CUDA_VISIBLE_DEVICES is repeated, and one MIG slice only,
    without any other GPU.
    """
    is_bus_order = environ.get(DEVICE_ORDER, BUS_ORDER) == BUS_ORDER
    is_same_order = is_bus_order or len({device.name for device in devices}) == 1
    numbered = [device if is_same_order and not device.mig else None for device in devices]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [None] if any(device.mig for device in devices) else numbered
    visible: dict[int | str, DeviceSample | None] = {}
    has_slice = False
    for entry in map(str.strip, chosen.split(",")):
        with_uuid = [device for device in devices if entry and device.uuid.startswith(entry)]
        place: int | str
        if entry.startswith("MIG-"):
            place, device = entry, None
        elif entry.isdecimal() and int(entry) < len(devices):
            place, device = int(entry), numbered[int(entry)]
        elif len(with_uuid) == 1:
            place, device = devices.index(with_uuid[0]), with_uuid[0]
        else:
            # CUDA hides an invalid entry, and all that follow it.
            break
        if place in visible:
            return []
        visible[place] = device
        has_slice = has_slice or isinstance(place, str) or devices[place].mig is True
    return [None] if has_slice else [*visible.values()]


def nvml_index(device: str, devices: Sequence[DeviceSample]) -> int | None:
    """Return the NVML index of ``cuda:N``; None on the CPU or if NVML cannot identify it."""
    sample = _sample_of(device, visible_devices(devices, os.environ))
    return None if sample is None else sample.index


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """Memory of a device of this machine.

    Attributes:
        capacity_bytes: Usable by runs, without the part that a GPU's driver reserves; None if the
            device is unknown.
        capability: Compute capability of a GPU, such as ``9.0``; None if NVML has none.
    """

    capacity_bytes: int | None
    capability: str | None = None


def device_capacity(device: str) -> DeviceCapacity:
    if device == "cpu":
        from sysbench.core.machine.host_sampler import memory_capacity_bytes  # lazy: psutil

        return DeviceCapacity(memory_capacity_bytes())
    if not device.startswith("cuda"):
        return DeviceCapacity(None)
    with Nvml(gpm=False) as nvml:
        samples = nvml.read()
        sample = _sample_of(device, visible_devices(samples, os.environ))
        if sample is None:
            return DeviceCapacity(None)
        facts = nvml.facts()[samples.index(sample)]
        return DeviceCapacity(sample.memory_total_bytes, facts.get("compute_capability"))


def sample_of(device: str) -> DeviceSample | None:
    """Return NVML's sample of ``cuda:N``; None on the CPU or if NVML cannot identify the device."""
    if not device.startswith("cuda"):
        return None  # opening NVML can take a second
    with Nvml(gpm=False) as nvml:
        return _sample_of(device, visible_devices(nvml.read(), os.environ))


def _sample_of(device: str, visible: list[DeviceSample | None]) -> DeviceSample | None:
    ordinal = int(device.partition(":")[2] or 0)
    exists = device.startswith("cuda") and ordinal < len(visible)
    return visible[ordinal] if exists else None


def torch_facts(python: str | None = None) -> dict[str, str | None]:
    """Return the torch that a worker would import: ``version``, ``cuda``, ``hip`` and ``path``.

    ``cuda`` and ``hip`` are the versions it was built for, None in other builds; all None without
    torch.

    Args:
        python: The worker's interpreter; empty for this one (default: the chosen one).

    Raises:
        InterpreterError: There is no such interpreter, or it does not answer.
    """
    origin = _torch_origin(chosen_python() if python is None else python)
    if not origin:
        return {"version": None, "cuda": None, "hip": None, "path": None}
    folder = Path(origin).parent
    text = text_of(folder / "version.py")
    return {
        "version": _assigned_text(text, "__version__"),
        "cuda": _assigned_text(text, "cuda"),
        "hip": _assigned_text(text, "hip"),
        "path": str(folder),
    }


def _torch_origin(python: str) -> str | None:
    if python:
        return probe_python(python).torch
    spec = importlib.util.find_spec("torch")
    return None if spec is None else spec.origin


def _assigned_text(source: str, name: str) -> str | None:
    match = re.search(rf"^{name}\b[^=\n]*=\s*(.+)$", source, re.MULTILINE)
    value = ast.literal_eval(match[1].strip()) if match else None
    return value if isinstance(value, str) else None


LADDER: tuple[tuple[str, frozenset[str]], ...] = (
    ("SSE41", frozenset({"sse4_1"})),
    ("AVX", frozenset({"avx"})),
    ("AVX2", frozenset({"avx2"})),
    ("AVX2_VNNI", frozenset({"avx_vnni"})),
    ("AVX2_VNNI_2", frozenset({"avx_vnni", "avx_vnni_int8", "avx_ne_convert"})),
    ("AVX512_CORE", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})),
    ("AVX512_CORE_VNNI", frozenset({"avx512f", "avx512_vnni"})),
    ("AVX512_CORE_BF16", frozenset({"avx512f", "avx512_bf16"})),
    ("AVX512_CORE_FP16", frozenset({"avx512f", "avx512_fp16"})),
    ("AVX512_CORE_AMX", frozenset({"avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"})),
    ("AVX512_CORE_AMX_FP16", frozenset({"avx512_fp16", "amx_tile", "amx_fp16"})),
)
"""oneDNN's names, smallest set first, and the flags of ``/proc/cpuinfo`` that each requires."""

NAMES = tuple(name for name, _ in LADDER)
OTHER_NAMES = {
    "AVX10_1_512": "AVX512_CORE_FP16",
    "AVX10_1_512_AMX": "AVX512_CORE_AMX",
    "AVX10_1_512_AMX_FP16": "AVX512_CORE_AMX_FP16",
}
"""oneDNN's names of the same sets since AVX10."""

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that limit the set; the first one that is set counts. Torch reads them when it loads.
"""

MIN_INSTRUCTIONS = {"bfloat16": "AVX512_CORE", "float16": "AVX512_CORE_FP16"}
"""Smallest set with which oneDNN computes products of a dtype; otherwise torch computes them."""


def onednn_instructions(flags: Collection[str], environ: Mapping[str, str]) -> str | None:
    """Return oneDNN's instruction set on a CPU with those flags; None if it is not an x86."""
    limit = next((environ[name].upper() for name in LIMITS if name in environ), "")
    limit = OTHER_NAMES.get(limit, limit)
    allowed = LADDER[: NAMES.index(limit) + 1] if limit in NAMES else LADDER
    usable = [name for name, needs in allowed if needs <= set(flags)]
    return usable[-1] if usable else None


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags from ``/proc/cpuinfo``; empty if it has none."""
    match = re.search(r"^flags\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def has_own_products(instructions: str | None, dtype: str) -> bool:
    if instructions not in NAMES or dtype not in MIN_INSTRUCTIONS:
        return False
    return NAMES.index(instructions) >= NAMES.index(MIN_INSTRUCTIONS[dtype])
