"""A run that is being measured: its events and its record, as they are written."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from sysbench.core.machine.devices import nvml_index
from sysbench.core.machine.read_environment import describe_host
from sysbench.core.machine.sample import Sample
from sysbench.core.machine.sampler import Sampler
from sysbench.core.record.blocks import PassName
from sysbench.core.record.environment import left_out_gpu
from sysbench.core.record.events import (
    AnyEvent,
    Noticed,
    Outcome,
    RunEnded,
    RunStarted,
    TelemetrySampled,
)
from sysbench.core.runs.builder import RecordBuilder, known_environment
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.kept_rates import measured_facts
from sysbench.core.runs.prediction_errors import save_error
from sysbench.core.runs.run_directory import EventLog, Header, RunDirectory
from sysbench.core.runs.worker_process import DISK_FULL

POLL_SECONDS = 0.2


class Supervision:
    """A run that is being measured, or resumed for another round."""

    def __init__(
        self, run: RunDirectory, header: Header, log: EventLog, cancel: Cancellation
    ) -> None:
        self.run = run
        self.header = header
        self.log = log
        self.cancel = cancel
        environment = known_environment(run) or (
            describe_host(header.python, header.spec.ranks) | measured_facts(header.spec.device)
        )
        self.builder = RecordBuilder(run, header, environment)
        self.samples: queue.SimpleQueue[Sample] = queue.SimpleQueue()
        self.outcomes: list[tuple[PassName, Outcome]] = []
        self.disk_full = False
        self._noticed: set[str] = set()

    def emit(self, event: AnyEvent) -> Iterator[AnyEvent]:
        with self._surviving_full_disk():
            self.log.append(event)
        self.builder.add(event)
        yield event

    @contextmanager
    def _surviving_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self.disk_full = True

    def notice_once(self, message: str) -> Iterator[AnyEvent]:
        if message not in self._noticed:
            self._noticed.add(message)
            yield from self.emit(Noticed(message=message))

    def start_unless_started(self) -> Iterator[AnyEvent]:
        if not self.builder.started:
            yield from self.start()

    def start(self) -> Iterator[AnyEvent]:
        """Write the run's first event, and its record before anything is measured."""
        spec = self.header.spec
        yield from self.emit(
            RunStarted(
                run=self.run.id,
                pid=os.getpid(),
                identity=spec.identity,
                passes=list(self.header.passes),
                spec=spec.known(),
                repeat=self.header.repeat,
                environment=self.builder.environment,
            )
        )
        if not spec.on_cuda and (why := left_out_gpu(self.builder.environment)):
            yield from self.emit(Noticed(message=f"on the CPU: the GPU cannot be used: {why}"))
        self.keep_record()

    def resume(self) -> None:
        self.builder.take_in(self.run.tail())
        self.builder.resume()

    def sampled(self, sample: Sample) -> TelemetrySampled:
        """Return the sample without serial numbers, and the index of the measured device.

        The index depends on this process's environment variables, which a later reader does not
        have.
        """
        index = nvml_index(self.builder.device, sample.devices)
        devices = [msgspec.structs.replace(device, uuid="") for device in sample.devices]
        sample = msgspec.structs.replace(sample, devices=devices)
        return TelemetrySampled(sample=msgspec.to_builtins(sample), device_index=index)

    def end(self, status: Outcome | None = None) -> Iterator[AnyEvent]:
        if self.builder.resumed:
            status = self.builder.status_of_all()
        elif status is None:
            bad = [outcome for _, outcome in self.outcomes if outcome != "finished"]
            status = bad[0] if bad else "finished"
            if self.disk_full:
                status = "disk-full"
            elif self.cancel.is_set() and not bad:
                status = "cancelled"
        self.log.release_reserve()
        event = RunEnded(status=status)
        self.builder.add(event)
        self.keep_record()
        with suppress(OSError):  # the record has the end already
            self.log.append(event)
            save_error(self.builder.record())
        yield event

    def keep_record(self) -> None:
        if not self.run.path.is_dir():
            return  # the run was deleted
        with self._surviving_full_disk():
            self.run.write_record(self.builder.record())


def with_telemetry(
    supervisions: Sequence[Supervision], passes: Iterator[AnyEvent]
) -> Iterator[AnyEvent]:
    """Sample the devices during the passes, once for all these runs."""

    def take(sample: Sample) -> None:
        for supervision in supervisions:
            supervision.samples.put(sample)

    sampler = Sampler(take)
    sampler.start()
    try:
        yield from passes
    finally:
        sampler.stop()
    if sampler.error is not None:
        for supervision in supervisions:
            yield from supervision.emit(Noticed(message=f"telemetry stopped: {sampler.error}"))
