"""Run a watched command, and print what its steps were."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from types import FrameType

from sysbench.core.errors import SpecError
from sysbench.core.formatting import counted
from sysbench.core.inspection.decoding import decode_window
from sysbench.core.record.record import Record
from sysbench.core.runs.job_directory import Cancellation
from sysbench.core.runs.run_directory import find_run, load_record
from sysbench.core.tables.overview import overview
from sysbench.core.watch.attach_process import attach_process, running_python
from sysbench.core.watch.supervise_job import create_job, supervise_job
from sysbench.core.watch.windows import asked_of_recorder, request_window
from sysbench.tui.commands.answers import print_record_brief
from sysbench.tui.commands.output import (
    cancelled_by_signals,
    flush,
    page_width,
    print_answer,
    print_json,
    print_lines,
    say,
)
from sysbench.tui.commands.run_report import overview_section
from sysbench.tui.commands.text_lines import note

OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""Signals that the command gets from its terminal itself: this process only has to outlive them."""


def watch_command(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code, or end by the signal that ended it."""
    words = arguments.command_words
    asked = asked_of_recorder(arguments.window, arguments.memory, arguments.step_on)
    words = words[1:] if words[:1] == ["--"] else words
    if arguments.pid is not None:
        if words:
            raise SpecError("--pid", arguments.pid, "without a command: the process has its own")
        return _watch_process(arguments, asked)
    given = {name: getattr(arguments, name) for name in ("window", "memory", "step_on")}
    options = [
        word
        for name, text in given.items()
        if text
        for word in (f"--{name.replace('_', '-')}", text)
    ]
    run = create_job(words, options)
    cancel = Cancellation()
    with _outliving_signals(cancel):
        for _ in supervise_job(run, cancel, decode_window, asked):
            pass
    record = load_record(run)
    if arguments.json:
        _print_document(arguments, record)
    elif arguments.report or arguments.brief or (not arguments.quiet and sys.stderr.isatty()):
        _print_report(arguments, record)
    if record.job is None or record.job.exit_code is None:
        return 1
    if record.job.signal:
        flush()
        _end_by(record.job.signal)
    return record.job.exit_code


def _watch_process(arguments: argparse.Namespace, asked: Mapping[str, str]) -> int:
    cancel = Cancellation()
    process = running_python(arguments.pid)
    run, events = attach_process(process, cancel, decode_window, asked)
    say(f"recording process {process.pid} in {run.id}", to_stderr=True)
    with cancelled_by_signals(cancel):
        for _ in events:
            pass
    if arguments.json:
        _print_document(arguments, load_record(run))
    elif not arguments.quiet:
        _print_report(arguments, load_record(run))
    return 130 if cancel.is_set() else 0


def trace_window(arguments: argparse.Namespace) -> int:
    run = find_run(arguments.run)
    of_memory = arguments.memory is not None
    count = arguments.memory if of_memory else arguments.steps
    request_window(run, count, of_memory=of_memory)
    what = "counts who holds its memory in" if of_memory else "traces"
    print_answer(
        {"id": run.id, "steps": count},
        f"{run.id} {what} its {counted(count, 'next step')}",
        json=arguments.json,
    )
    return 0


def _print_document(arguments: argparse.Namespace, record: Record) -> None:
    if arguments.brief:
        print_record_brief(arguments, record, record.id)
    else:
        print_json(record)


def _print_report(arguments: argparse.Namespace, record: Record) -> None:
    # Standard output is the command's.
    with redirect_stdout(sys.stderr):
        width = page_width()
        if arguments.brief:
            print_record_brief(arguments, record, record.id)
            return
        print_lines(overview_section(overview(record), width))
        print_lines(note([f"`sysbench-tui show {record.id}` prints more"], width))


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
