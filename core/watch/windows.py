"""Windows of a watched command: steps under a profiler, or in which its memory is counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sysbench.core.errors import NotFoundError, SpecError
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.storage import write_atomically
from sysbench.core.watch.hook.step_recorder import STEP_VARIABLE
from sysbench.core.watch.hook.window_tracer import (
    MEMORY,
    MEMORY_VARIABLE,
    WINDOW_FILE,
    WINDOW_VARIABLE,
)

MAX_WINDOW_STEPS = 100


def marks_folder(run: RunDirectory, number: int = 1) -> Path:
    """Return the folder in which the processes of a round of the command leave their marks."""
    return run.round_folder(number) / "marks"


NOTHING_ASKED: Mapping[str, str] = MappingProxyType({})


def asked_of_recorder(window: str = "", memory: str = "", step_on: str = "") -> Mapping[str, str]:
    """Return the variables of the environment that the recorder reads; empty options have none.

    Args:
        window: ``100:3`` traces three steps after the hundredth.
        memory: ``100:3`` counts who holds memory in three steps after the hundredth.
        step_on: ``package.module:function`` whose calls are the steps, instead of optimizer steps.

    Raises:
        SpecError: An option is not of its form.
    """
    asked = {
        WINDOW_VARIABLE: window and window_of(window),
        MEMORY_VARIABLE: memory and window_of(memory, "memory"),
        STEP_VARIABLE: step_on and step_function(step_on),
    }
    return {name: text for name, text in asked.items() if text}


def window_of(text: str, option: str = "window") -> str:
    """Return ``STEP:COUNT`` of an option; raises SpecError if it is neither."""
    first, _, count = text.partition(":")
    if not (first.isdecimal() and count.isdecimal() and 0 < int(count) <= MAX_WINDOW_STEPS):
        raise SpecError(
            option, text, f"STEP:COUNT, such as 100:3, of 1 to {MAX_WINDOW_STEPS} steps"
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


def request_window(run: RunDirectory, count: int, *, of_memory: bool = False) -> None:
    """Let the live command of a run trace its next steps, or count who holds its memory in them.

    Raises NotFoundError if the command has ended.
    """
    folder = marks_folder(run)
    if not (run.header().spec.is_job and run.is_live() and folder.is_dir()):
        raise NotFoundError(f"run {run.id} is no live command of `watch`")
    window_of(f"0:{count}")
    what = f"{count} {MEMORY}\n" if of_memory else f"{count}\n"
    write_atomically(folder / WINDOW_FILE, what.encode())
