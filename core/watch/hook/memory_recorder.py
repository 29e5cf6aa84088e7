"""Counts who holds the memory of tensors in a training process: on request, and at its end.

This file runs inside of the user's process, as `step_recorder` does: standard library and torch,
syntax of Python 3.8. A count is a file of JSON in the folder of the marks;
`sysbench.core.watch.job_memory` reads it.

An exception that ends the process is found at exit, where Python has kept it: no hook of the user
is replaced, and its traceback, with the tensors of its frames, is alive.
"""

from __future__ import annotations

import atexit
import json
import linecache
import os
import pickle
import re
import sys
import time
from typing import Any

RESERVE_BYTES = 2**22
"""Address space, without pages, that is freed when memory ran out, so that it can be counted."""
MAX_EVENTS = 200_000
"""Requests in the allocator's history of the counted steps, the last ones."""
PICKLE_PROTOCOL = 4
"""The newest version that pytorch.org/memory_viz supports."""
MAX_FRAMES = 12
MAX_COUNTS = 16
"""Counts in one step: with many micro-batches only the first ones are counted."""
PHASES = {"f": "forward", "b": "backward", "o": "optimizer", "s": "step"}
"""Phases by the marks that end them."""
PLACES = (
    (os.path.join("torch", "optim", ""), "optimizer"),
    (os.path.join("torch", "_tensor.py"), "backward"),
    (os.path.join("torch", "autograd", "__init__.py"), "backward"),
    (os.path.join("torch", "utils", "data", ""), "input"),
    (os.path.join("torch", "nn", "modules", "module.py"), "forward"),
)
"""Phases by the files of torch on the stack, the outermost first."""
REFUSALS = (
    *("allocate memory", "out of memory", "std::bad_alloc", "could not create a memory"),
    *("STATUS_ALLOC_FAILED", "Unable to allocate"),
)


