"""Run a watched command, and print what its steps were."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType

from sysbench.core.formatting import counted
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import RunDirectory, find_run
from sysbench.core.runs.stored_records import load_record
from sysbench.core.tables.overview import overview
from sysbench.core.watch.supervise_job import create_job, supervise_job
from sysbench.core.watch.windows import request_window, step_function, window_of
from sysbench.tui.commands.layout import note
from sysbench.tui.commands.output import (
    flush,
    page_width,
    print_answer,
    print_json,
    print_lines,
)
from sysbench.tui.commands.run_report import overview_section

OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""Signals that the command gets from its terminal itself: this process only has to outlive them."""


def watch_command(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code, or end by the signal that ended it."""
    words = arguments.command_words
    window = window_of(arguments.window) if arguments.window else ""
    step_on = step_function(arguments.step_on) if arguments.step_on else ""
    given = {"--window": window, "--step-on": step_on}
    options = [word for name, text in given.items() if text for word in (name, text)]
    run = create_job(words[1:] if words[:1] == ["--"] else words, options)
    cancel = Cancellation()
    with _outliving_signals(cancel):
        for _ in supervise_job(run, cancel, window, step_on):
            pass
    record = load_record(run)
    if arguments.json:
        print_json(record)
    elif arguments.report or (not arguments.quiet and sys.stderr.isatty()):
        _print_report(run)
    if record.job is None or record.job.exit_code is None:
        return 1
    if record.job.signal:
        flush()
        _end_by(record.job.signal)
    return record.job.exit_code


def trace_window(arguments: argparse.Namespace) -> int:
    run = find_run(arguments.run)
    request_window(run, arguments.steps)
    steps = counted(arguments.steps, "next step")
    print_answer(
        {"id": run.id, "steps": arguments.steps},
        f"{run.id} traces its {steps}",
        json=arguments.json,
    )
    return 0


def _print_report(run: RunDirectory) -> None:
    # Standard output is the command's.
    with redirect_stdout(sys.stderr):
        width = page_width()
        print_lines(overview_section(overview(load_record(run)), width))
        print_lines(note([f"`sysbench-tui show {run.id}` prints more"], width))


@contextmanager
def _outliving_signals(cancel: Cancellation) -> Iterator[None]:
    """Pass SIGTERM on to the command, and leave the terminal's signals to it.

    Handlers are not inherited, unlike an ignored signal, which stays ignored in the command.
    """

    def ignore(number: int, frame: FrameType | None) -> None:
        pass

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: cancel.set())}
    for number in OF_THE_TERMINAL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, ignore)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_by(number: int) -> None:
    """End this process as the command ended, so that a shell or a scheduler sees the same."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
