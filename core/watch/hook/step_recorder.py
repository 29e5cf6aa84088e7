"""Records when a training process waits for input, runs forward, backward and its optimizer.

This file runs inside of the user's process. It uses the standard library only, in the syntax of
Python 3.8, and hooks of torch that leave nothing in the user's models: pickles and compiled code
stay as they are. Of torch it wraps the update of a gradient scaler, compiling in place, and the
ranges in which torch profiles loaders. Marks are lines of JSON, one array each, in
a file of the process; `sysbench.core.watch.marks` reads them. Times are of the monotonic clock in
nanoseconds, which all processes of a host share.
"""

from __future__ import annotations

import atexit
import collections
import functools
import importlib
import importlib.util
import inspect
import json
import os
import socket
import sys
import threading
import time
from typing import Any

FLUSH_NS = 50_000_000
"""Marks are written at the first optimizer step after this time, so that a short step pays little.
A killed process loses at most this much of them."""
STEP_VARIABLE = "SYSBENCH_STEP_ON"
"""``package.module:Class.function``: each call of it is a step."""
WINDOW_VARIABLE = "SYSBENCH_WINDOW"
"""``100:3`` traces three steps after the hundredth, on rank 0."""
WINDOW_FILE = "window"
"""File in the folder of the marks; each time it is written, that many next steps are traced."""
LOADER = "enumerate(DataLoader)#"
"""Begin of the name under which torch profiles a loader's ``__next__``."""
MAX_OUTPUTS = 8


def start_recorder(folder: str) -> None:
    """Wait for the import of torch in this process; a process without it is left alone."""
    recorder = Recorder(folder)
    _after_import("torch", recorder.install)
    module, _, function = os.environ.get(STEP_VARIABLE, "").partition(":")
    if module and function:
        _after_import(module, lambda: recorder.count_calls(module, function))


def _after_import(name: str, work: Any) -> None:
    if name in sys.modules:
        work()
    else:
        sys.meta_path.insert(0, _Finder(name, work))


def _beside(name: str) -> Any:
    """Load the module of this name in this folder, which is not on the user's import path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location("_sysbench_" + name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Finder:
    """Lets the import of a module happen as usual, then does its work."""

    def __init__(self, name: str, work: Any) -> None:
        self.name = name
        self.work = work

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            self.work()

        loader.exec_module = exec_module
        return spec


def _harmless(hook: Any) -> Any:
    """Keep an error of this file out of the user's code: it ends the recording, and is a mark."""

    @functools.wraps(hook)
    def guarded(self: Any, *values: Any) -> Any:
        if self.broken:
            return None
        try:
            return hook(self, *values)
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")
            return None

    return guarded


