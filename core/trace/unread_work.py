"""Count the work of devices that is in a trace in a form that is not read."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from sysbench.core.trace.trace_json import JsonEvent

UNREAD = frozenset(
    ("cuda_profiler_range", "glow_runtime", "hpu_op", "mtia_ccp_events", "mtia_insight")
)
"""Kineto's categories (``ActivityType.cpp``) of other devices, and of times that CUPTI's range
profiler reports in place of kernels."""
NO_WORK = frozenset(
    (
        *("overhead", "cuda_event", "Trace", "collective_comm", "ac2g", "fwdbwd"),
        *("cpu_instant_event", "python_function", "external_correlation"),
        *("mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "gpu_pm_counter"),
    )
)
"""Kineto's categories of ranges, calls and arrows that are no work of a device."""
DEVICE_PROCESS = re.compile(
    r"ascend|\bnpu|/device:|\btpu|\bxla|\bhpu|gaudi|neuron|\bmlu|musa|\bipu|\bgpu|\bxpu|hccl"
    r"|communication|hardware|accelerator",
    re.IGNORECASE,
)
"""Names and labels of processes whose events are those of a device."""
DEVICE_CATEGORY = re.compile(r"kernel|memcpy|memset|npu|hpu|tpu|xla|mlu|musa", re.IGNORECASE)
"""Categories of other profilers for the work of a device."""
MAX_PROCESSES = 4096
UNNAMED = "events without a category, in processes that run no operator"
PROCESS_FACTS = ("process_name", "process_labels")
MAX_NAME_LENGTH = 256


class UnreadWork:
    """Timed events of categories that are not read, by process and category.

    Attributes:
        host_processes: Ids of the processes that run operators and calls.
    """

    def __init__(self) -> None:
        self.host_processes: set[Any] = set()
        self._names: dict[Any, str] = {}
        self._counts: Counter[tuple[Any, str]] = Counter()

    def name_processes(self, facts: list[JsonEvent]) -> None:
        """Store the names and labels of processes from metadata events."""
        for event in facts:
            if event.name in PROCESS_FACTS and event.args is not None:
                known = self._names.get(event.pid, "")
                words = f"{event.args.process_name} {event.args.labels}".strip()
                if words not in known and len(self._names) < MAX_PROCESSES:
                    self._names[event.pid] = f"{known} {words}".strip()[:MAX_NAME_LENGTH]

    def add(self, events: list[JsonEvent]) -> None:
        """Count timed events whose categories are not read."""
        if len(self._counts) < MAX_PROCESSES:
            unknown = (event for event in events if event.cat not in NO_WORK)
            self._counts.update((event.pid, event.cat[:MAX_NAME_LENGTH]) for event in unknown)

    def counts(self) -> dict[str, int]:
        """Return counts of events that are the work of devices, by the process or the category.

        A process without a name counts as a device if its events have no category and the host's
        operators are in another process.
        """
        unread: Counter[str] = Counter()
        for (process, category), count in self._counts.items():
            known = self._names.get(process, "")
            is_device = category in UNREAD or DEVICE_CATEGORY.search(category)
            if process not in self.host_processes and DEVICE_PROCESS.search(known):
                unread[category if category in UNREAD else f"events of {known}"] += count
            elif is_device:
                unread[category] += count
            elif self.host_processes and process not in self.host_processes:
                unread[UNNAMED] += 0 if known or category else count
        return dict(+unread)
