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
from sysbench.core.machine.processes import die_with_parent
from sysbench.core.predict.allocator_settings import parse_allocator_settings
from sysbench.core.predict.closed_form import ROWS, predict
from sysbench.core.predict.dry_run_client import (
    PLAIN,
    Amounts,
    DryRun,
    DryRunAnswer,
    ExactPrediction,
    Moment,
    PhasePrediction,
    ProductCount,
    Question,
    TrainingVariant,
)
from sysbench.core.predict.requests import replay_requests
from sysbench.core.predict.sizes import workspace_bytes
from sysbench.core.record.record import LedgerRow
from sysbench.core.spec.spec import RunSpec


def exact_prediction(
    spec: RunSpec, capability: str | None = None, variant: TrainingVariant = PLAIN
) -> ExactPrediction:
    """Run the step on meta tensors and sum it; extend shallow dry runs of a deep model.

    Args:
        capability: See `closed_form.predict`.
    """
    from sysbench.core.worker.dry_run.depth import dry_run_at_depth  # lazy: imports torch

    run, how = dry_run_at_depth(spec, capability, variant)
    closed = None if spec.is_own else predict(spec)
    requests = run.trace.requests() if spec.on_cuda and run.trace is not None else None
    if variant.shards > 1:  # its transfers use separate streams, which the dry run does not model
        requests = None
    phases = [
        _phase(spec, run, name) for name in dict.fromkeys(moment.phase for moment in run.moments)
    ]
    held = None
    if requests is not None:
        held = replay_requests(
            requests, workspace_bytes(capability), parse_allocator_settings(os.environ)
        )
    peak = max(run.moments, key=lambda moment: sum(moment.requested))
    flops = {phase.phase: phase.flops for phase in phases}
    forward = flops.get("forward", 0)
    return ExactPrediction(
        parameters=closed.parameters if closed else run.parameters,
        parameter_bytes=closed.parameter_bytes if closed else run.parameter_bytes,
        forward_flops=forward,
        causal_forward_flops=closed.causal_forward_flops if closed else forward,
        backward_flops=flops.get("backward", 0),
        step_flops=sum(flops.values()),
        saved_activation_bytes=run.saved_bytes,
        ledger=_ledger(peak.requested),
        block_ledger=_ledger(peak.rounded) if spec.on_cuda else None,
        peak_bytes=sum(peak.requested),
        peak_phase=peak.phase,
        peak_place=_place(spec, peak),
        phases=phases,
        requests=requests,
        held=held,
        trained_parameters=run.trained_parameters,
        method=f"exact: the step on meta tensors{how}",
        formulas={"parameters": closed.formulas["parameters"]} if closed else {},
    )


def _phase(spec: RunSpec, run: DryRun, name: str) -> PhasePrediction:
    moments = [moment for moment in run.moments if moment.phase == name]
    peak = max(moments, key=lambda moment: sum(moment.requested))
    products = [
        ProductCount(dtype=product.dtype, flops=product.flops, bytes=product.bytes, count=count)
        for (phase, product), count in run.products.items()
        if phase == name
    ]
    return PhasePrediction(
        phase=name,
        peak_bytes=sum(peak.requested),
        block_bytes=max(sum(moment.rounded) for moment in moments) if spec.on_cuda else None,
        place=_place(spec, peak),
        ledger=_ledger(peak.requested),
        flops=sum(product.flops * product.count for product in products),
        products=products,
        moved_bytes=run.moved_bytes[name],
    )


def _ledger(amounts: Amounts) -> list[LedgerRow]:
    return [LedgerRow(name, count) for name, count in zip(ROWS, amounts, strict=True) if count]


def _place(spec: RunSpec, moment: Moment) -> str:
    if moment.block:
        return f"block {moment.block}"
    return moment.place or (spec.optimizer if moment.phase == "optimizer" else moment.phase)


def main() -> int:
    # Standard output is for answers; redirect output of torch to standard error.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    # Importing makes a million objects, none of them garbage. Within a step a collection would
    # free storages at a moment at which a real step frees none.
    gc.disable()
    began = time.perf_counter()
    import torch  # lazy: timed here

    from sysbench.core.worker.dry_run import depth  # noqa: F401

    import_seconds = time.perf_counter() - began
    die_with_parent(int(sys.argv[1]))
    torch.set_num_threads(1)
    gc.freeze()
    for line in sys.stdin.buffer:
        answer = msgspec.json.encode(_answer(line, import_seconds)) + b"\n"
        while answer:
            answer = answer[answers.write(answer) :]
        gc.collect()
    return 0


def _import_model(spec: RunSpec) -> None:
    """Import what the model needs and exempt it from garbage collection."""
    from sysbench.core.worker.workloads.model_workload import (
        import_own_model,  # `main` times the import of torch
    )

    import_own_model(spec)
    gc.freeze()


def _answer(line: bytes, import_seconds: float) -> DryRunAnswer:
    place = ""
    try:
        question = msgspec.json.decode(line, type=Question)
        began = time.perf_counter()
        try:
            if question.spec.is_own:
                _import_model(question.spec)
            prediction = exact_prediction(question.spec, question.capability, question.variant)
        except Exception as error:
            from sysbench.core.worker.failures import users_place  # lazy: torch is timed

            users = users_place(error, question.spec)
            place = users and f"{users}: "
            raise
    except Exception as error:
        traceback.print_exc()
        cause = error if isinstance(error, ModelError) else error.__cause__ or error
        return DryRunAnswer(error=place + " ".join(f"{type(cause).__name__}: {cause}".split()))
    return DryRunAnswer(
        prediction=msgspec.structs.replace(
            prediction, seconds=time.perf_counter() - began, import_seconds=import_seconds
        )
    )


if __name__ == "__main__":
    sys.exit(main())
