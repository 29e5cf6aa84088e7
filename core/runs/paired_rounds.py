"""Two specs timed in two fresh processes that live side by side and take turns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from sysbench.core.record.events import AnyEvent
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.pass_process import PassPlace, PassProcess
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.runs.supervised_run import POLL_SECONDS, Supervision, with_telemetry
from sysbench.core.runs.supervisor import require_worker, resume_rounds, run_on_devices
from sysbench.core.runs.worker_process import FIRST_TURN

LOST_PARTNER = "the other process of its pair was lost"


def add_pair(
    runs: tuple[RunDirectory, RunDirectory],
    places: tuple[PassPlace, PassPlace],
    *,
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Time two specs in two fresh processes that live side by side and take turns.

    Only one of them steps at a time; the first begins. Each run gets a round as by `add_round`. If
    one process is lost, the other one is ended as ``cancelled``.

    Args:
        runs: Two runs whose passes have ``timing``, in the order of the turns.

    Raises:
        SpecError, DeviceBusyError: As for `add_round`.
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
