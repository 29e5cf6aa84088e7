"""Runs the passes of one run one after another, and is the only writer of its events.

``python -P -m sysbench.core.runs.supervisor RUN_DIRECTORY`` is what the TUI starts detached; the
``run`` command consumes the same generator in its own process.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import (
    ClusterError,
    DamagedFileError,
    DeviceBusyError,
    NotFoundError,
    SpecError,
)
from ..machine.interpreter import chosen_before
from ..machine.node import device_lock, hosts_of, shares
from ..record.events import AnyEvent, RoundDisturbed
from ..spec.spec import RunSpec
from ..storage import locked
from .directory import EventLog, RunDirectory
from .supervision import POLL_SECONDS, Place, Supervision, outcome_of_os_error
from .supervision import Cancellation as Cancellation


def supervise(
    run: RunDirectory, *, wait: bool = True, cancel: Cancellation | None = None
) -> Iterator[AnyEvent]:
    """Run every pass of the run, yielding each event as it is written.

    The last event is RunEnded, whatever happened. Closing the generator early ends the
    worker and leaves the run without an end, as a crash would.

    Args:
        run: A fresh run directory, from `create_run`.
        wait: Wait for the device if another run measures on it.
        cancel: Ends the run when set.

    Raises:
        DeviceBusyError: At the first step, if ``wait`` is false and the device is held.
        InterpreterError: At the first step, if the run names a Python that nobody chose here.
    """
    header = run.header()
    chosen_before(header.python)
    cancel = cancel or Cancellation()
    with locked(run.lock_path, who=f"run {run.id}"), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        yield from supervision.start()
        yield from _on_devices(supervision, supervision.run_passes, wait=wait)


def add_round(
    run: RunDirectory,
    *,
    experiment: str = "",
    block: int | None = None,
    position: int | None = None,
    side: str = "",
    wait: bool = True,
    cancel: Cancellation | None = None,
) -> Iterator[AnyEvent]:
    """Time the run's spec once more in a fresh process, yielding each event as it is written.

    The round has the next number; its record is the run's, with the figures of all rounds. A run
    that was not measured yet gets its first. However the round ends, those before it stay as they
    are, and so does the status of a run that had ended. A round whose supervisor was killed is in
    the record as ``killed``, and the next one goes on.

    Args:
        run: A run whose passes have ``timing``; ended, killed or fresh.
        experiment: Id of the comparison that the round is for, with ``block``, ``position`` and
            ``side``, its place in it.
        wait: Wait for the device if another run measures on it.
        cancel: Ends the round when set.

    Raises:
        SpecError: The run has no timing pass, or names a Python that nobody chose here.
        DeviceBusyError: At the first step, if a supervisor is at work on the run, or if ``wait``
            is false and the device is held.
    """
    header = run.header()
    if "timing" not in header.passes:
        raise SpecError("passes", ",".join(header.passes), "a round is of the timing pass")
    chosen_before(header.python)
    place = Place(experiment=experiment, block=block, position=position, side=side)
    cancel = cancel or Cancellation()
    with locked(run.lock_path, who=f"run {run.id}"), EventLog(run) as log:
        supervision = Supervision(run, header, log, cancel)
        supervision.resume()
        if not supervision.builder.started:
            yield from supervision.start()
        yield from _on_devices(supervision, lambda: supervision.run_round(place), wait=wait)


def disturb_round(run: RunDirectory, index: int, why: str) -> None:
    """Note in the run that a round does not count, and why; an empty reason lets it count again.

    Raises:
        NotFoundError: The run has no such round.
        DeviceBusyError: A supervisor is at work on the run.
    """
    with locked(run.lock_path, who=f"run {run.id}"), EventLog(run) as log:
        supervision = Supervision(run, run.header(), log, Cancellation())
        supervision.resume()
        if not 1 <= index < supervision.builder.next_round:
            raise NotFoundError(f"run {run.id} has no round {index}")
        for _ in supervision.emit(RoundDisturbed(round=index, why=why)):
            pass
        for _ in supervision.end():
            pass


def _on_devices(
    supervision: Supervision, work: Callable[[], Iterator[AnyEvent]], *, wait: bool
) -> Iterator[AnyEvent]:
    """The work while its devices are held, and the end of the run."""
    cancel = supervision.cancel
    while not cancel.is_set():
        with ExitStack() as held:
            try:
                held.enter_context(_locked_for(supervision.header.spec))
            except DeviceBusyError as busy:
                if not wait:
                    yield from supervision.end("cancelled")
                    raise
                yield from supervision.notice_once(f"waiting: {busy}")
                cancel.wait(POLL_SECONDS)
                continue
            except (OSError, DamagedFileError, ClusterError) as error:
                yield from supervision.notice_once(f"the device cannot be locked: {error}")
                yield from supervision.end(outcome_of_os_error(error))
                return
            yield from work()
            break
    yield from supervision.end()


@contextmanager
def locked_devices(devices: Sequence[str]) -> Iterator[None]:
    """While inside ``with`` no other run measures on these devices."""
    with _locked({device_lock(device): device for device in devices}):
        yield


@contextmanager
def _locked_for(spec: RunSpec) -> Iterator[None]:
    """While inside ``with`` no other run measures where the ranks of this spec do, on any node."""
    hosts = hosts_of(spec.ranks)
    with _locked(
        {
            device_lock(device, node=host): f"{device} of {host}" if hosts else device
            for host, share in zip(hosts or (None,), shares(spec.ranks, len(hosts)), strict=True)
            for device in spec.devices[:share]
        }
    ):
        yield


@contextmanager
def _locked(locks: Mapping[Path, str]) -> Iterator[None]:
    with ExitStack() as stack:
        # Every run locks in the same order, so that no two wait for each other.
        for path, device in sorted(locks.items()):
            stack.enter_context(locked(path, who=device))
        yield


def main() -> int:
    """Supervise the run directory named on the command line to its end, quietly."""
    cancel = Cancellation()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: cancel.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for _ in supervise(RunDirectory(Path(sys.argv[1])), cancel=cancel):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
