"""The transformer's step, and the choice of a spec's workload."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...spec.spec import RunSpec
from ..compile.apply import compiled
from .attention import AttentionWorkload
from .base import EnterPhase as EnterPhase
from .base import StepError as StepError
from .base import SteppedWorkload, optimizer_over, weight_dtype
from .models.transformer import Transformer
from .own import OwnWorkload


def make_workload(spec: RunSpec) -> SteppedWorkload:
    """The workload of the spec, on one device.

    Raises:
        ValueError: The spec's workload has no steps.
    """
    if spec.is_own:
        return OwnWorkload(spec)
    if spec.workload == "attention":
        return AttentionWorkload(spec)
    if spec.workload == "transformer":
        return Workload(spec)
    raise ValueError(f"workload = {spec.workload} has no steps for one device")


def phases_of(spec: RunSpec) -> tuple[str, ...]:
    """The phases of one step, in order."""
    if not spec.has_backward:
        return ("forward",)
    if spec.step == "forward+backward":
        return ("forward", "loss", "backward", "zero-grad")
    clip = ("clip",) if spec.clip else ()
    return ("forward", "loss", "backward", *clip, "optimizer", "zero-grad")


class Workload(SteppedWorkload):
    """The transformer with random weights, on random tokens."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.phases = phases_of(spec)
        with self.device:
            kernel = spec.attention_row.kernel
            model = Transformer(spec.dimensions, spec.context, kernel, checkpoint=spec.checkpoint)
            shape = (spec.batch, spec.context)
            self.tokens = torch.randint(spec.vocab, shape)
            self.targets = torch.randint(spec.vocab, shape)
        model.to(weight_dtype(spec))
        self.model = compiled(spec, model)
        self.optimizer = make_optimizer(spec, model) if spec.step == "train" else None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.tokens, self.targets)

    def _step(self, enter: EnterPhase) -> None:
        spec = self.spec
        self.loss = None
        with ExitStack() as stack:
            if spec.step == "inference":
                stack.enter_context(torch.inference_mode())
            with self._casting():
                enter("forward")
                logits = self.model(self.tokens)
                if spec.has_backward:
                    enter("loss")
                    loss = F.cross_entropy(logits.flatten(0, 1), self.targets.flatten())
            # The graph has what it needs of the logits; the name would keep all of them.
            del logits
            if spec.has_backward:
                enter("backward")
                torch.autograd.backward(loss)
                self.loss = loss.detach()
                del loss
                self._update(enter)
        enter("")


def make_optimizer(spec: RunSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The spec's optimizer over all parameters, with its usual settings."""
    return optimizer_over(spec, list(model.parameters()))


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
