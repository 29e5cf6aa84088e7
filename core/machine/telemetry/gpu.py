"""A GPU read through NVML; fields that it does not support are None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec

from .gpm import Activity, Gpm
from .host import process_name
from .sample import DeviceSample, ProcessUse

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


def clock_words(bits: int) -> list[str]:
    """Reasons for clocks below their maximum, in words; empty without one."""
    words = [word for bit, word in CLOCK_REASONS.items() if bits & bit]
    rest = bits & ~sum(CLOCK_REASONS)
    return [*words, f"reason {rest:#x}"] if rest else words


class _Lost(Exception):
    """The GPU fell off the bus or must be reset."""


class Gpu:
    """One GPU of an initialised `pynvml`.

    A query that NVML refuses for good (not supported, not permitted, unknown to this driver) is
    not repeated; one that it refuses for now is None in that sample.
    """

    def __init__(self, library: ModuleType, index: int, *, gpm: bool) -> None:
        self._library = library
        self._never: set[object] = set()
        self._refused_for_good = {
            library.NVML_ERROR_INVALID_ARGUMENT,
            library.NVML_ERROR_NOT_SUPPORTED,
            library.NVML_ERROR_NO_PERMISSION,
            library.NVML_ERROR_FUNCTION_NOT_FOUND,
            library.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        self._handle: Any = None
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
        """True if the driver lets this user query the GPU; also for a lost GPU."""
        return self._handle is not None or self._base.lost

    def close(self) -> None:
        """Free the GPM samples; NVML must still be initialised."""
        if self._gpm is not None:
            self._gpm.close()

    def read(self, slow: bool) -> DeviceSample:
        """One sample; a GPU once lost stays so and is not queried again.

        Args:
            slow: Also query values that change slowly or cost much (processes, temperature,
                limits, MIG); otherwise their last answers are repeated.
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
        """Facts that do not change while the driver runs; None where NVML has none."""
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
        """Watts now and joules since the driver was loaded, in one call where it works.

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
        processes = self._ask(self._library.nvmlDeviceGetComputeRunningProcesses_v3)
        if processes is None:
            return None
        return [
            ProcessUse(
                pid=process.pid,
                name=process_name(process.pid),
                memory_bytes=process.usedGpuMemory,
            )
            for process in processes
        ]

    def _first(self, names: Sequence[str], *arguments: object) -> Any:
        """The first answer of these functions, of which `pynvml` or the driver may lack some.

        A GPU box brings a pynvml as old as its torch, and a driver of another age.
        """
        for name in names:
            function = getattr(self._library, name, None)
            answer = None if function is None else self._ask(function, *arguments)
            if answer is not None:
                return answer
        return None

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        """NVML's answer on this GPU, or None."""
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
            if error.value in self._refused_for_good:
                self._never.add(question)
            return None


def field_value(field: Any) -> float | None:
    """The number in a batched field, by the type that the driver declares; None where refused."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if field.nvmlReturn != 0 or field.valueType >= len(members):
        return None
    value: float = getattr(field.value, members[field.valueType])
    return value


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000
