"""Print JSON documents, or lines that suit a terminal or a pipe, to stdout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO

import msgspec

from sysbench.core.record.record import SCHEMA
from sysbench.core.runs.job_directory import Cancellation, JobDirectory
from sysbench.core.tables.cells import literal, literal_json

if TYPE_CHECKING:
    from rich.console import Console

    from sysbench.tui.commands.text_lines import Line


@contextmanager
def cancelled_by_signals(cancel: Cancellation) -> Iterator[None]:
    """Let SIGINT and SIGTERM cancel the run, and SIGHUP only detach the terminal.

    A dropped connection must not kill a run: after SIGHUP the standard streams go to /dev/null.
    """
    handlers = {
        signal.SIGINT: lambda *_: cancel.set(),
        signal.SIGTERM: lambda *_: cancel.set(),
        signal.SIGHUP: lambda *_: _leave_terminal(),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


PIPE_WIDTH = 100
FULL_PIPE_WIDTH = 120
"""Width in a pipe of tables that are shown in full."""
UNCUT = 10_000
"""Page width that disables truncation."""


def write_text(text: str, *, to_stderr: bool = False) -> None:
    """Write text to stdout; drop it if the reader has closed the pipe (``| head``)."""
    stream = sys.stderr if to_stderr else sys.stdout
    try:
        stream.write(text)
    except BrokenPipeError:
        _forget_reader(stream)


def flush() -> None:
    """Flush stdout and stderr; raises OSError if one is full.

    Text left in a buffer would make the interpreter exit with code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _forget_reader(stream)
            if not isinstance(error, BrokenPipeError):
                raise


def _forget_reader(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_command: ContextVar[str] = ContextVar("command", default="")
"""Name of the command that prints."""


def answer_for(command: str) -> None:
    _command.set(command)


def print_json(value: object, *, indent: int = 2) -> None:
    """Print one JSON document without control characters.

    It has ``schema``, ``command`` and ``version`` beside the value's own keys. A list is ``rows``,
    with ``total`` and ``truncated``.
    """
    from importlib.metadata import version  # lazy: takes 50 ms

    encoded = msgspec.json.encode({"rows": value} if isinstance(value, list | tuple) else value)
    own = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    envelope: dict[str, object] = {
        "schema": SCHEMA,
        "command": _command.get(),
        "version": version("sysbench-tui"),
    }
    if bytes(rows := own.get("rows", msgspec.Raw())).startswith(b"["):
        total = len(msgspec.json.decode(rows, type=list[msgspec.Raw]))
        envelope |= {"total": total, "truncated": False}
    head = msgspec.json.encode({key: text for key, text in envelope.items() if key not in own})
    # Spliced, since a log or a trace of 100 MB should not be held twice as objects.
    document = b",".join(filter(None, (head[1:-1], encoded[1:-1])))
    write_text(literal_json(b"{%b}" % document, indent).decode() + "\n")


def say(*texts: object, to_stderr: bool = False) -> None:
    """Print one line per text, with control characters escaped."""
    for text in texts:
        write_text(f"{literal(str(text))}\n", to_stderr=to_stderr)


def print_answer(document: object, *texts: object, json: bool) -> None:
    if json:
        print_json(document)
    else:
        say(*texts)


def print_started(job: JobDirectory, pid: int, *, json: bool, **more: str) -> int:
    """Report a job that runs detached; return the exit code."""
    print_answer(
        {"id": job.id, "pid": pid, "path": str(job.path), **more},
        f"{job.id} started, process {pid}",
        f"follow it with `sysbench-tui attach {job.id}`, end it with `stop`",
        json=json,
    )
    return 0


def page_width(*, in_full: bool = False, wide: bool = False) -> int:
    """Return the terminal's width; in a pipe ``$COLUMNS``, or 100, or 120 for tables in full."""
    if wide:
        return UNCUT
    if sys.stdout.isatty():
        return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) >= 40:
        return int(columns)
    return FULL_PIPE_WIDTH if in_full else PIPE_WIDTH


def print_lines(lines: Iterable[Line]) -> None:
    if sys.stdout.isatty():
        _print_styled(_console(), lines)
        return
    for line in lines:
        write_text(literal("".join(text for text, _ in line).rstrip()) + "\n")


def print_paged(lines: Iterable[Line], *, page: bool) -> None:
    """Print lines, through a pager if the terminal is shorter and ``page`` allows it."""
    if not (page and sys.stdout.isatty()):
        print_lines(lines)
        return
    console = _console()
    with console.capture() as captured:
        _print_styled(console, lines)
    text = captured.get()
    is_longer = text.count("\n") >= shutil.get_terminal_size((80, 24)).lines
    if is_longer and (pager := _pager_words()):
        _show_in(pager, text)
    else:
        write_text(text)


def _show_in(pager: list[str], text: str) -> None:
    """Show text in a pager. `pydoc.pager` prefers $MANPAGER and loses text if none starts."""
    # Options as in git: quit if the text fits, keep colours, leave the text on the screen.
    environment = {"LESS": "FRX", "LV": "-c", **os.environ}
    sys.stdout.flush()
    with subprocess.Popen(pager, stdin=subprocess.PIPE, env=environment) as process:
        # Ctrl+C belongs to the pager, which needs this process to keep the terminal.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.communicate(text.encode(errors="replace"))
        finally:
            signal.signal(signal.SIGINT, previous)


def _pager_words() -> list[str]:
    """Return program and options of ``$PAGER`` or less; empty if not available."""
    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:  # an unclosed quotation
        return []
    is_there = words and words != ["cat"] and shutil.which(words[0])
    return words if is_there else []


def _console() -> Console:
    from rich.console import Console  # lazy: rich takes 30 ms

    return Console(highlight=False, markup=False, emoji=False)


WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Rich's pictures load fonts from the network; without them the reader's monospace font is used."""


def lines_as_svg(lines: Sequence[Line], title: str) -> str:
    """Draw lines as a picture of a terminal, as wide as the longest, without network requests."""
    from rich.cells import cell_len  # lazy: rich takes 30 ms
    from rich.console import Console  # lazy: rich takes 30 ms

    width = max((sum(cell_len(literal(text)) for text, _ in line) for line in lines), default=1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(
            file=nowhere,
            width=width,
            record=True,
            force_terminal=True,
            color_system="truecolor",
            highlight=False,
            markup=False,
            emoji=False,
        )
        _print_styled(console, lines)
    return without_web_fonts(console.export_svg(title=literal(title)))


def without_web_fonts(picture: str) -> str:
    return WEB_FONT.sub("", picture)


def _print_styled(console: Console, lines: Iterable[Line]) -> None:
    from rich.text import Text  # lazy: rich takes 30 ms

    for line in lines:
        # No wrapping: tables fit already, and commands must stay copyable.
        console.print(
            Text.assemble(*((literal(text), style) for text, style in line)), soft_wrap=True
        )
