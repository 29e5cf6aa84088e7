"""The terminal: how its keys are read, and whether it has hung up."""

from __future__ import annotations

import os
import select
import signal
import sys
from codecs import getincrementaldecoder

from textual._xterm_parser import XTermParser
from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key

TICK_SECONDS = 0.1
"""Longest wait for input before the driver looks whether it is to end."""
ESCAPE_SECONDS = ESCAPE_DELAY if "ESCDELAY" in os.environ else 0.05
"""Wait for what follows an escape byte: nothing does after the key, the rest after a sequence's."""
READ_BYTES = 4096
ESCAPE = "\x1b"


class TerminalDriver(LinuxDriver):
    """Textual's driver, which has the key escape sooner, and survives bytes that are no text.

    Textual's own looks ten times a second whether a sequence goes on, so that closing a dialog
    takes 0.1 s and more.
    """

    def run_input_thread(self) -> None:
        """Tell the app of each key until it ends."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        escapes = ""  # at the end of what was read: keys, or the start of a sequence
        while not self.exit_event.is_set():
            wait = ESCAPE_SECONDS if escapes else TICK_SECONDS
            if select.select([self.fileno], [], [], wait)[0]:
                read = os.read(self.fileno, READ_BYTES)
                if not read:  # hung up, which the app finds out
                    self.exit_event.wait(TICK_SECONDS)
                text = escapes + decode(read)
                known = text.rstrip(ESCAPE)
                escapes = text[len(known) :]
                for message in parser.feed(known) if known else ():
                    self.process_message(message)
            else:
                for character in escapes:
                    self.process_message(Key("escape", character))
                escapes = ""
            for message in parser.tick():
                self.process_message(message)


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
