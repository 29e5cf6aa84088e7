"""How well the memory ledger closes and was predicted: every step kind, precision, attention.

Of tiny and of a model of 30 million parameters on the CPU. ``alive`` is the ledger over an
independent count of what lives, ``predicted`` the closed form over the measured peak, both
without library workspace; ``library`` is by how much that raises the peak here.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, get_args

import torch

from sysbench.core.spec.choices import AttentionName, PrecisionName
from sysbench.core.spec.spec import RunSpec, StepKind

CASES = Path(__file__).parents[1] / "core" / "worker" / "memory" / "memory_cases.py"
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"model": "tiny", "context": 64},
    "30M": {
        **{"vocab": 4096, "d_model": 512, "d_ff": 2048, "layers": 6, "heads": 8},
        "context": 32,
    },
}
PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "bf16", "fp16", "bf16-pure")
ATTENTIONS: tuple[AttentionName, ...] = ("naive", "sdpa", "sdpa-math")


def main() -> None:
    torch.set_num_threads(1)
    result_of = runpy.run_path(str(CASES))["result_of"]
    print(
        f"{'model':6}{'step':18}{'precision':11}{'attention':12}{'alive':>10}{'predicted':>11}{'library':>10}"
    )
    for size, dimensions in SIZES.items():
        worst = [0.0, 0.0]
        for step in get_args(StepKind):
            for precision in PRECISIONS:
                for attention in ATTENTIONS:
                    spec = RunSpec(
                        **dimensions,
                        batch=2,
                        device="cpu",
                        step=step,
                        precision=precision,
                        attention=attention,
                    )
                    result = result_of(spec)
                    peak = result.memory.tensor_peak_bytes
                    alive = peak / result.live[0] - 1
                    predicted = result.memory.predicted_peak_bytes / peak - 1
                    library = result.memory.library_workspace_bytes / peak
                    worst = [max(worst[0], abs(alive)), max(worst[1], abs(predicted))]
                    print(
                        f"{size:6}{step:18}{precision:11}{attention:12}"
                        f"{alive:+10.4%}{predicted:+11.3%}{library:+10.3%}"
                    )
        print(f"{size}: worst {worst[0]:.4%} of what is alive, {worst[1]:.3%} of the prediction")


if __name__ == "__main__":
    main()
