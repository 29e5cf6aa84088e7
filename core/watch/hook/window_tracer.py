"""Traces the steps of a window with torch's profiler, on plan or on request.

Like `step_recorder`, this file runs inside of the user's process, with the standard library only,
in the syntax of Python 3.8.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from typing import Any

WINDOW_VARIABLE = "SYSBENCH_WINDOW"
"""``100:3`` traces three steps after the hundredth, on rank 0."""
WINDOW_FILE = "window"
"""File in the folder of the marks; each time it is written, that many next steps are traced, or
with the word `MEMORY` after their number the holders of memory are counted in them."""
MEMORY_VARIABLE = "SYSBENCH_MEMORY"
"""``100:3`` counts the holders of memory in three steps after the hundredth, on rank 0."""
MEMORY = "memory"


class WindowTracer:
    """Begins and ends the windows of a process."""

    def __init__(self, recorder: Any, torch: Any, patches: Any, memory_recorder: Any) -> None:
        self._recorder, self._torch, self._patches = recorder, torch, patches
        self._memory_recorder = memory_recorder
        self.reset()

    def reset(self) -> None:
        """Begin with what was planned."""
        self._profiler: Any = None
        self._began = self._count = self._left = 0
        self._planned = self._plan(WINDOW_VARIABLE)
        self._planned_memory = self._plan(MEMORY_VARIABLE)
        self._asked_ns = self._written_ns(0)
        self._note_whether_steps_matter()

    def _note_whether_steps_matter(self) -> None:
        self._recorder.has_window = bool(
            self._profiler is not None
            or self._planned[1]
            or self._planned_memory[1]
            or self._memory_recorder.is_counting
        )

    def _plan(self, variable: str) -> tuple[int, int]:
        """Steps before a window, and steps in it."""
        first, _, count = os.environ.get(variable, "").partition(":")
        number_in = self._recorder.number_in
        return number_in(first) or 0, number_in(count) or 0

    def end_step(self, number: int) -> None:
        """The step with this number has ended."""
        if self._memory_recorder.is_counting:
            self._memory_recorder.end_step(number)
        if self._profiler is not None:
            self._left -= 1
            self._step_range.__exit__(None, None, None)
            if self._left:
                self._mark_step()
            else:
                self._close()
        elif self._planned[1] and number >= self._planned[0]:
            if self._open(self._planned[1]):
                self._planned = (0, 0)
        elif self._planned_memory[1] and number >= self._planned_memory[0]:
            self._open(self._planned_memory[1], of_memory=True)
            self._planned_memory = (0, 0)
        self._note_whether_steps_matter()

    def look(self) -> None:
        written_ns = self._written_ns(self._asked_ns)
        if written_ns != self._asked_ns and self._profiler is None:
            with open(os.path.join(self._recorder.folder, WINDOW_FILE)) as file:
                count, *what = file.read(20).split() or [""]
            if not self._recorder.number_in(count) or self._open(
                int(count), of_memory=what == [MEMORY]
            ):
                self._asked_ns = written_ns
            self._note_whether_steps_matter()

    def _open(self, count: int, *, of_memory: bool = False) -> bool:
        """Begin a window; return whether the request is done, and not to be tried again later."""
        if (self._recorder.number_in(os.environ.get("RANK")) or 0) != 0:
            return True
        if of_memory:
            self._memory_recorder.open(count)
            return True
        if self._patches.is_profiling():
            return False  # the user's own comes first
        self._began = time.monotonic_ns()
        self._count = self._left = count
        profiler: Any = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        cuda: Any = self._torch.cuda
        if cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
            # Kernels launched before are not in the trace: while they run, the GPU looks idle.
            cuda.synchronize()
        # With stacks the trace has the classes of the modules.
        self._profiler = profiler.profile(
            activities=activities, record_shapes=True, with_stack=True
        )
        # Set after torch was loaded, the variable would let the profiler log even more.
        quiet = self._recorder.quiet_profiler if self._recorder.is_quiet else contextlib.nullcontext
        with quiet():
            self._profiler.start()
        self._mark_step()
        return True

    def make_way(self, profiler: Any) -> None:
        """The user's profiler is about to start: end a window, with the steps that it has."""
        if profiler is not self._profiler:
            self.cut()

    def cut(self) -> None:
        """End an open window with the steps that it has."""
        if self._profiler is None:
            return
        try:
            self._step_range.__exit__(None, None, None)
            self._count -= self._left
            self._close()
        except Exception as error:
            self._recorder.give_up(error)

    def _mark_step(self) -> None:
        """Begin a step in the trace, under the name that torch's profiler gives to its own."""
        number = self._count - self._left
        profiler: Any = importlib.import_module("torch.profiler")
        self._step_range = profiler.record_function(f"ProfilerStep#{number}")
        self._step_range.__enter__()

    def _close(self) -> None:
        window, self._profiler = self._profiler, None
        window.stop()
        if not self._count:
            return
        name = f"window-{self._recorder.step_count}-{os.getpid()}.json"
        path = os.path.join(self._recorder.folder, name)
        window.export_chrome_trace(path + ".part")
        os.replace(path + ".part", path)
        self._recorder.add_window(self._began, self._count, name)

    def _written_ns(self, unknown: int) -> int:
        try:
            return os.stat(os.path.join(self._recorder.folder, WINDOW_FILE)).st_mtime_ns
        except OSError:
            return unknown
