"""The devices and nodes that a run measures on, and their locks, without importing torch."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from sysbench.core.errors import ClusterError, InterpreterError, SpecError
from sysbench.core.machine.children import child_environment
from sysbench.core.machine.interpreter import chosen_python, probe_python
from sysbench.core.machine.nvml import NO_GPU, Nvml
from sysbench.core.machine.sample import DeviceSample
from sysbench.core.storage import home, locked, make_folder, text_of

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
    """Resolve the device of a run: ``cpu`` or ``cuda:N``; SpecError with the reason if it is not
    here.

    ``auto`` is the first CUDA device that torch can use, else the CPU. Opens NVML, which can take a
    second on an idle driver, and asks torch without NVML: do not call it on every keystroke.
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

    ``is_left_out`` says that this machine has a GPU that no run can use and nobody has hidden.
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
    process of its own, which takes seconds, and once. ``python`` is as of `torch_facts`.
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
    """Return the number of devices that torch finds, and its reason for none, which ``hidden``
    decides."""
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
    """Memory that runs can use on a device, and a GPU's compute capability; None if unknown."""

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
    torch. ``python`` is the worker's interpreter, empty for this one, None for the chosen one.
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


ANSWER_SECONDS = 60.0


def node_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return Slurm's name of the node inside a job, else None."""
    name = environ.get("SLURMD_NODENAME") if "SLURM_JOB_ID" in environ else None
    return name if name and _NAME.fullmatch(name) else None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def hosts_of(ranks: int, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the nodes of the ranks, this one first; empty if all ranks are here.

    They are those of Slurm's job, or of the step of this process, at most one per rank. Raises
    ClusterError.
    """
    count = environ.get("SLURM_NNODES", "")
    if ranks == 1 or "SLURM_JOB_ID" not in environ or not count.isdecimal() or int(count) < 2:
        return ()
    lists = (environ.get(name, "") for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    expanded = (_expand(nodes) for nodes in lists if nodes)
    names = next((nodes for nodes in expanded if len(nodes) == int(count)), ())
    this_node = node_name(environ)
    if this_node not in names:
        raise ClusterError(
            f"a job of {count} nodes, and this process is on none of them: start it there, by "
            "sbatch, or by `srun --overlap --nodes=1 --ntasks=1 --preserve-env`; without "
            "--preserve-env its ranks stay on one node"
        )
    return (this_node, *(name for name in names if name != this_node))[:ranks]


@lru_cache(maxsize=8)
def _expand(nodes: str) -> tuple[str, ...]:
    """Expand ``n[1-2,5]`` to ``n1``, ``n2`` and ``n5``."""
    command = ("scontrol", "show", "hostnames", nodes)
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(f"the nodes of this job are not known: {error}") from error
    return tuple(name for name in answer.stdout.split() if _NAME.fullmatch(name))


def shares(ranks: int, hosts: int) -> list[int]:
    """Distribute ranks over hosts evenly, the first ones one more."""
    hosts = max(1, hosts)
    return [ranks // hosts + (host < ranks % hosts) for host in range(hosts)]


def describe_node(
    environ: Mapping[str, str] = os.environ, ranks: int = 1
) -> dict[str, dict[str, str]]:
    """Return facts on the nodes for a record's environment; empty outside a job.

    Records get published, so ``node`` is not the host name but the digits of `alias`. ``nodes`` are
    those of all nodes of the ranks. ``gpus`` are the numbers of the job's GPUs on this node. Raises
    as `hosts_of`.
    """
    name = node_name(environ)
    if name is None:
        return {}
    gpus, hosts = _gpus(environ), hosts_of(ranks, environ)
    return {
        "cluster": {"node": alias(name)}
        | ({"nodes": ",".join(map(alias, hosts))} if hosts else {})
        | ({"gpus": ",".join(gpus)} if gpus else {})
    }


def device_lock(
    device: str, environ: Mapping[str, str] = os.environ, *, node: str | None = None
) -> Path:
    """Return the lock that a run holds while it measures on a device.

    Inside a job the lock depends on the node and the GPU's number there: every job calls its first
    GPU ``cuda:0``. Slurm reports the GPU numbers of this node only; they are used for another
    ``node``, too.
    """
    folder, name = home() / "locks", node or node_name(environ)
    kind, _, number = device.partition(":")
    if name is not None:
        folder /= name
        gpus = _gpus(environ)
        if kind == "cuda" and number.isdecimal() and int(number) < len(gpus):
            number = gpus[int(number)]
    return folder / f"{kind}{'-' if number else ''}{number}.lock"


def rank_locks(devices: Sequence[str], ranks: int) -> dict[Path, str]:
    """Return the locks of the devices of the ranks, on all nodes, and the devices' names."""
    hosts = hosts_of(ranks)
    return {
        device_lock(device, node=host): f"{device} of {host}" if hosts else device
        for host, share in zip(hosts or (None,), shares(ranks, len(hosts)), strict=True)
        for device in devices[:share]
    }


def locked_devices(devices: Sequence[str]) -> AbstractContextManager[None]:
    """Exclude other runs from these devices inside ``with``."""
    return hold_locks({device_lock(device): device for device in devices})


@contextmanager
def hold_locks(locks: Mapping[Path, str]) -> Iterator[None]:
    """Hold all these locks, or raise DeviceBusyError with the name of the one that is held."""
    with ExitStack() as stack:
        # Every run locks in the same order, so that no two wait for each other.
        for path, device in sorted(locks.items()):
            stack.enter_context(locked(path, who=device))
        yield


def _gpus(environ: Mapping[str, str]) -> list[str]:
    text = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    gpus = [part for part in text.split(",") if part]
    return gpus if all(gpu.isdecimal() for gpu in gpus) else []


def alias(name: str) -> str:
    """Return the six random digits that replace a node's name, drawn by the first job there.

    They are the target of a dangling link, because creating a link is atomic even if several jobs
    of a node start at once.
    """
    path = home() / "nodes" / name
    make_folder(path.parent)
    with suppress(FileExistsError):
        path.symlink_to(secrets.token_hex(3))
    return os.readlink(path)
