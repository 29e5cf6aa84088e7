"""What a prediction costs: the closed form, and exact mode from a cold start, by size of model.

The closed form is the fastest of several calls. Exact mode is the command itself, as from a
shell: the median of several runs, each with the processes that it starts. Of its wall time, the
import of torch and the prediction are shown alone; the rest is the start of two interpreters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from statistics import median
from typing import Any

from sysbench.core.predict.closed_form import predict
from sysbench.core.spec.spec import RunSpec

MODELS = ("cs336-2025/small", "cs336-2025/2.7B", "cs336-2026/10B")
STEPS = ("forward", "train")
KINDS = (("fp32", "naive"), ("bf16", "sdpa"))
CALLS = 20
RUNS = 5


def _settings() -> Iterator[dict[str, str]]:
    for step, (precision, attention), model in product(STEPS, KINDS, MODELS):
        yield {
            "model": model,
            "step": step,
            "precision": precision,
            "attention": attention,
            "context": "512",
            "device": "cuda:0",
        }


def _closed_ms(spec: RunSpec) -> float:
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        predict(spec)
        times.append(1e3 * (time.perf_counter() - began))
    return min(times)


def _exact(settings: dict[str, str]) -> tuple[float, dict[str, Any]]:
    """Wall seconds of the command, and its answer."""
    command = [sys.executable, "-P", "-m", "sysbench.tui.cli", "estimate", "--exact", "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    began = time.perf_counter()
    result = subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began, json.loads(result.stdout)


def main() -> None:
    print("batch 4, context 512                 closed ms  exact s  import s  wall s  peaks differ")
    for settings in _settings():
        spec = RunSpec(**{**settings, "context": 512})  # type: ignore[arg-type]
        runs = [_exact(settings) for _ in range(RUNS)]
        wall = median(wall for wall, _ in runs)
        seconds = median(answer["seconds"] for _, answer in runs)
        imports = median(answer["import_seconds"] for _, answer in runs)
        differ = predict(spec).peak_bytes / runs[0][1]["peak_bytes"] - 1
        print(
            f"{spec.model:17} {spec.step:8} {spec.precision:5} {spec.attention:6} "
            f"{_closed_ms(spec):5.2f} {seconds:8.2f} {imports:9.2f} {wall:7.2f} {differ:+13.4%}"
        )


if __name__ == "__main__":
    main()
