"""Detection of a terminal that has hung up."""

from __future__ import annotations

import select
import sys


def has_hung_up() -> bool:
    """Whether the terminal behind standard input is gone.

    Only the terminal's session receives SIGHUP. Where that signal does not come, as
    under ``nohup`` or in a container whose client left, Textual reads the end of the input
    over and over, at the cost of a core.
    """
    if sys.__stdin__ is None:
        return False
    poller = select.poll()
    poller.register(sys.__stdin__, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poller.poll(0))
