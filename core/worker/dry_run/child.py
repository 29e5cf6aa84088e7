"""Exact predictions in a separate process: steps on meta tensors.

Run as ``python -P -m sysbench.core.worker.dry_run.child PID``.

Reads questions from standard input, a line of JSON each, and answers each with a line; ends with
its input, or with the process PID that started it.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback

import msgspec

from sysbench.core.errors import ModelError
from sysbench.core.machine.children import take_standard_input
from sysbench.core.machine.host_sampler import die_with_parent
from sysbench.core.predict.dry_run_client import DryRunAnswer, ExactPrediction, Question


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
        answer = msgspec.json.encode(_answer(line, import_seconds)) + b"\n"
        while answer:
            answer = answer[answers.write(answer) :]
        gc.collect()
    return 0


def _answer(line: bytes, import_seconds: float) -> DryRunAnswer:
    from sysbench.core.worker.failures import (  # lazy: `main` times torch
        library_place,
        message_of,
        users_place,
    )

    place = ""
    try:
        question = msgspec.json.decode(line, type=Question)
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
        words = f"{type(cause).__name__}: {message_of(cause)}".split()
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