class Recorder:
    """The marks of this process.

    A mark is ``[kind, start, end, device_ns, *facts]``; ``device_ns`` is the time between two CUDA
    events, read once they have passed and without a synchronisation, null on the CPU. Kinds are:

    - ``i`` input; facts: the line that asked for it, the loader's workers
    - ``f`` forward; facts: whether gradients are on, tokens, samples, whether the module trains
    - ``b`` backward
    - ``o`` optimizer; facts: its number, whether it ran inside of a backward, allocated, peak and
      reserved bytes
    - ``u`` update of a gradient scaler
    - ``s`` the function that the user named; facts: the same bytes
    - ``w`` steps under a profiler, from its start to the end of its export; facts: their number,
      the name of the trace

    ``["process", {...}]`` comes first.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._pre_hook: Any = None
        self._forward_hook: Any = None
        self._torch: Any = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin a file of its own: a child made by fork does, too."""
        self.broken = False
        self._file = -1
        self._waiting: Any = collections.deque()
        self._flushed_ns = 0
        self._main = threading.get_ident()
        self._numbers: dict[int, int] = {}
        self._input_began: Any = None
        self._forward_began: Any = None
        self._backward_began: Any = None
        self._optimizer_began: Any = None
        self._on_cuda = self._is_in_call = False
        self._steps = 0
        self._profiler: Any = None
        self._window_began = self._window_steps = self._window_left = 0
        first, _, count = os.environ.get(WINDOW_VARIABLE, "").partition(":")
        self._planned = (_number(first) or 0, _number(count) or 0)
        self._asked_ns = self._written_ns(0)

    def install(self) -> None:
        import torch  # lazy: this process has just imported it

        self._torch = torch
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_pre_hook(self._before_optimizer)
        optimizer.register_optimizer_step_post_hook(self._after_optimizer)
        self._watch_loaders()
        self._watch_scalers()
        self._watch_compiled()
        self._wait_for_forward()
        atexit.register(self._at_exit)
        self._start_host_recorder()

    @_harmless
    def _start_host_recorder(self) -> None:
        _beside("host_recorder").HostRecorder(self).start()

    def _watch_loaders(self) -> None:
        function: Any = self._torch.autograd.profiler.record_function
        enter, leave = function.__enter__, function.__exit__

        def __enter__(range_: Any) -> Any:
            if range_.name.startswith(LOADER):
                self._input_begins(range_, sys._getframe(1))
            return enter(range_)

        def __exit__(range_: Any, *exception: Any) -> Any:
            if self._input_began is not None and self._input_began[0] is range_:
                self._input_ended()
            return leave(range_, *exception)

        function.__enter__, function.__exit__ = __enter__, __exit__

    @_harmless
    def _input_begins(self, range_: Any, frame: Any) -> None:
        """A loader is asked for a batch; ``frame`` is that of its iterator's ``__next__``."""
        if threading.get_ident() == self._main:
            self._backward_began = None  # an exception may have ended the last one
            self._input_began = (range_, *_loader(frame), time.monotonic_ns())

    @_harmless
    def _input_ended(self) -> None:
        _, place, workers, began = self._input_began
        self._input_began = None
        self._add("i", began, time.monotonic_ns(), None, place, workers)

    def _watch_scalers(self) -> None:
        scaler: Any = self._torch.amp.GradScaler
        update = scaler.update

        @functools.wraps(update)
        def update_and_mark(scaler_: Any, *values: Any, **named: Any) -> Any:
            now = time.monotonic_ns()
            self._add("u", now, now, None)
            return update(scaler_, *values, **named)

        scaler.update = update_and_mark

    def count_calls(self, module: str, function: str) -> None:
        """Let each call of the function that the user named be a step."""
        *owners, name = function.split(".")
        owner: Any = sys.modules[module]
        for one in owners:
            owner = getattr(owner, one)
        kind: Any = type(inspect.getattr_static(owner, name))
        call = getattr(owner, name)

        @functools.wraps(call)
        def call_and_mark(*values: Any, **named: Any) -> Any:
            if threading.get_ident() != self._main or self._is_in_call or self._torch is None:
                return call(*values, **named)
            self._is_in_call = True
            began, first = time.monotonic_ns(), self._event()
            try:
                return call(*values, **named)
            finally:
                self._is_in_call = False
                self._end_call(began, first)

        # A class method is bound already.
        is_bound = owners and kind in (staticmethod, classmethod)
        setattr(owner, name, staticmethod(call_and_mark) if is_bound else call_and_mark)

    @_harmless
    def _end_call(self, began: int, first: Any) -> None:
        now, event = time.monotonic_ns(), self._event()
        self._add("s", began, now, (first, event), *self._memory())
        self._count_step()

    def _watch_compiled(self) -> None:
        """Watch modules that are compiled in place: they run without torch's global hooks.

        Their compiled call is in no copy and no pickle of them.
        """
        recorder: Any = self
        module: Any = self._torch.nn.Module
        compile_in_place = module.compile

        @functools.wraps(compile_in_place)
        def compile_and_watch(module_: Any, *values: Any, **named: Any) -> None:
            compile_in_place(module_, *values, **named)
            run: Any = module_._compiled_call_impl

            def run_and_mark(*inputs: Any, **more: Any) -> Any:
                is_outermost = recorder._begin_forward()
                output = None
                try:
                    output = run(*inputs, **more)
                finally:
                    if is_outermost:
                        tensors = (*inputs, *more.values())
                        recorder._end_forward(tensors, output, module_.training)
                return output

            module_._compiled_call_impl = run_and_mark

        module.compile = compile_and_watch

    def _wait_for_forward(self) -> None:
        register = self._torch.nn.modules.module.register_module_forward_pre_hook
        self._pre_hook = register(self._before_forward)

    def _before_forward(self, module: Any, values: Any) -> None:
        if self._begin_forward():
            self._forward_hook = module.register_forward_hook(
                self._after_forward, with_kwargs=True, always_call=True
            )

    def _after_forward(self, module: Any, values: Any, named: Any, output: Any) -> None:
        self._forward_hook.remove()
        self._end_forward((*values, *named.values()), output, module.training)

    @_harmless
    def _begin_forward(self) -> Any:
        """Whether an outermost module begins. Those inside of it then run without any hook."""
        if self._torch.compiler.is_compiling():
            return False
        if threading.get_ident() != self._main or self._backward_began is not None:
            return False  # another thread, or activations that are computed again
        if self._forward_began is not None:
            return False  # compiled in place, inside of another module
        self._pre_hook.remove()
        event = self._event()
        self._forward_began = (time.monotonic_ns(), event)
        return True

    @_harmless
    def _end_forward(self, values: Any, output: Any, is_training: bool) -> None:
        began, first = self._forward_began
        self._forward_began = None
        self._wait_for_forward()
        now, event = time.monotonic_ns(), self._event()
        has_gradients = self._torch.is_grad_enabled()
        tokens, samples = _amount(_tensors(values))
        self._add("f", began, now, (first, event), has_gradients, tokens, samples, is_training)
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._before_backward)

    @_harmless
    def _before_backward(self, gradients: Any) -> None:
        if self._backward_began is None:
            self._backward_began = (time.monotonic_ns(), self._event())
            engine: Any = self._torch.autograd.Variable._execution_engine
            engine.queue_callback(self._after_backward)

    @_harmless
    def _after_backward(self) -> None:
        if self._backward_began is not None:
            began, first = self._backward_began
            self._backward_began = None
            self._add("b", began, time.monotonic_ns(), (first, self._event()))

    @_harmless
    def _before_optimizer(self, optimizer: Any, values: Any, named: Any) -> None:
        self._optimizer_began = (time.monotonic_ns(), self._event())

    @_harmless
    def _after_optimizer(self, optimizer: Any, values: Any, named: Any) -> None:
        if self._optimizer_began is None:
            return
        began, first = self._optimizer_began
        self._optimizer_began = None
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        inside = self._backward_began is not None
        now, event = time.monotonic_ns(), self._event()
        self._add("o", began, now, (first, event), number, inside, *self._memory())
        if number == 0 and not inside and not self._is_in_call:
            self._count_step()

    def _count_step(self) -> None:
        self._write_passed()
        self._steps += 1
        if self._profiler is not None:
            self._window_left -= 1
            self._step_range.__exit__(None, None, None)
            if self._window_left:
                self._mark_step()
            else:
                self._close_window()
        elif self._planned[1] and self._steps == self._planned[0]:
            self._open_window(self._planned[1])
        elif (written_ns := self._written_ns(self._asked_ns)) != self._asked_ns:
            self._asked_ns = written_ns
            with open(os.path.join(self.folder, WINDOW_FILE)) as file:
                count = _number(file.read(9).strip())
            if count:
                self._open_window(count)

    def _written_ns(self, unknown: int) -> int:
        try:
            return os.stat(os.path.join(self.folder, WINDOW_FILE)).st_mtime_ns
        except OSError:
            return unknown

    def _open_window(self, count: int) -> None:
        if (_number(os.environ.get("RANK")) or 0) != 0:
            return
        self._window_began = time.monotonic_ns()
        self._window_steps = self._window_left = count
        profiler: Any = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        cuda: Any = self._torch.cuda
        if cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        # With stacks the trace has the classes of the modules.
        self._profiler = profiler.profile(
            activities=activities, record_shapes=True, with_stack=True
        )
        self._profiler.start()
        self._mark_step()

    def _mark_step(self) -> None:
        """Begin a step in the trace, under the name that torch's profiler gives to its own."""
        number = self._window_steps - self._window_left
        profiler: Any = importlib.import_module("torch.profiler")
        self._step_range = profiler.record_function(f"ProfilerStep#{number}")
        self._step_range.__enter__()

    def _close_window(self) -> None:
        window, self._profiler = self._profiler, None
        window.stop()
        name = f"window-{self._steps}-{os.getpid()}.json"
        path = os.path.join(self.folder, name)
        window.export_chrome_trace(path + ".part")
        os.replace(path + ".part", path)
        count, began = self._window_steps, self._window_began
        self._add("w", began, time.monotonic_ns(), None, count, name)
        self._write(only_passed=True)

    @_harmless
    def _event(self) -> Any:
        """An event on the current stream; None without CUDA and while a graph is captured."""
        cuda = self._torch.cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        self._on_cuda = True
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _memory(self) -> tuple[Any, Any, Any]:
        if not self._on_cuda:
            return None, None, None
        facts = self._torch.cuda.memory.memory_stats_as_nested_dict()
        held, reserved = facts["allocated_bytes"]["all"], facts["reserved_bytes"]["all"]
        return held["current"], held["peak"], reserved["current"]

    def _add(self, kind: str, began: int, ended: int, events: Any, *facts: Any) -> None:
        self._waiting.append(([kind, began, ended, None, *facts], events))

    def _write_passed(self) -> None:
        """Write the marks whose events have passed, at most once in `FLUSH_NS`."""
        now = time.monotonic_ns()
        if now - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = now
            self._write(only_passed=True)

    def _write(self, *, only_passed: bool) -> None:
        lines = []
        while self._waiting:
            mark, events = self._waiting[0]
            if events is not None and None not in events:
                try:
                    if events[1].query():
                        mark[3] = round(1e6 * events[0].elapsed_time(events[1]))
                    elif only_passed:
                        break
                except RuntimeError:  # after a fault of the device its times stay unknown
                    pass
            self._waiting.popleft()
            lines.append(json.dumps(mark, separators=(",", ":")))
        if lines:
            data = "".join(line + "\n" for line in lines).encode()
            try:
                os.write(self._open(), data)
            except OSError:  # a full disk, a deleted folder: the job goes on without marks
                self._file = -1

    def _open(self) -> int:
        if self._file < 0:
            name = f"{socket.gethostname()}-{os.getpid()}.jsonl"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(os.path.join(self.folder, name), flags, 0o600)
            os.write(self._file, (json.dumps(["process", self._facts()]) + "\n").encode())
        return self._file

    def _facts(self) -> dict[str, Any]:
        torch, environ = self._torch, os.environ
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "rank": _number(environ.get("RANK")),
            "world_size": _number(environ.get("WORLD_SIZE")),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "program": sys.argv[0] if sys.argv else "",
            "epoch_ns": time.time_ns() - time.monotonic_ns(),
            "device": "cpu",
        }
        if torch.cuda.is_initialized():
            index = torch.cuda.current_device()
            facts["device"] = f"cuda:{index}"
            facts["device_name"] = torch.cuda.get_device_name(index)
        return facts

    def give_up(self, why: str) -> None:
        """Record nothing more, and take the hooks off torch's and the user's modules."""
        self.broken = True
        for hook in (self._pre_hook, self._forward_hook):
            if hook is not None:
                hook.remove()
        self._waiting.append((["error", why], None))
        self._write(only_passed=False)

    def _at_exit(self) -> None:
        self._write(only_passed=False)


