"""Activity of a GPU's parts between two readings: GPM counters, Hopper and later.

Unlike utilization they show how many multiprocessors worked, and how long the tensor cores and
the memory did. NVML's documentation requires no privileges for them.
"""

from __future__ import annotations

import math
import time
from types import ModuleType
from typing import Any, NamedTuple

SHORTEST_NS = 100_000_000
"""NVML asks for at least 100 ms between the two samples of a pair."""


class Activity(NamedTuple):
    """Ratios of one; None where the device does not count it."""

    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None


class Gpm:
    """The counters of one GPU. ``library`` is the initialised `pynvml`."""

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
        """Activity since the previous reading; all None at the first one.

        Raises:
            pynvml.NVMLError: The device does not answer.
        """
        now_ns = time.monotonic_ns()
        if self._taken_ns is not None and now_ns - self._taken_ns < SHORTEST_NS:
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
        """Free the samples; NVML must still be initialised."""
        while self._samples:
            self._library.nvmlGpmSampleFree(self._samples.pop())


def _ratio(metric: Any) -> float | None:
    answered = metric.nvmlReturn == 0 and math.isfinite(metric.value)
    return metric.value / 100 if answered else None
