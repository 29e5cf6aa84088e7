"""All NVIDIA GPUs of the machine, through the driver's management library (NVML).

Fields that a GPU does not support are None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from sysbench.core.machine.sample import DeviceSample, ProcessUse

WHY_CLOSED = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed but not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "the NVIDIA driver was updated while loaded: reboot, or reload its modules"
    ),
    "NVML_ERROR_NO_PERMISSION": "no permission to use the NVIDIA driver",
    "NVML_ERROR_GPU_NOT_FOUND": "the NVIDIA driver sees no GPU",
}
NO_GPU = (WHY_CLOSED["NVML_ERROR_LIBRARY_NOT_FOUND"], WHY_CLOSED["NVML_ERROR_GPU_NOT_FOUND"])
"""Reasons that a machine without a GPU has."""
NO_GPU_PERMITTED = "no permission to use the NVIDIA GPUs here"
# Bits of nvmlClocksEventReasons in nvml.h; "idle" is a reason too.
CLOCK_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
UNCORRECTED, SINCE_LOADED = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED and NVML_VOLATILE_ECC."""
PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
"""Functions that list processes on a GPU; clients of MPS are in the last one only."""
MIN_GPM_NS = 100_000_000
"""NVML asks for at least 100 ms between the two samples of a pair."""
THROTTLE_FIELDS = {
    "power cap": 74,
    "thermal": 75,
    "sync boost": 76,
    "software thermal": 269,
    "hardware thermal": 270,
    "power brake": 271,
}
"""Field ids of nvml.h, nanoseconds each: NVML_FI_DEV_PERF_POLICY_POWER, _THERMAL and _SYNC_BOOST;
with newer drivers NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, _HW_THERM_SLOWDOWN and
_HW_POWER_BRAKE_SLOWDOWN. By number, because older nvidia-ml-py has no names for the last three.
"""

TOLERANCE = 0.05
"""Share by which a counter may exceed the time that passed, since the two are read separately."""


class Nvml:
    """The library, open inside a ``with`` block.

    Opening never fails: if there is nothing to read, ``unavailable`` has the reason and `read`
    returns nothing. ``gpm`` false leaves the activity counters to a profiler.
    """

    def __init__(self, *, gpm: bool = True) -> None:
        self.unavailable = "NVML is not open"
        self._gpm = gpm
        self._library: ModuleType | None = None
        self.gpus: list[NvmlGpu] = []

    def __enter__(self) -> Nvml:
        import pynvml  # lazy: runs on the CPU do not need it

        try:
            pynvml.nvmlInit()
            self._library = pynvml
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.unavailable = _why_closed(pynvml, error)
            return self
        opened = [NvmlGpu(pynvml, index, gpm=self._gpm) for index in range(count)]
        self.gpus = [gpu for gpu in opened if gpu.permitted]
        if self.gpus:
            self.unavailable = ""
        elif opened:
            self.unavailable = NO_GPU_PERMITTED
        else:
            self.unavailable = WHY_CLOSED["NVML_ERROR_GPU_NOT_FOUND"]
        return self

    def __exit__(self, *_: object) -> None:
        for gpu in self.gpus:
            gpu.close()
        self.gpus = []
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library = None
        self.unavailable = "NVML is closed"

    def read(self, slow: bool = True) -> list[DeviceSample]:
        """Take a sample of every GPU; see `NvmlGpu.read` for ``slow``."""
        return [gpu.read(slow) for gpu in self.gpus]

    def driver(self) -> dict[str, str | None]:
        nvml = self._library
        if nvml is None:
            return {"driver": None, "nvml": None, "cuda": None}
        cuda = _system(nvml, nvml.nvmlSystemGetCudaDriverVersion)
        return {
            "driver": _system(nvml, nvml.nvmlSystemGetDriverVersion),
            "nvml": _system(nvml, nvml.nvmlSystemGetNVMLVersion),
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }

    def facts(self) -> list[dict[str, Any]]:
        return [gpu.facts() for gpu in self.gpus]


class _Lost(Exception):
    pass