class MemoryRecorder:
    """Counts holders over the steps that are asked for, and at exit if memory ran out."""

    def __init__(self, recorder: Any, torch: Any, patches: Any, holders: Any) -> None:
        self._recorder = recorder
        self._patches = patches
        self._torch = torch
        self._finder = holders
        self._counts: list[dict[str, Any]] = []
        self._left = self._steps = self._began = 0
        self._anomaly = (False, True)
        self.is_counting = self._has_history = False
        self._reserve: Any = bytearray(RESERVE_BYTES)
        atexit.register(self._at_exit)

    def open(self, count: int) -> None:
        """Count in the next steps, in which torch keeps the line of each operator."""
        if self.is_counting:
            return
        torch = self._torch
        self._anomaly = (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
        torch.autograd.set_detect_anomaly(True, check_nan=self._anomaly[0] and self._anomaly[1])
        self._counts, self._left, self._steps = [], count, count
        self._began, self.is_counting = time.monotonic_ns(), True
        self._recorder.count_at_marks(self.end_phase)
        self._has_history = self._patches.begin_history(MAX_EVENTS)

    def end_phase(self, kind: str) -> None:
        """Count at the end of a phase, of which ``kind`` is the mark."""
        step = self._steps - self._left
        seen = sum(count["step"] == step for count in self._counts)
        if kind not in PHASES or seen >= MAX_COUNTS:
            return
        try:
            frames = [*_frames_of(sys._getframe(1))]
            count = self._count(_device(self._torch), frames)
        except Exception:
            self._stop()
            raise
        self._counts.append({"step": step, "phase": PHASES[kind], **count})

    def end_step(self, number: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._close(number)

    def _stop(self) -> Any:
        """Leave torch as it was before; return the allocator's history."""
        self.is_counting = False
        self._recorder.count_at_marks(None)
        self._torch.autograd.set_detect_anomaly(*self._anomaly)
        return self._patches.end_history() if self._has_history else None

    def _close(self, number: int) -> None:
        """Write the counts of whole steps, of which ``number`` is the number of the last one."""
        snapshot, done = self._stop(), self._steps - self._left
        counts = [count for count in self._counts if count["step"] < done]
        self._counts = []
        if not counts:
            return
        name = f"memory-{number}-{os.getpid()}.json"
        facts: dict[str, Any] = {
            "device": _device(self._torch),
            "first": number - done,
            "counts": counts,
        }
        if snapshot is not None:
            facts["snapshot"] = name.replace(".json", ".pickle")
            self._dump(facts["snapshot"], snapshot)
        self._write(name, facts)
        self._recorder.add_window(self._began, done, name)

    def _count(self, device: str, frames: list[Any]) -> dict[str, Any]:
        holders = self._finder.Holders(self._torch)
        holders.search(frames)
        rows = holders.rows(device)
        return {"t_ns": time.time_ns(), **_counters(self._torch, device), "rows": rows}

    def _place(self, frame: Any, line: int) -> str:
        file = os.path.basename(frame.f_code.co_filename)
        return f"{file}:{line} {self._finder.function_name(frame, frame.f_locals)}"

    def _dump(self, name: str, snapshot: Any) -> None:
        with open(os.path.join(self._recorder.folder, name), "wb") as file:
            pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)

    def _write(self, name: str, facts: dict[str, Any]) -> None:
        path = os.path.join(self._recorder.folder, name)
        facts["rank"], facts["pid"] = os.environ.get("RANK"), os.getpid()
        with open(path + ".part", "w") as file:
            json.dump(facts, file, separators=(",", ":"))
        os.replace(path + ".part", path)

    def _at_exit(self) -> None:
        """Report the exception that Python printed, if memory ran out: nobody caught it."""
        self._reserve = None
        try:
            if self.is_counting:
                self._close(self._recorder.step_count)
            error = _refusal(getattr(sys, "last_value", None), self._torch)
            if error is not None:
                self._report(error)
        except Exception as problem:  # the job has ended, and its exit code is its own
            why = f"out of memory, and its holders could not be counted: {problem!r}"
            self._recorder.give_up(problem, why)

    def _report(self, error: Any) -> None:
        torch, message = self._torch, str(error)
        on_cuda = isinstance(error, _cuda_error(torch))
        device = _device(torch) if on_cuda else "cpu"
        number = re.search(r"GPU (\d+)", message) if on_cuda else None
        if number is not None:
            device = f"cuda:{number[1]}"
        stack = [(tb.tb_frame, tb.tb_lineno) for tb in _tracebacks(error)]
        own = [
            pair for pair in reversed(stack) if self._finder.is_users(pair[0].f_code.co_filename)
        ]
        own = own or stack[::-1]
        where = [self._place(frame, line) for frame, line in own[:MAX_FRAMES]]
        files = [frame.f_code.co_filename for frame, _ in stack]
        phases = (phase for file in files for part, phase in PLACES if part in file)
        lines = [linecache.getline(frame.f_code.co_filename, line) for frame, line in own[:1]]
        count = self._count(device, [frame for frame, _ in reversed(stack)])
        snapshot = f"memory-oom-{os.getpid()}.pickle" if on_cuda else ""
        if snapshot:
            self._dump(snapshot, torch.cuda.memory_snapshot())
            count["workspaces"] = self._patches.free_workspaces(device)
        self._write(
            f"memory-oom-{os.getpid()}.json",
            {
                "message": message.split("\n")[0][:2000],
                "stack": where,
                "line": "".join(lines).strip(),
                "phase": next(phases, "the script"),
                "device": device,
                "snapshot": snapshot,
                "counts": [count],
            },
        )


def _counters(torch: Any, device: str) -> dict[str, Any]:
    """Bytes of CUDA's allocator; the CPU's has no counters."""
    if device == "cpu":
        return {}
    facts = torch.cuda.memory_stats_as_nested_dict(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": facts["allocated_bytes"]["all"]["current"],
        "reserved": facts["reserved_bytes"]["all"]["current"],
        "peak": facts["allocated_bytes"]["all"]["peak"],
        "free": free,
        "total": total,
    }


def _device(torch: Any) -> str:
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "cpu"


def _cuda_error(torch: Any) -> Any:
    return getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


def _refusal(error: Any, torch: Any) -> Any:
    """Return the refused request among an exception and those that it followed; else None."""
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (MemoryError, _cuda_error(torch))):
            return error
        if isinstance(error, RuntimeError) and any(word in str(error) for word in REFUSALS):
            return error
        error = error.__cause__ or error.__context__
    return None


def _tracebacks(error: Any) -> Any:
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _frames_of(frame: Any) -> Any:
    while frame is not None:
        yield frame
        frame = frame.f_back
