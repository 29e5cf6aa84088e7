"""How far the decoding of a file is: one line on a terminal's stderr, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...core.inspection.messages import Progressed
from ..wording import decoding_words
from .live_progress import bar

CLEAR_LINE = "\r\x1b[K"


@contextmanager
def decoding_progress() -> Iterator[Callable[[Progressed], None]]:
    """Gives what shows the progress; the line is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return

    def show(step: Progressed) -> None:
        filled = "" if step.share is None else f"{bar(step.share)}  "
        _write(f"{CLEAR_LINE}  {filled}{decoding_words(step)}")

    try:
        yield show
    finally:
        _write(CLEAR_LINE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
