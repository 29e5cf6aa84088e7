"""The pager: a program that shows what is longer than the terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys

from ..report.output import write

LESS_OPTIONS = "FRX"
"""Quit at once where all fits, keep colours, leave the text on the screen: git's choice."""


def show(text: str) -> None:
    """Show text in the pager where it is longer than the terminal, else print it."""
    words = pager_words() if _is_longer_than_screen(text) else []
    if not words:
        write(text)
        return
    environment = {"LESS": LESS_OPTIONS, "LV": "-c", **os.environ}
    sys.stdout.flush()
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environment) as pager:
        # Ctrl+C is the pager's: without us it would lose the terminal in the middle of a page.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            pager.communicate(text.encode(errors="replace"))
        finally:
            signal.signal(signal.SIGINT, previous)


def pager_words() -> list[str]:
    """Program and options of ``$PAGER``, else of less; empty where there is none to open."""
    chosen = os.environ.get("PAGER")
    try:
        words = shlex.split("less" if chosen is None else chosen)
    except ValueError:  # a quotation that does not end
        return []
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return []
    return words


def _is_longer_than_screen(text: str) -> bool:
    return text.count("\n") >= shutil.get_terminal_size((80, 24)).lines