def _loader(frame: Any) -> tuple[str, Any]:
    """The line that iterates over a loader, and its number of workers if it has one."""
    workers = getattr(frame.f_locals.get("self"), "_num_workers", None)
    caller = frame.f_back
    place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}" if caller else ""
    return place, workers


def _number(text: Any) -> Any:
    return int(text) if text is not None and text.isdecimal() else None


def _tensors(value: Any) -> list[Any]:
    """The first tensors of an argument or output: itself, or in a sequence or mapping."""
    found: list[Any] = []
    queue: Any = collections.deque([value])
    while queue and len(found) < MAX_OUTPUTS:
        one = queue.popleft()
        if hasattr(one, "grad_fn"):
            found.append(one)
        elif isinstance(one, dict):
            queue.extend(list(one.values())[:MAX_OUTPUTS])
        elif isinstance(one, (tuple, list)):
            queue.extend(one[:MAX_OUTPUTS])
        elif hasattr(one, "__dataclass_fields__"):
            queue.extend(list(vars(one).values())[:MAX_OUTPUTS])
    return found


def _amount(tensors: list[Any]) -> tuple[Any, Any]:
    """Tokens, of integers in two dimensions, and samples of the first input with a dimension."""
    for tensor in tensors:
        shape = tuple(tensor.shape)
        if shape:
            is_tokens = len(shape) == 2 and not tensor.is_floating_point()
            return (shape[0] * shape[1] if is_tokens else None), shape[0]
    return None, None
