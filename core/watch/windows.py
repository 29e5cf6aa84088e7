"""Windows of a watched command: steps that run under a profiler."""

from __future__ import annotations

from pathlib import Path

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import write_atomically
from sysbench.core.watch.hook.step_recorder import WINDOW_FILE

MAX_WINDOW_STEPS = 100


def marks_folder(run: RunDirectory, number: int = 1) -> Path:
    """Return the folder in which the processes of a round of the command leave their marks."""
    return run.round_folder(number) / "marks"


def window_of(text: str) -> str:
    """Return ``STEP:COUNT``; raises SpecError if it is neither."""
    first, _, count = text.partition(":")
    if not (first.isdecimal() and count.isdecimal() and 0 < int(count) <= MAX_WINDOW_STEPS):
        raise SpecError(
            "window", text, f"STEP:COUNT, such as 100:3, of 1 to {MAX_WINDOW_STEPS} steps"
        )
    return text


def step_function(text: str) -> str:
    """Return ``package.module:function``; raises SpecError if it is not of that form."""
    module, _, function = text.partition(":")
    names = [*module.split("."), *function.split(".")]
    if not all(name.isidentifier() for name in names) or module == "__main__":
        allowed = "package.module:function or …:Class.method, of a module that the command imports"
        raise SpecError("step-on", text, allowed)
    return text


def request_window(run: RunDirectory, count: int) -> None:
    """Let the live command of a run trace its next steps; raises NotFoundError if it has ended."""
    folder = marks_folder(run)
    if not (run.header().spec.is_job and run.is_live() and folder.is_dir()):
        raise NotFoundError(f"run {run.id} is no live command of `watch`")
    window_of(f"0:{count}")
    write_atomically(folder / WINDOW_FILE, f"{count}\n".encode())
