"""Sample the devices and the host, in a thread at most twice a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sysbench.core.errors import SpecError
from sysbench.core.machine.host_sampler import Host
from sysbench.core.machine.nvml import Nvml
from sysbench.core.machine.sample import MIN_INTERVAL_SECONDS, Sample

SLOW_INTERVAL_SECONDS = 5.0
"""Interval of the costly queries: processes, temperature, limits."""


class Probe:
    """Devices and host, open inside a ``with`` block. Not thread-safe."""

    def __init__(self, *, gpm: bool = True) -> None:
        self.nvml = Nvml(gpm=gpm)
        self._host = Host()
        self._slow_due = 0.0

    def __enter__(self) -> Probe:
        self.nvml.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.nvml.__exit__()

    def take(self) -> Sample:
        """Take a sample. The host's CPU share and GPM activity need an earlier one."""
        now = time.monotonic()
        slow = now >= self._slow_due
        if slow:
            self._slow_due = now + SLOW_INTERVAL_SECONDS
        return Sample(
            devices=self.nvml.read(slow),
            host=self._host.read(),
            no_devices=self.nvml.unavailable,
        )


class Sampler:
    """Samples in a daemon thread from `start` to `stop`; also a context manager.

    ``deliver`` gets every sample, in the sampler's thread, and must return quickly. If a reading or
    ``deliver`` raises, sampling ends and ``error`` has the exception: the caller reports it, and
    the run continues.

    Raises:
        SpecError: ``interval_seconds`` is below half a second: faster polling holds the driver's
            lock against the workload and learns nothing, since the counters are slower.
    """

    def __init__(
        self,
        deliver: Callable[[Sample], object],
        *,
        interval_seconds: float = MIN_INTERVAL_SECONDS,
    ) -> None:
        if not interval_seconds >= MIN_INTERVAL_SECONDS:
            raise SpecError(
                "interval_seconds", interval_seconds, f"at least {MIN_INTERVAL_SECONDS}"
            )
        self.interval_seconds = interval_seconds
        self.error: Exception | None = None
        self._deliver = deliver
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; the first sample is taken at once. A sampler starts only once."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Stop, and wait for a reading in progress until the timeout: a driver may hang."""
        self._stopping.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self.error = TimeoutError(f"NVML did not answer within {timeout_seconds} s")

    def _run(self) -> None:
        try:
            with Probe() as probe:
                due = time.monotonic()
                while not self._stopping.wait(max(0.0, due - time.monotonic())):
                    self._deliver(probe.take())
                    # After a stall the next reading is one interval away, not at once.
                    due = max(due, time.monotonic() - self.interval_seconds)
                    due += self.interval_seconds
        except Exception as error:
            self.error = error
