"""The app's subject: one run at a time, and the sensors while there is none."""

from __future__ import annotations

import select
import signal
import sys
from typing import TYPE_CHECKING

from sysbench.core.experiments.experiment_places import experiments_folder
from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.tui.live.sensors import StripSampler, StripState

if TYPE_CHECKING:
    from sysbench.tui.live.pair_watch import Pair
    from sysbench.tui.live.run_watch import RunWatch


def has_hung_up() -> bool:
    """Whether the terminal behind standard input is gone.

    Only the terminal's session receives SIGHUP. Where that signal does not come, as
    under ``nohup`` or in a container whose client left, the input is at its end for ever.
    """
    if sys.__stdin__ is None:
        return False
    poller = select.poll()
    poller.register(sys.__stdin__, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poller.poll(0))


def stay_off_a_lost_terminal() -> None:
    """Let SIGCONT resume the workstation only where its terminal is still there.

    The kernel sends SIGCONT after the SIGHUP of a terminal that is gone. Textual then opens it
    once more, and waits for ever to end the thread that could not write to it.
    """
    resume = signal.getsignal(signal.SIGCONT)
    if callable(resume):
        signal.signal(
            signal.SIGCONT,
            lambda number, frame: None if has_hung_up() else resume(number, frame),
        )


RECENT_RUNS = 40
"""Newest runs among which a live one is sought."""

LOOK_EVERY = 6
"""Idle ticks between two searches for a run that was started elsewhere."""


class Session:
    """The strip's state and the run behind it. Only one process polls the sensors: while a
    run is live its own samples are shown."""

    def __init__(self, sampler: StripSampler) -> None:
        self.strip = StripState()
        self._sampler = sampler
        self._idle_ticks = 0

    @property
    def watch(self) -> RunWatch | None:
        """The run that is followed, until another one begins."""
        return self.strip.watch

    @property
    def live(self) -> bool:
        """Whether the followed run is still going on."""
        return self.watch is not None and not self.watch.over

    def find_live_run(self) -> RunDirectory | None:
        """A run that outlived an earlier terminal, or was started in another one; a waiting one
        where none measures."""
        live = [run for run in list_runs()[:RECENT_RUNS] if run.is_live()]
        return next((run for run in live if not run.is_queued()), live[-1] if live else None)

    def find_newcomer(self) -> RunDirectory | None:
        """A run that began elsewhere while none was followed; searches every `LOOK_EVERY` ticks."""
        if self.live:
            self._idle_ticks = 0
            return None
        self._idle_ticks += 1
        newcomer = None if self._idle_ticks % LOOK_EVERY else self.find_live_run()
        # The supervisor of the run that just ended may hold its lock an instant longer.
        if newcomer is not None and self.watch is not None and newcomer.id == self.watch.run.id:
            return None
        return newcomer

    @staticmethod
    def is_series_live() -> bool:
        """Whether a study or an experiment is running: then new runs are its cells or rounds."""
        from sysbench.core.experiments.experiment import list_experiments  # lazy: numpy
        from sysbench.core.studies.study_directory import list_studies  # lazy: numpy

        experiments = list_experiments()[:RECENT_RUNS]
        return any(experiment.is_live() for experiment in experiments) or any(
            study.is_live() for study in list_studies()
        )

    @staticmethod
    def find_live_pair() -> Pair | None:
        """The runs of an experiment that outlived an earlier terminal."""
        if not experiments_folder().is_dir():
            return None
        from sysbench.tui.live.pair_watch import live_pair  # lazy: numpy

        return live_pair()

    def follow(self, run: RunDirectory) -> RunWatch:
        """Watch this run from now on."""
        from sysbench.tui.live.run_watch import RunWatch  # lazy: the first screen needs no run

        self._sampler.stop()
        watch = RunWatch(run)
        watch.poll()
        self.strip.watch = watch
        return watch

    def tick(self) -> RunDirectory | None:
        """Read new events or samples; return the run if it has just ended."""
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
        """Stop the sensors; the run continues."""
        self._sampler.stop()
