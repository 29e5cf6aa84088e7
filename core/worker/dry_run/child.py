"""Exact predictions in a separate process: steps on meta tensors.

Run as ``python -P -m sysbench.core.worker.dry_run.child PID``.

Reads questions from standard input, a line of JSON each, and answers each with a line; ends with
its input, or with the process PID that started it.
"""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from sysbench.core.errors import ModelError
from sysbench.core.machine.children import take_standard_input
from sysbench.core.machine.host_sampler import die_with_parent
from sysbench.core.predict.dry_run_client import DryRunAnswer, ExactPrediction, Question
from sysbench.core.spec.own_model import source_of
from sysbench.core.spec.spec import RunSpec

REMEDIES = (
    (
        "compiled with CUDA|No CUDA GPUs|NVIDIA driver|CUDA error: (invalid device|no CUDA)|_cuda_",
        "the step is played without a device: leave .cuda() and device='cuda' out, and make new "
        "tensors on the device of the inputs",
    ),
    (
        "meta tensor|meta device|register_meta",
        "the step is played on tensors without data: replace conditions on values and .item(), "
        "for example by torch.where(), or measure with `run`",
    ),
    (
        "process group|env:// rendezvous|default world size",
        "--world makes the process group and the mesh: leave init_process_group() and "
        "init_device_mesh() out of the factory",
    ),
)
"""What to change, by a pattern of torch's message."""


def main() -> int:
    # Standard output is for answers; redirect output of torch to standard error.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    questions = take_standard_input()
    # Importing makes a million objects, none of them garbage. Within a step a collection would
    # free storages at a moment at which a real step frees none.
    gc.disable()
    began = time.perf_counter()
    import torch  # lazy: timed here

    from sysbench.core.worker.dry_run import exact  # noqa: F401  # lazy: timed here

    import_seconds = time.perf_counter() - began
    die_with_parent(int(sys.argv[1]))
    torch.set_num_threads(1)
    gc.freeze()
    for line in questions:
        try:
            question = msgspec.json.decode(line, type=Question)
        except msgspec.DecodeError as error:
            _write(answers, DryRunAnswer(error=str(error)))
            continue
        if question.variant.world.size > 1:
            _import_library(question.spec)
            # torch's tensors of several ranks keep meshes of the first rank that a process plays.
            died = _in_copy(partial(_write_answer, answers, question, import_seconds))
            if died:
                _write(answers, DryRunAnswer(error=died))
        else:
            _write_answer(answers, question, import_seconds)
            gc.collect()
    return 0


def _write_answer(answers: io.FileIO, question: Question, import_seconds: float) -> None:
    _write(answers, _answer(question, import_seconds))


def _write(answers: io.FileIO, answer: DryRunAnswer) -> None:
    line = msgspec.json.encode(answer) + b"\n"
    while line:
        line = line[answers.write(line) :]


def _import_library(spec: RunSpec) -> None:
    """Import transformers' code of a model once for all copies, which report what fails in it."""
    if not spec.is_own or source_of(spec.model).door != "hf" or spec.trust_code:
        return
    from sysbench.core.worker.workloads.model_workload import import_own_model  # lazy: as in `main`

    with suppress(Exception):
        import_own_model(spec)


def _in_copy(run: Callable[[], None]) -> str:
    """Run in a copy of this process; return how the copy died, "" if it did not."""
    from sysbench.core.worker.ranks import pipeline  # noqa: F401  # lazy: one import for all copies

    gc.freeze()
    parent = os.getpid()
    copy = os.fork()
    if not copy:
        try:
            die_with_parent(parent)
            run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with code {code}" if code else ""


def _answer(question: Question, import_seconds: float) -> DryRunAnswer:
    from sysbench.core.worker.failures import (  # lazy: `main` times torch
        library_place,
        message_of,
        users_place,
    )

    place = ""
    try:
        began = time.perf_counter()
        try:
            prediction = _prediction(question)
        except Exception as error:
            users = users_place(error, question.spec) or library_place(error)
            place = users and f"{users}: "
            raise
    except Exception as error:
        traceback.print_exc()
        cause = error if isinstance(error, ModelError) else error.__cause__ or error
        message = message_of(cause)
        remedies = (text for pattern, text in REMEDIES if re.search(pattern, message))
        if remedy := next(remedies, ""):
            message = f"{message.partition('. ')[0].rstrip('.!')}; {remedy}"
        words = f"{type(cause).__name__}: {message}".split()
        text = (place + " ".join(words)).encode(errors="backslashreplace").decode()
        return DryRunAnswer(error=text)
    return DryRunAnswer(
        prediction=msgspec.structs.replace(
            prediction, seconds=time.perf_counter() - began, import_seconds=import_seconds
        )
    )


def _prediction(question: Question) -> ExactPrediction:
    from sysbench.core.worker.dry_run.exact import exact_prediction  # lazy: `main` times torch
    from sysbench.core.worker.workloads.model_workload import import_own_model  # lazy: as above

    if question.spec.is_own:
        import_own_model(question.spec)
        gc.freeze()  # what the model imports lives as long as the process
    return exact_prediction(question.spec, question.capability, question.variant)


if __name__ == "__main__":
    sys.exit(main())
