"""A GPU's SM clock held at one frequency for a while; it needs root.

NVML has no question for a lock that is in force, so one that was there before cannot be put back:
afterwards the clock is free, as after ``nvidia-smi -rgc``.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from ..errors import RefusedError

READ_BACK_SECONDS = 1.0
_NEAR_MHZ = 30
_PAUSE_SECONDS = 0.05


@contextmanager
def locked_clock(index: int, mhz: int) -> Iterator[int | None]:
    """Hold the SM clock of a GPU inside ``with``; yields the clock that is read back, MHz.

    A GPU in use follows within a second, one at rest need not: the caller decides what a
    differing clock means. The lock is taken away however the block ends, by SIGTERM and SIGHUP
    too unless they are handled already; after SIGKILL it stays until ``nvidia-smi -rgc``.

    Args:
        index: The GPU as NVML counts.
        mhz: The frequency.

    Raises:
        RefusedError: The driver does not set the clock, or does not free it again.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise RefusedError(f"NVML does not start: {error}") from error
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        with _ended_in_order():
            was_set = False
            try:
                pynvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
                was_set = True
                yield _read_back(pynvml, handle, mhz)
            finally:
                # Also where setting failed, since a signal may have come right after it.
                _free(pynvml, handle, index, was_set=was_set)
    except pynvml.NVMLError as error:
        raise RefusedError(_why(pynvml, error)) from error
    finally:
        pynvml.nvmlShutdown()


def _free(nvml: ModuleType, handle: Any, index: int, *, was_set: bool) -> None:
    try:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
    except nvml.NVMLError as error:
        if not was_set:
            return  # the refusal to set it is the error that tells more
        raise RefusedError(
            f"the clock of GPU {index} may still be locked ({error}): `nvidia-smi -i {index} -rgc`"
        ) from error


def _read_back(nvml: ModuleType, handle: Any, mhz: int) -> int | None:
    """The SM clock once it is near what was set, or after a second; None where it is not shown."""
    ends = time.monotonic() + READ_BACK_SECONDS
    while True:
        try:
            seen = int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        except nvml.NVMLError:
            return None
        if abs(seen - mhz) <= _NEAR_MHZ or time.monotonic() > ends:
            return seen
        time.sleep(_PAUSE_SECONDS)


def _why(nvml: ModuleType, error: Any) -> str:
    match error.value:
        case nvml.NVML_ERROR_NO_PERMISSION:
            return "not permitted: locking clocks needs root, outside a container"
        case nvml.NVML_ERROR_NOT_SUPPORTED:
            return "this GPU or driver cannot lock its clocks"
        case _:
            return f"the driver does not lock the clock: {error}"


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let signals that would end the process at once raise SystemExit instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGHUP)
        if (handler := signal.getsignal(number)) == signal.SIG_DFL
    }
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
