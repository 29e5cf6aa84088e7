"""All NVIDIA GPUs of the machine, through the driver's management library (NVML)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .gpu import Gpu
from .sample import DeviceSample

WHY_CLOSED = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed but not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "the NVIDIA driver was updated while loaded: reboot, or reload its modules"
    ),
    "NVML_ERROR_NO_PERMISSION": "no permission to talk to the NVIDIA driver",
    "NVML_ERROR_GPU_NOT_FOUND": "the NVIDIA driver sees no GPU",
}


class Nvml:
    """The library, open inside a ``with`` block.

    Opening never fails: where there is nothing to read, ``unavailable`` says why in a few
    words and `read` returns nothing. ``gpm`` false leaves the activity counters alone, for
    when a profiler wants them.
    """

    def __init__(self, *, gpm: bool = True) -> None:
        self.unavailable = "NVML is not open"
        self._gpm = gpm
        self._library: ModuleType | None = None
        self._gpus: list[Gpu] = []

    def __enter__(self) -> Nvml:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.unavailable = _why_closed(pynvml, error)
            return self
        self._library = pynvml
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.unavailable = _why_closed(pynvml, error)
            return self
        opened = [Gpu(pynvml, index, gpm=self._gpm) for index in range(count)]
        self._gpus = [gpu for gpu in opened if gpu.permitted]
        if self._gpus:
            self.unavailable = ""
        elif opened:
            self.unavailable = "no permission to use the NVIDIA GPUs here"
        else:
            self.unavailable = "the NVIDIA driver sees no GPU"
        return self

    def __exit__(self, *_: object) -> None:
        for gpu in self._gpus:
            gpu.close()
        self._gpus = []
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library = None
        self.unavailable = "NVML is closed"

    def read(self, slow: bool = True) -> list[DeviceSample]:
        """A sample of every GPU; see `Gpu.read` for ``slow``."""
        return [gpu.read(slow) for gpu in self._gpus]

    def driver(self) -> dict[str, str | None]:
        """Versions: ``driver``, ``nvml`` and ``cuda``, the newest CUDA that it can run."""
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
        """What does not change, GPU by GPU in the order of `read`; see `Gpu.facts`."""
        return [gpu.facts() for gpu in self._gpus]


def _system(nvml: ModuleType, function: Any) -> Any:
    try:
        return function()
    except nvml.NVMLError:
        return None


def _why_closed(nvml: ModuleType, error: Any) -> str:
    # By name: an older pynvml has not all of them.
    codes = {getattr(nvml, name, None): why for name, why in WHY_CLOSED.items()}
    why: str | None = codes.get(error.value)
    return why or f"NVML does not start: {error}"
