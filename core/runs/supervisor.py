"""Run the passes of one run, each in a worker that it watches, and write its events.

The TUI starts ``python -P -m sysbench.core.runs.supervisor RUN_DIRECTORY`` detached; the ``run``
command consumes the same generator in its own process.
"""

from __future__ import annotations

import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sysbench.core.errors import (
    ClusterError,
    DamagedFileError,
    DeviceBusyError,
    NotFoundError,
    SpecError,
)
from sysbench.core.machine.devices import device_lock, find_cuda, hold_locks, rank_locks
from sysbench.core.machine.interpreter import require_chosen
from sysbench.core.record.blocks import PassName, why_left_out
from sysbench.core.record.events import AnyEvent, Noticed, Outcome, RoundDisturbed
from sysbench.core.runs.job_directory import Cancellation, work_until_signal
from sysbench.core.runs.run_directory import EventLog, Header, RunDirectory
from sysbench.core.runs.supervised_run import (
    POLL_SECONDS,
    PassPlace,
    PassProcess,
    Supervision,
    with_telemetry,
)
from sysbench.core.runs.worker_process import FIRST_TURN, outcome_of_os_error
from sysbench.core.spec.spec import RunSpec


def supervise(
    run: RunDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[AnyEvent]:
    """Run every pass of the run, yielding each event as it is written.

    The last event is always RunEnded. Closing the generator early ends the worker and leaves the
    run without an end, as a crash would. Raises DeviceBusyError, InterpreterError or SpecError at
    the first step: the device is held, the Python was never chosen here, or the run is of a
    command.
    """
    header = run.header()
    require_worker(header)
    cancel = cancel or Cancellation()
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        yield from supervision.start()
        yield from run_on_devices(
            [supervision], lambda: with_telemetry([supervision], _passes(supervision)), wait=wait
        )


def add_round(
    run: RunDirectory,
    place: PassPlace | None = None,
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Time the run's spec once more in a fresh process, yielding each event as it is written.

    The round has the next number; its record is the run's, with the figures of all rounds. A run
    that was not measured yet gets its first. Neither earlier rounds nor the status of a run that
    had ended change. A round whose supervisor was killed is in the record as ``killed``, and the
    next one continues.

    Raises SpecError without a timing pass, DeviceBusyError if the run has a supervisor, or if
    ``wait`` is false and the device is held.
    """
    require_worker(run.header())
    yield from measure_round(run, lambda held: _run_round(held, place), wait=wait, cancel=cancel)


def measure_round(
    run: RunDirectory,
    measure: Callable[[Supervision], Iterator[AnyEvent]],
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Hold a run and its device while ``measure`` adds a round; raises as `add_round`."""
    with ExitStack() as held:
        supervision = held.enter_context(resume_rounds(run, cancel or Cancellation()))
        yield from supervision.start_unless_started()
        yield from run_on_devices([supervision], lambda: measure(supervision), wait=wait)


@contextmanager
def resume_rounds(run: RunDirectory, cancel: Cancellation) -> Iterator[Supervision]:
    """Hold a run that can have another round; raises as `add_round`."""
    header = run.header()
    if "timing" not in header.passes:
        raise SpecError("passes", ",".join(header.passes), "only the timing pass has rounds")
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        supervision.resume()
        yield supervision


def require_worker(header: Header) -> None:
    if header.spec.is_job:
        raise SpecError("workload", "job", f"run again as `{header.command_line()}`")
    require_chosen(header.python)


def disturb_round(run: RunDirectory, index: int, why: str) -> None:
    """Exclude a round because of ``why``; an empty reason includes it again.

    Raises NotFoundError without that round, DeviceBusyError if the run has a supervisor.
    """
    with run.hold(), EventLog(run) as log:
        supervision = Supervision(run, run.header(), log, Cancellation())
        supervision.resume()
        if not 1 <= index < supervision.builder.next_round:
            raise NotFoundError(f"run {run.id} has no round {index}")
        for _ in supervision.emit(RoundDisturbed(round=index, why=why)):
            pass
        for _ in supervision.end():
            pass


def run_on_devices(
    supervisions: Sequence[Supervision], work: Callable[[], Iterator[AnyEvent]], *, wait: bool
) -> Iterator[AnyEvent]:
    cancel = supervisions[0].cancel
    status: Outcome | None = None
    while not cancel.is_set():
        with ExitStack() as held:
            try:
                locks = [_locks_of(supervision.header.spec) for supervision in supervisions]
                held.enter_context(hold_locks(dict(ChainMap(*locks))))
            except DeviceBusyError as busy:
                if not wait:
                    for supervision in supervisions:
                        yield from supervision.end("cancelled")
                    raise
                for supervision in supervisions:
                    yield from supervision.notice_once(f"waiting: {busy}")
                cancel.wait(POLL_SECONDS)
                continue
            except (OSError, DamagedFileError, ClusterError) as error:
                status = outcome_of_os_error(error)
                for supervision in supervisions:
                    yield from supervision.notice_once(f"the device cannot be locked: {error}")
            else:
                yield from work()
            break
    for supervision in supervisions:
        yield from supervision.end(status)


def _locks_of(spec: RunSpec) -> dict[Path, str]:
    """Return the locks of the spec's ranks; for a command of all devices, as it may use any."""
    if spec.is_job:
        devices = ["cpu", *(f"cuda:{number}" for number in range(len(find_cuda().devices)))]
        return {device_lock(device): device for device in devices}
    return rank_locks(spec.devices, spec.ranks)


def _run_round(supervision: Supervision, place: PassPlace | None) -> Iterator[AnyEvent]:
    """Run one more round of the timing pass, during which the record is ``running``."""
    supervision.keep_record()
    number = supervision.builder.next_round
    yield from with_telemetry([supervision], _run_pass(supervision, "timing", number, place))


def _passes(supervision: Supervision) -> Iterator[AnyEvent]:
    for name in supervision.header.passes:
        for number in range(1, 1 + (supervision.header.repeat if name == "timing" else 1)):
            if supervision.cancel.is_set() or supervision.disk_full:
                break
            if why := why_left_out(name, supervision.outcomes):
                if number == 1:
                    yield from supervision.emit(Noticed(message=f"{name} pass left out: {why}"))
                break
            yield from _run_pass(supervision, name, number)
            supervision.keep_record()


def _run_pass(
    supervision: Supervision, name: PassName, number: int = 1, place: PassPlace | None = None
) -> Iterator[AnyEvent]:
    process = PassProcess(supervision, name, number, place)
    try:
        yield from process.launch()
        yield from process.begin()
        while process.is_running:
            yield from process.poll(POLL_SECONDS)
        yield from process.finish()
    finally:
        process.close()
    yield from process.end()


LOST_PARTNER = "the other process of its pair was lost"


def add_pair(
    runs: tuple[RunDirectory, RunDirectory],
    places: tuple[PassPlace, PassPlace],
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Time two specs in two fresh processes that live side by side and take turns.

    Only one of them steps at a time; the first begins. Each run gets a round as by `add_round`,
    which raises the same. If one process is lost, the other one is ended as ``cancelled``.
    """
    cancel = cancel or Cancellation()
    for run in runs:
        require_worker(run.header())
    with ExitStack() as held:
        pair = [held.enter_context(resume_rounds(run, cancel)) for run in runs]
        for supervision in pair:
            yield from supervision.start_unless_started()
        yield from run_on_devices(pair, lambda: _run_pair(pair, places), wait=wait)


def _run_pair(
    pair: Sequence[Supervision], places: tuple[PassPlace, PassPlace]
) -> Iterator[AnyEvent]:
    processes = []
    for supervision, place in zip(pair, places, strict=True):
        supervision.keep_record()
        number = supervision.builder.next_round
        processes.append(PassProcess(supervision, "timing", number, place))
    yield from with_telemetry(pair, _follow_pair(processes))


def _follow_pair(processes: Sequence[PassProcess]) -> Iterator[AnyEvent]:
    first, second = processes
    to_first, to_second = os.pipe(), os.pipe()
    try:
        try:
            yield from first.launch((to_first[0], to_second[1]))
            yield from second.launch((to_second[0], to_first[1]))
            os.write(to_first[1], FIRST_TURN)
        finally:
            # Only the workers may hold the ends: the death of one then wakes the other.
            for end in (*to_first, *to_second):
                os.close(end)
        yield from first.begin(second)
        yield from second.begin(first)
        while running := [process for process in processes if process.is_running]:
            if any(process.is_lost for process in processes):
                for process in running:
                    process.give_up(LOST_PARTNER)
                break
            for process in running:
                yield from process.poll(POLL_SECONDS / len(running))
        for process in processes:
            yield from process.finish()
    finally:
        for process in processes:
            process.close()
    for process in processes:
        yield from process.end()


def main() -> int:
    return work_until_signal(lambda path, cancel: supervise(RunDirectory(path), cancel=cancel))


if __name__ == "__main__":
    sys.exit(main())
