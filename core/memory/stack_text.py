"""Stacks of allocations as text, without frames of this program and of torch."""

from __future__ import annotations

import re
from functools import lru_cache

from sysbench.core.formatting import short_path, slashed
from sysbench.core.memory.allocations import AllocationHistory
from sysbench.core.memory.history import Frame, Stack, is_python

STACK_DEPTH = 16
RECORDING_MODULES = (
    "sysbench.core.worker.__main__",
    "sysbench.core.worker.memory.tagger",
    "sysbench.core.worker.passes.memory_pass",
    "sysbench.core.worker.boot",
)
"""Modules on the stack of every allocation that the memory pass records."""
RECORDING_FILES = tuple(
    f"{name.partition('.')[2].replace('.', '/')}.py" for name in RECORDING_MODULES
)
LIBRARY_FILE = re.compile(r"<|((.*/)?(site|dist)-packages/)?torch/")
OPTIMIZER_FILE = re.compile(r"(^|/)torch/optim/(?!optimizer|lr_scheduler|_|swa)")


def stack_text(allocations: AllocationHistory, stack: int) -> tuple[str, ...]:
    return tuple(format_stack(allocations.history.stacks[stack])) if stack >= 0 else ()


MAX_TEXTS = 2**14
"""Cached texts of files and frames, which thousands of stacks share."""


def format_stack(stack: Stack) -> list[str]:
    """Format a stack, innermost frame first. Keep Python frames if there are any, and drop torch's
    own frames except those of optimizers, which identify the state."""
    python = [frame for frame in stack if not frame.file or is_python(frame.file)]
    frames = python if any(frame.file for frame in python) else stack
    own = [frame for frame in frames if not _is_internal(frame.file)]
    shown = own if any(frame.file for frame in own) else frames
    return [_line(frame) for frame in shown[:STACK_DEPTH]]


@lru_cache(MAX_TEXTS)
def _is_internal(file: str) -> bool:
    file = slashed(file)
    is_library = LIBRARY_FILE.match(file) and not OPTIMIZER_FILE.search(file)
    return bool(is_library) or file.endswith(RECORDING_FILES)


@lru_cache(MAX_TEXTS)
def _line(frame: Frame) -> str:
    if not frame.file:
        return frame.name
    return f"{short_path(frame.file)}:{frame.line} {frame.name}"
