"""Time for which the driver held a GPU's clock down, by its own counters.

Samples see instants, twice a second, and few fall into a short measurement. The counters have every
nanosecond since the driver was loaded, so two readings tell the share of the time between them.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from .gpu import field_value

FIELDS = {
    "power cap": 74,
    "thermal": 75,
    "sync boost": 76,
    "software thermal": 269,
    "hardware thermal": 270,
    "power brake": 271,
}
"""Field ids of nvml.h, nanoseconds each: NVML_FI_DEV_PERF_POLICY_POWER, _THERMAL and _SYNC_BOOST;
with newer drivers NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, _HW_THERM_SLOWDOWN and
_HW_POWER_BRAKE_SLOWDOWN. By number, because older nvidia-ml-py has no names for the last three."""

TOLERANCE = 0.05
"""By so much a counter may exceed the time that passed: it is not read at the same instant."""


class HeldTime(NamedTuple):
    """One reading: nanoseconds by reason since the driver was loaded, none where ``missing`` says
    why; ``t_ns`` is of the host's monotonic clock."""

    t_ns: int
    held_ns: dict[str, int]
    missing: str = ""


def held_so_far(uuid: str) -> HeldTime:
    """Read the counters of the GPU with this UUID, ``GPU-…``."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            values = pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS.values()))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return HeldTime(time.monotonic_ns(), {}, f"NVML does not tell: {error}")
    t_ns = time.monotonic_ns()
    answers = {name: field_value(value) for name, value in zip(FIELDS, values, strict=True)}
    held_ns = {name: int(answer) for name, answer in answers.items() if answer is not None}
    return HeldTime(t_ns, held_ns, "" if held_ns else "this GPU or driver does not count it")


def held_shares(before: HeldTime, after: HeldTime) -> tuple[dict[str, float] | None, str]:
    """The share of the time between two readings by reason, or None and why it is not known.

    Reasons can hold at the same time, so that the shares do not add up.
    """
    names = before.held_ns.keys() & after.held_ns.keys()
    passed_ns = after.t_ns - before.t_ns
    if not names or passed_ns <= 0:
        return None, before.missing or after.missing or "no time passed between the readings"
    shares = {
        name: (after.held_ns[name] - before.held_ns[name]) / passed_ns
        for name in FIELDS
        if name in names
    }
    if min(shares.values()) < 0:
        return None, "the counters started anew"
    if max(shares.values()) > 1 + TOLERANCE:
        return None, f"the counters tell more than the {passed_ns / 1e9:.3g} s that passed"
    return {name: min(share, 1.0) for name, share in shares.items()}, ""
