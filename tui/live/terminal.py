"""Whether the terminal has hung up."""

from __future__ import annotations

import select
import signal
import sys


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
