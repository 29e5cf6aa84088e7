"""What a prediction costs: the closed form, and exact mode in its process, by size of model.

The closed form is the fastest of several calls. Exact mode is asked cold: each size in a process
of its own; beside its seconds are those for importing torch and its fake tensors, and the wall
time of everything, the process included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sysbench.core.estimate.closed_form import predict
from sysbench.core.estimate.exact import Estimator
from sysbench.core.spec import RunSpec

MODELS = ("cs336-2025/small", "cs336-2025/2.7B", "cs336-2026/10B")
ROUNDS = 20


def _specs() -> Iterator[RunSpec]:
    for model in MODELS:
        for precision, attention in (("fp32", "naive"), ("bf16", "sdpa")):
            yield RunSpec(
                model=model,
                context=512,
                precision=precision,  # type: ignore[arg-type]
                attention=attention,  # type: ignore[arg-type]
                device="cuda:0",
            )


def _closed_ms(spec: RunSpec) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        predict(spec)
        times.append(1e3 * (time.perf_counter() - began))
    return min(times)


def main() -> None:
    print("train, batch 4, context 512       closed ms  exact s  import s  wall s  peaks differ")
    for spec in _specs():
        closed_ms = _closed_ms(spec)
        began = time.perf_counter()
        with Estimator() as estimator:
            exact = estimator.predict(spec)
        wall = time.perf_counter() - began
        differ = predict(spec).peak_bytes / exact.peak_bytes - 1
        print(
            f"{spec.model:17} {spec.precision:5} {spec.attention:9} {closed_ms:9.2f} "
            f"{exact.seconds:8.2f} {exact.import_seconds:9.2f} {wall:7.2f} {differ:+13.4%}"
        )


if __name__ == "__main__":
    main()
