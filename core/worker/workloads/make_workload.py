"""The choice of a spec's workload, and of the precision of its products."""

from __future__ import annotations

import torch

from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.attention_workload import AttentionWorkload
from sysbench.core.worker.workloads.model_workload import Workload as Workload
from sysbench.core.worker.workloads.stepped_workload import EnterPhase as EnterPhase
from sysbench.core.worker.workloads.stepped_workload import StepError as StepError
from sysbench.core.worker.workloads.stepped_workload import SteppedWorkload
from sysbench.core.worker.workloads.stepped_workload import phases_of as phases_of


def make_workload(spec: RunSpec) -> SteppedWorkload:
    """The workload of the spec, on one device.

    Raises:
        ValueError: The spec's workload has no steps.
    """
    if spec.workload == "attention" and not spec.is_own:
        return AttentionWorkload(spec)
    if spec.workload == "transformer" or spec.is_own:
        return Workload(spec)
    raise ValueError(f"workload = {spec.workload} has no steps for one device")


def set_precision(spec: RunSpec) -> dict[str, object]:
    """Set how float32 matrix products may round, and read back what is in force."""
    tf32 = spec.precision_row.tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
    }