class NvmlGpu:
    """One GPU of an initialised `pynvml`.

    A query that NVML refuses permanently (not supported, not permitted, unknown to this driver) is
    not repeated; one that fails temporarily is None in that sample.
    """

    def __init__(self, library: ModuleType, index: int, *, gpm: bool) -> None:
        self._library = library
        self._never: set[object] = set()
        self._permanent = {
            library.NVML_ERROR_INVALID_ARGUMENT,
            library.NVML_ERROR_NOT_SUPPORTED,
            library.NVML_ERROR_NO_PERMISSION,
            library.NVML_ERROR_FUNCTION_NOT_FOUND,
            library.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        self._handle: Any = None
        self._refused: dict[str, str] = {}
        self._gpm: Gpm | None = None
        self._slow: DeviceSample | None = None
        self._base = DeviceSample(index=index, name=f"GPU {index}")
        try:
            self._open(index, gpm)
        except _Lost:
            self._lose()

    def _open(self, index: int, gpm: bool) -> None:
        nvml = self._library
        self._handle = self._answer(nvml.nvmlDeviceGetHandleByIndex, index)
        if self._handle is None:
            return
        self._base = DeviceSample(
            index=index,
            name=self._ask(nvml.nvmlDeviceGetName) or self._base.name,
            uuid=self._ask(nvml.nvmlDeviceGetUUID) or "",
        )
        support = self._ask(nvml.nvmlGpmQueryDeviceSupport) if gpm else None
        if support is not None and support.isSupportedDevice:
            self._gpm = Gpm(nvml)

    def _lose(self) -> None:
        self._base = msgspec.structs.replace(self._base, lost=True)

    @property
    def permitted(self) -> bool:
        """Whether the driver lets this user query the GPU; also true for a lost GPU."""
        return self._handle is not None or self._base.lost

    @property
    def has_gpm(self) -> bool:
        return self._gpm is not None

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()

    def query(self, name: str, *arguments: object) -> Any:
        """Return the answer of one function of `pynvml`; None if it has none."""
        try:
            return None if self._base.lost else self._first((name,), *arguments)
        except _Lost:
            self._lose()
            return None

    def query_slice(self, handle: Any, name: str, *arguments: object) -> Any:
        """Return the answer of one function about a MIG device of this GPU; None if refused."""
        with suppress(self._library.NVMLError):
            return getattr(self._library, name)(handle, *arguments)

    def slice_memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Return used and total bytes of a MIG device."""
        version = self._library.nvmlMemory_v2
        memory = self.query_slice(handle, "nvmlDeviceGetMemoryInfo", version)
        return (None, None) if memory is None else (memory.used, memory.total - memory.reserved)

    def reason(self, *names: str) -> str:
        """Return why the last of these functions of `pynvml` that were asked had no answer."""
        refused = [self._refused[name] for name in names if name in self._refused]
        absent = [name for name in names if not hasattr(self._library, name)]
        return (refused or [f"pynvml has no {name}" for name in absent] or [""])[-1]

    def read(self, slow: bool) -> DeviceSample:
        """Take a sample; a lost GPU stays lost and is not queried again.

        Unless ``slow``, values that change slowly or cost much (processes, temperature, limits,
        MIG) repeat their last answers.
        """
        if self._base.lost:
            return self._base
        try:
            if slow or self._slow is None:
                self._slow = self._read_slow()
            return self._read_fast(self._slow)
        except _Lost:
            self._lose()
            return self._base

    def facts(self) -> dict[str, Any]:
        nvml = self._library
        try:
            capability = self._ask(nvml.nvmlDeviceGetCudaComputeCapability)
            ecc = self._ask(nvml.nvmlDeviceGetEccMode)
            return {
                "compute_capability": ".".join(map(str, capability)) if capability else None,
                "ecc": None if ecc is None else bool(ecc[0]),
                "memory_bus_bits": self._ask(nvml.nvmlDeviceGetMemoryBusWidth),
                "memory_clock_max_mhz": self._ask(
                    nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM
                ),
            }
        except _Lost:
            self._lose()
            return {}

    def _read_slow(self) -> DeviceSample:
        nvml = self._library
        mig = self._ask(nvml.nvmlDeviceGetMigMode)
        return msgspec.structs.replace(
            self._base,
            power_limit_watts=_thousandth(self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit)),
            sm_clock_max_mhz=self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            # The newer call first: CUDA 14 removes the older one.
            temperature_celsius=self._first(
                ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
                nvml.NVML_TEMPERATURE_GPU,
            ),
            processes=self._processes(),
            mig=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        )

    def _read_fast(self, slow: DeviceSample) -> DeviceSample:
        nvml = self._library
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
        reasons = self._first(
            (
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons",
            ),
        )
        power, energy = self._power_and_energy()
        activity = (self._ask(self._gpm.read) if self._gpm else None) or Activity()
        return msgspec.structs.replace(
            slow,
            utilization=None if rates is None else rates.gpu / 100,
            sm_active=activity.sm,
            tensor_active=activity.tensor,
            dram_active=activity.dram,
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total - memory.reserved,
            power_watts=power,
            energy_joules=energy,
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            clock_reasons=None if reasons is None else clock_words(reasons),
        )

    def _power_and_energy(self) -> tuple[float | None, float | None]:
        """Return watts now and joules since the driver was loaded, in one call if possible.

        The older power call is a mean over the last second on most GPUs since Ampere.
        """
        nvml = self._library
        fields = (nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)
        values = self._ask(nvml.nvmlDeviceGetFieldValues, fields)
        power, energy = map(field_value, values) if values is not None else (None, None)
        if power is None:
            power = self._ask(nvml.nvmlDeviceGetPowerUsage)
        return _thousandth(power), _thousandth(energy)

    def _processes(self) -> list[ProcessUse] | None:
        from sysbench.core.machine.host_sampler import process_name  # lazy: psutil

        answers = [self._first((name,)) for name in PROCESS_LISTS]
        if answers[0] is None:
            return None
        # A process can be in several lists, each with all of its memory.
        processes = {process.pid: process for answer in answers for process in answer or ()}
        return [
            ProcessUse(pid=pid, name=process_name(pid), memory_bytes=process.usedGpuMemory)
            for pid, process in processes.items()
        ]

    def _first(self, names: Sequence[str], *arguments: object) -> Any:
        """Return the first answer of these functions; `pynvml` or the driver may lack some.

        pynvml is as old as the torch installation, and the driver may be of another age.
        """
        for name in names:
            function = getattr(self._library, name, None)
            answer = None if function is None else self._ask(function, *arguments)
            if answer is not None:
                return answer
        return None

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._answer(function, self._handle, *arguments)

    def _answer(self, function: Callable[..., Any], *arguments: object) -> Any:
        question = (function, *arguments[1:])
        if question in self._never:
            return None
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            lost = (self._library.NVML_ERROR_GPU_IS_LOST, self._library.NVML_ERROR_RESET_REQUIRED)
            if error.value in lost:
                raise _Lost from error
            if error.value in self._permanent:
                self._never.add(question)
            self._refused[function.__name__] = f"NVML: {error}"
            return None


def field_value(field: Any) -> float | None:
    """Return the number in a batched field, by its declared type; None if NVML refused it."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if field.nvmlReturn != 0 or field.valueType >= len(members):
        return None
    value: float = getattr(field.value, members[field.valueType])
    return value


class Activity(NamedTuple):
    """Fractions from 0 to 1; None if the device does not count them."""

    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None


class Gpm:
    """Activity of a GPU's parts between two readings: GPM counters, Hopper and later.

    Unlike utilization they show how many multiprocessors worked, and how long the tensor cores and
    the memory did. NVML's documentation requires no privileges for them.
    """

    def __init__(self, library: ModuleType) -> None:
        self._library = library
        self._samples: list[Any] = []
        self._taken_ns: int | None = None
        self._last = Activity()
        self._request = library.c_nvmlGpmMetricsGet_t()
        self._request.version = library.NVML_GPM_METRICS_GET_VERSION
        metrics = (
            library.NVML_GPM_METRIC_SM_UTIL,
            library.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            library.NVML_GPM_METRIC_DRAM_BW_UTIL,
        )
        self._request.numMetrics = len(metrics)
        for place, metric in enumerate(metrics):
            self._request.metrics[place].metricId = metric

    def read(self, handle: Any) -> Activity:
        """Return the activity since the previous reading, None at first; raises NVMLError."""
        now_ns = time.monotonic_ns()
        if self._taken_ns is not None and now_ns - self._taken_ns < MIN_GPM_NS:
            return self._last
        while len(self._samples) < 2:
            self._samples.append(self._library.nvmlGpmSampleAlloc())
        self._library.nvmlGpmSampleGet(handle, self._samples[0])
        self._samples.reverse()  # now older, newer: the next reading overwrites the older
        is_first, self._taken_ns = self._taken_ns is None, now_ns
        if not is_first:
            self._request.sample1, self._request.sample2 = self._samples
            self._library.nvmlGpmMetricsGet(self._request)
            metrics = self._request.metrics[: self._request.numMetrics]
            self._last = Activity(*map(_ratio, metrics))
        return self._last

    def close(self) -> None:
        while self._samples:
            self._library.nvmlGpmSampleFree(self._samples.pop())


class ThrottleTime(NamedTuple):
    """Time in which the driver limited a GPU's clock, by reason, since the driver was loaded.

    Samples see two instants a second, few of them in a short measurement; these counters have every
    nanosecond. ``held_ns`` is empty if ``missing`` has a reason. ``t_ns`` is of the host's
    monotonic clock.
    """

    t_ns: int
    held_ns: dict[str, int]
    missing: str = ""


def read_throttle_time(uuid: str) -> ThrottleTime:
    """Read the counters of the GPU with this UUID, ``GPU-…``."""
    try:
        import pynvml  # lazy: runs on the CPU do not need it
    except ImportError:
        return ThrottleTime(time.monotonic_ns(), {}, "this interpreter has no nvidia-ml-py")
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            values = pynvml.nvmlDeviceGetFieldValues(handle, list(THROTTLE_FIELDS.values()))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return ThrottleTime(time.monotonic_ns(), {}, f"NVML does not report it: {error}")
    t_ns = time.monotonic_ns()
    answers = {
        name: field_value(value) for name, value in zip(THROTTLE_FIELDS, values, strict=True)
    }
    held_ns = {name: int(answer) for name, answer in answers.items() if answer is not None}
    return ThrottleTime(t_ns, held_ns, "" if held_ns else "this GPU or driver does not count it")


def throttle_shares(
    before: ThrottleTime, after: ThrottleTime
) -> tuple[dict[str, float] | None, str]:
    """Return the share of the time between two readings by reason, or None and why.

    Reasons can overlap, so shares do not add up.
    """
    names = before.held_ns.keys() & after.held_ns.keys()
    passed_ns = after.t_ns - before.t_ns
    if not names or passed_ns <= 0:
        return None, before.missing or after.missing or "no time passed between the readings"
    shares = {
        name: (after.held_ns[name] - before.held_ns[name]) / passed_ns
        for name in THROTTLE_FIELDS
        if name in names
    }
    if min(shares.values()) < 0:
        return None, "the counters restarted"
    if max(shares.values()) > 1 + TOLERANCE:
        return None, f"the counters report more than the {passed_ns / 1e9:.3g} s that passed"
    return {name: min(share, 1.0) for name, share in shares.items()}, ""


def clock_words(bits: int) -> list[str]:
    words = [word for bit, word in CLOCK_REASONS.items() if bits & bit]
    rest = bits & ~sum(CLOCK_REASONS)
    return [*words, f"reason {rest:#x}"] if rest else words


def _system(nvml: ModuleType, function: Any) -> Any:
    with suppress(nvml.NVMLError):
        return function()


def _why_closed(nvml: ModuleType, error: Any) -> str:
    # By name: an older pynvml does not have all of them.
    codes = {getattr(nvml, name, None): why for name, why in WHY_CLOSED.items()}
    why: str | None = codes.get(error.value)
    return why or f"NVML cannot be opened: {error}"


def _ratio(metric: Any) -> float | None:
    answered = metric.nvmlReturn == 0 and math.isfinite(metric.value)
    return metric.value / 100 if answered else None


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
