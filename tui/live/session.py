"""The session: the followed run, and the sensors while no run is live."""

from __future__ import annotations

import select
import signal
import sys
from typing import TYPE_CHECKING

from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.core.storage import experiments_folder
from sysbench.tui.live.sensors import StripSampler, StripState

if TYPE_CHECKING:
    from sysbench.tui.live.pair_watch import Pair
    from sysbench.tui.live.run_watch import RunWatch


def has_hung_up() -> bool:
    """Whether the terminal of standard input is gone.

    Needed where SIGHUP does not arrive, as under ``nohup`` or in a detached container.
    """
    if sys.__stdin__ is None:
        return False
    poller = select.poll()
    poller.register(sys.__stdin__, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poller.poll(0))


def stay_off_a_lost_terminal() -> None:
    """Ignore SIGCONT if the terminal is gone.

    The kernel sends SIGCONT after SIGHUP. Textual would then reopen the terminal and wait forever
    for a thread that cannot write to it.
    """
    resume = signal.getsignal(signal.SIGCONT)
    if callable(resume):
        signal.signal(
            signal.SIGCONT,
            lambda number, frame: None if has_hung_up() else resume(number, frame),
        )


MAX_RECENT_RUNS = 40
"""Newest runs to search for a live one."""

LOOK_EVERY = 6
"""Idle ticks between searches for a run that was started elsewhere."""


class Session:
    """The strip's state and the followed run.

    While a run is live, its samples are shown and no sampler runs here.
    """

    def __init__(self, sampler: StripSampler) -> None:
        self.strip = StripState()
        self._sampler = sampler
        self._idle_ticks = 0

    @property
    def watch(self) -> RunWatch | None:
        return self.strip.watch

    @property
    def live(self) -> bool:
        return self.watch is not None and not self.watch.over

    def find_live_run(self) -> RunDirectory | None:
        live = [run for run in list_runs()[:MAX_RECENT_RUNS] if run.is_live()]
        return next((run for run in live if not run.is_queued()), live[-1] if live else None)

    def find_newcomer(self) -> RunDirectory | None:
        """Find a run that was started elsewhere; searches every `LOOK_EVERY` idle ticks."""
        if self.live:
            self._idle_ticks = 0
            return None
        self._idle_ticks += 1
        newcomer = None if self._idle_ticks % LOOK_EVERY else self.find_live_run()
        # The supervisor of a run that just ended may still hold its lock.
        if newcomer is not None and self.watch is not None and newcomer.id == self.watch.run.id:
            return None
        return newcomer

    @staticmethod
    def is_series_live() -> bool:
        """Whether a study or an experiment is running, which starts runs itself."""
        from sysbench.core.experiments.experiment import (
            list_experiments,  # lazy: not for the first screen
        )
        from sysbench.core.studies.study_directory import (
            list_studies,  # lazy: not for the first screen
        )

        experiments = list_experiments()[:MAX_RECENT_RUNS]
        return any(experiment.is_live() for experiment in experiments) or any(
            study.is_live() for study in list_studies()
        )

    @staticmethod
    def find_live_pair() -> Pair | None:
        if not experiments_folder().is_dir():
            return None
        from sysbench.tui.live.pair_watch import live_pair  # lazy: not for the first screen

        return live_pair()

    def follow(self, run: RunDirectory) -> RunWatch:
        from sysbench.tui.live.run_watch import RunWatch  # lazy: not for the first screen

        self._sampler.stop()
        watch = RunWatch(run)
        watch.poll()
        self.strip.watch = watch
        return watch

    def tick(self) -> RunDirectory | None:
        """Read new events or samples; return the run if it just ended."""
        watch = self.watch
        if watch is None or watch.over:
            sample = self._sampler.latest()
            if sample is not None:
                self.strip.take(sample)
            return None
        watch.poll()
        samples = watch.view.samples
        if samples and samples[-1] is not self.strip.latest:
            self.strip.take(samples[-1], str(watch.view.spec.get("device", "auto")))
        return watch.run if watch.over else None

    def close(self) -> None:
        self._sampler.stop()
