"""The hooks and patches of torch by which `step_recorder` sees a process train.

Like that file, this one runs inside of the user's process, with the standard library only, in the
syntax of Python 3.8. Modules and optimizers have hooks. Where torch has none, its function is
replaced by one that calls it: ``torch.autograd.backward`` and ``grad``, ``__iter__`` and
``__next__`` of loaders, the update of a gradient scaler, compiling in place, ``Work.wait`` of
``torch.distributed``, the making of `DistributedDataParallel`, and the start of profilers.
Exceptions lose the line of the replacement, so that tracebacks are those of torch. Private members
of torch are used here alone, but for what `memory_holders` reads of graphs; a test fails when one
is gone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import weakref
from typing import Any

LOADER_MODULES = (
    "torch.utils.data.dataloader",
    "torchdata.stateful_dataloader.stateful_dataloader",
)


def call_after_gradients(torch: Any, work: Any) -> None:
    """Let torch call this once the backward that runs has computed all gradients.

    What was queued later runs after it: `DistributedDataParallel` then waits for its collectives.
    """
    torch.autograd.Variable._execution_engine.queue_callback(work)


def is_profiling(torch: Any) -> bool:
    """Whether a profiler of torch runs: there can be one only."""
    return bool(torch.autograd._profiler_enabled())


class ModuleHook:
    """A hook of torch that goes on and off again without being registered each time."""

    def __init__(self, handle: Any) -> None:
        self._number = handle.id
        dictionaries = [ref() for ref in (handle.hooks_dict_ref, *handle.extra_dict_ref)]
        self._values = [(one, one[self._number]) for one in dictionaries if self._number in one]

    def put_on(self) -> None:
        for dictionary, value in self._values:
            dictionary[self._number] = value

    def take_off(self) -> None:
        for dictionary, _ in self._values:
            dictionary.pop(self._number, None)


class TorchPatches:
    """Calls a recorder when a part of a step begins and when it ends."""

    def __init__(self, recorder: Any, torch: Any) -> None:
        self._recorder = recorder
        self._torch = torch
        self._is_compiling = torch.compiler.is_compiling
        self._undo: list[Any] = []
        self._workers: Any = weakref.WeakKeyDictionary()
        self._module_hooks: Any = weakref.WeakKeyDictionary()
        self._module_hook: Any = None

    def install(self, after_import: Any) -> None:
        recorder, torch = self._recorder, self._torch
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        for register, hook in (
            (optimizer.register_optimizer_step_pre_hook, recorder.begin_optimizer),
            (optimizer.register_optimizer_step_post_hook, recorder.end_optimizer),
        ):
            self._undo.append(register(hook).remove)
        register = torch.nn.modules.module.register_module_forward_pre_hook
        self.outermost_hook = ModuleHook(register(self._before_forward))
        self._undo.append(self.outermost_hook.take_off)
        for name in LOADER_MODULES:
            after_import(name, functools.partial(self._watch_loaders, name))
        for name in ("backward", "grad"):
            self._surround(torch.autograd, name, self._before_backward, self._after_backward)
        self._watch_scalers()
        self._watch_compiled()
        if torch.distributed.is_available():
            self._watch_collectives()
        after_import("torch.profiler.profiler", self._watch_profilers)

    def around_profilers(self, begin: Any, end: Any) -> bool:
        """Call ``begin`` before a profiler starts and ``end`` after it has stopped.

        Returns False, and does nothing, in a torch without the functions that all profilers call.
        """
        profiler: Any = self._torch.autograd.profiler
        names = ("_run_on_profiler_start", "_run_on_profiler_stop")
        start, stop = (getattr(profiler, name, None) for name in names)
        if start is None or stop is None:
            return False

        def _run_on_profiler_start() -> None:
            begin()
            start()

        def _run_on_profiler_stop() -> None:
            stop()
            end()

        self._replace(profiler, names[0], _run_on_profiler_start)
        self._replace(profiler, names[1], _run_on_profiler_stop)
        return True

    def watch_parallel(self, keep: Any) -> None:
        """Call ``keep`` with each module that averages gradients of several processes.

        A hook of modules would find it, too, but torch.compile traces such hooks into its graphs.
        """
        parallel: Any = self._torch.nn.parallel.DistributedDataParallel
        make = parallel.__init__

        def __init__(module: Any, *values: Any, **named: Any) -> None:
            try:
                make(module, *values, **named)
            except BaseException as error:
                _leave_out_this_frame(error)
                raise
            keep(module)

        self._replace(parallel, "__init__", __init__)

    def begin_history(self, most: int) -> bool:
        """Let CUDA's allocator keep requests with their lines, unless the user's code does so."""
        torch = self._torch
        is_recorded = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not torch.cuda.is_initialized() or is_recorded is None or is_recorded():
            return False
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=most)
        return True

    def end_history(self) -> Any:
        snapshot = self._torch.cuda.memory._snapshot()
        self._torch.cuda.memory._record_memory_history(None)
        return snapshot

    def free_workspaces(self, device: str) -> Any:
        """Free the workspaces of cuBLAS, which no step needs any more; return their bytes."""
        torch = self._torch
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            return None
        before = torch.cuda.memory_allocated(device)
        clear()
        return before - torch.cuda.memory_allocated(device)

    def is_profiling(self) -> bool:
        return is_profiling(self._torch)

    def uninstall(self) -> None:
        """Take the hooks off torch's and the user's modules."""
        while self._undo:
            self._undo.pop()()
        for hook in self._module_hooks.values():
            hook.take_off()

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        """Let the owner have this function until `uninstall`, unless it has another one by then."""
        before = getattr(owner, name)
        functools.update_wrapper(function, before)
        setattr(owner, name, function)

        def put_back() -> None:
            if vars(owner).get(name) is function:
                setattr(owner, name, before)

        self._undo.append(put_back)

    def _surround(self, owner: Any, name: str, begin: Any, end: Any = None) -> None:
        self._replace(owner, name, surrounded(getattr(owner, name), begin, end))

    def _watch_loaders(self, module: str) -> None:
        """Watch the loaders of a module, and their iterators: classes that have ``__next__``."""
        loader: Any = sys.modules["torch.utils.data.dataloader"].DataLoader
        for one in list(vars(sys.modules[module]).values()):
            if isinstance(one, type) and one.__module__ == module:
                if issubclass(one, loader) and "__iter__" in vars(one):
                    self._watch_loader(one)
                elif "__next__" in vars(one):
                    self._watch_iterator(one)

    def _watch_loader(self, kind: Any) -> None:
        """Learn the number of workers behind each iterator, which does not have it itself."""
        make = kind.__iter__

        def __iter__(loader: Any) -> Any:
            try:
                iterator = make(loader)
            except BaseException as error:
                _leave_out_this_frame(error)
                raise
            with contextlib.suppress(TypeError):  # no weak reference: its workers are unknown
                self._workers[iterator] = loader.num_workers
            return iterator

        self._replace(kind, "__iter__", __iter__)

    def _watch_iterator(self, kind: Any) -> None:
        recorder, advance = self._recorder, kind.__next__

        def __next__(iterator: Any) -> Any:
            is_asked = recorder.begin_input()
            has_batch = True
            try:
                return advance(iterator)
            except BaseException as error:
                has_batch = False
                _leave_out_this_frame(error)
                raise
            finally:
                if is_asked:
                    frame = sys._getframe(1)
                    recorder.end_input(frame, self._workers.get(iterator), has_batch)

        self._replace(kind, "__next__", __next__)

    def _watch_profilers(self) -> None:
        """Let the recorder end its own profiler before the user starts one: torch has one only."""
        for profiler, name in (
            (sys.modules["torch.profiler.profiler"].profile, "start"),
            (self._torch.autograd.profiler.profile, "__enter__"),
        ):
            self._surround(profiler, name, lambda values, _: self._recorder.make_way(values[0]))

    def _watch_scalers(self) -> None:
        scaler: Any = self._torch.amp.GradScaler
        self._surround(scaler, "update", lambda *_: self._recorder.end_scaled_step())

    def _before_forward(self, module: Any, values: Any) -> None:
        if self._is_compiling() or not self._recorder.begin_forward():
            return
        # Those inside of it run without any hook.
        self.outermost_hook.take_off()
        try:
            hook = self._module_hooks.get(module)
            if hook is None:
                handle = module.register_forward_hook(
                    self._after_forward, with_kwargs=True, always_call=True
                )
                hook = self._module_hooks[module] = ModuleHook(handle)
            else:
                hook.put_on()
            self._module_hook = hook
        except Exception as error:
            self._recorder.give_up(repr(error))

    def _after_forward(self, module: Any, values: Any, named: Any, output: Any) -> None:
        self._module_hook.take_off()
        self.outermost_hook.put_on()
        self._recorder.end_forward(module, values, named)

    def _watch_compiled(self) -> None:
        """Watch modules that are compiled in place: they run without torch's global hooks.

        What compiling adds to a module is in no copy and no pickle of it.
        """
        module: Any = self._torch.nn.Module
        compile_in_place = module.compile

        def compile_and_watch(module_: Any, *values: Any, **named: Any) -> None:
            before = dict(vars(module_))
            compile_in_place(module_, *values, **named)
            for name, value in list(vars(module_).items()):
                if callable(value) and before.get(name) is not value:
                    setattr(module_, name, self._watched_call(module_, value))

        self._replace(module, "compile", compile_and_watch)

    def _watched_call(self, module: Any, run: Any) -> Any:
        def begin(*_: Any) -> bool:
            is_outermost = not self._is_compiling() and self._recorder.begin_forward()
            if is_outermost:
                self.outermost_hook.take_off()
            return is_outermost

        def end(inputs: Any, more: Any) -> None:
            self.outermost_hook.put_on()
            self._recorder.end_forward(module, inputs, more)

        return surrounded(run, begin, end)

    def _before_backward(self, values: Any, named: Any) -> bool:
        is_outermost = not self._is_compiling() and self._recorder.begin_backward()
        if is_outermost and self._torch.distributed.is_initialized():
            self._watch_gradients(values or tuple(named.values()))
        return is_outermost

    def _after_backward(self, values: Any, named: Any) -> None:
        self._recorder.end_backward()

    def _watch_gradients(self, values: Any) -> None:
        """Tell the recorder when the gradients of this loss are computed."""
        first = values[0] if values else None
        if isinstance(first, (tuple, list)):
            first = first[0] if first else None
        node = getattr(first, "grad_fn", None)
        if node is not None:
            node.register_prehook(self._before_gradients)

    def _before_gradients(self, gradients: Any) -> None:
        call_after_gradients(self._torch, self._recorder.end_gradients)

    def _watch_collectives(self) -> None:
        self._surround(
            self._torch.distributed.Work,
            "wait",
            lambda *_: not self._is_compiling() and self._recorder.begin_wait(),
            lambda *_: self._recorder.end_wait(),
        )


def surrounded(call: Any, begin: Any, end: Any = None) -> Any:
    """Return the call after ``begin``, and before ``end`` if that returned true.

    Both get a tuple of the values and a dictionary of the named ones.
    """

    def call_and_mark(*values: Any, **named: Any) -> Any:
        has_begun = begin(values, named)
        try:
            return call(*values, **named)
        except BaseException as error:
            _leave_out_this_frame(error)
            raise
        finally:
            if has_begun and end is not None:
                end(values, named)

    return call_and_mark


def count_calls(recorder: Any, module: str, function: str) -> None:
    """Let each call of the function that the user named be a step."""
    *owners, name = function.split(".")
    owner: Any = sys.modules[module]
    for one in owners:
        owner = getattr(owner, one)
    kind: Any = type(inspect.getattr_static(owner, name))
    call = getattr(owner, name)
    call_and_mark = functools.wraps(call)(
        surrounded(call, lambda *_: recorder.begin_call(), lambda *_: recorder.end_call())
    )
    # A class method is bound already.
    is_bound = owners and kind in (staticmethod, classmethod)
    setattr(owner, name, staticmethod(call_and_mark) if is_bound else call_and_mark)


def _leave_out_this_frame(error: BaseException) -> None:
    """Take the caller's line off a traceback; from Python 3.11 a bare ``raise`` adds none."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
