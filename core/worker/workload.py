"""The model, the data and the step that every pass measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..models.transformer import Transformer
from ..spec import RunSpec
from .compiling import compiled

EnterPhase = Callable[[str], None]
"""Told the name of each phase as it begins, and ``""`` when the step is over."""

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SDPA_BACKENDS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
}


def phases_of(spec: RunSpec) -> tuple[str, ...]:
    """The phases of one step, in order."""
    if not spec.has_backward:
        return ("forward",)
    if spec.step == "forward+backward":
        return ("forward", "loss", "backward", "zero-grad")
    clip = ("clip",) if spec.clip else ()
    return ("forward", "loss", "backward", *clip, "optimizer", "zero-grad")


class StepError(Exception):
    """A step did not end; the cause is chained.

    Attributes:
        phase: The phase that was under way.
    """

    def __init__(self, phase: str) -> None:
        super().__init__(f"in the {phase} phase")
        self.phase = phase


class Workload:
    """A model with random weights, random tokens, and how to run one step on them.

    The output of a step is dropped before the next one starts, gradients are set to None
    at the end of each step, and autocast is entered per step, so that its cache of weight
    copies lives no longer than in a real training loop.

    Attributes:
        phases: Names given to ``enter`` during a step, in order.
        loss: Loss of the last step that had one; reading its value synchronises.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.device = torch.device(spec.device)
        self.phases = phases_of(spec)
        torch.manual_seed(spec.seed)
        with self.device:
            model = Transformer(spec.dimensions, spec.context, naive=spec.attention == "naive")
            shape = (spec.batch, spec.context)
            self.tokens = torch.randint(spec.vocab, shape)
            self.targets = torch.randint(spec.vocab, shape)
        if spec.precision == "bf16-pure":
            model.to(torch.bfloat16)
        self.model = compiled(spec, model)
        self.optimizer = make_optimizer(spec, model) if spec.step == "train" else None
        self.loss: Tensor | None = None

    def loss_value(self) -> float | None:
        """The last step's loss; waits for the device. None when steps have no loss."""
        return None if self.loss is None else self.loss.item()

    def step(self, enter: EnterPhase) -> None:
        """Run one step, telling ``enter`` each phase; queues work, never synchronises.

        Raises:
            StepError: From whatever went wrong, with the phase in which it did.
        """
        reached = "start"

        def begin(phase: str) -> None:
            nonlocal reached
            reached = phase
            enter(phase)

        try:
            self._step(begin)
        except Exception as error:
            raise StepError(reached) from error

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
            del logits
            if spec.has_backward:
                enter("backward")
                torch.autograd.backward(loss)
                self.loss = loss.detach()
                del loss
                self._update(enter)
        enter("")

    def _update(self, enter: EnterPhase) -> None:
        if self.optimizer is not None:
            if self.spec.clip:
                enter("clip")
                nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.clip)
            enter("optimizer")
            self.optimizer.step()
        enter("zero-grad")
        for parameter in self.model.parameters():
            parameter.grad = None

    @contextmanager
    def _casting(self) -> Iterator[None]:
        """Autocast and the choice of attention kernel, as the spec says."""
        autocast: AbstractContextManager[object] = nullcontext()
        if self.spec.precision in AUTOCAST_DTYPES:
            dtype = AUTOCAST_DTYPES[self.spec.precision]
            autocast = torch.autocast(self.device.type, dtype)
        kernel: AbstractContextManager[object] = nullcontext()
        if self.spec.attention in SDPA_BACKENDS:
            kernel = sdpa_kernel(SDPA_BACKENDS[self.spec.attention])
        with autocast, kernel:
            yield


def make_optimizer(spec: RunSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The spec's optimizer over all parameters, with its usual settings."""
    parameters = list(model.parameters())
    if spec.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    return torch.optim.AdamW(
        parameters,
        lr=1e-4,
        foreach=spec.optimizer == "adamw-foreach",
        fused=spec.optimizer == "adamw-fused",
    )


def set_precision(spec: RunSpec) -> dict[str, object]:
    """Set how float32 matrix products may round, and read back what is in force."""
    torch.set_float32_matmul_precision("high" if spec.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = spec.precision == "tf32"
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
    }
