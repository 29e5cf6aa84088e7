"""Steps of a model: the built-in one, a factory's, or one of a Hugging Face configuration."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.record.environment import FLOAT8, LinearLayers
from sysbench.core.record.events import DeviceDescribed
from sysbench.core.runs.worker_process import Report
from sysbench.core.spec.model_source import libraries_of
from sysbench.core.spec.own_model import source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.compile.apply import compiled
from sysbench.core.worker.failures import ran_out_of_memory
from sysbench.core.worker.workloads.attention import KeyValueCache
from sysbench.core.worker.workloads.factory import (
    SIZES,
    FactoryParts,
    a_kind,
    built_parts,
    guarded,
    import_factory,
    vocabulary_of,
)
from sysbench.core.worker.workloads.huggingface import configured_parts, model_class
from sysbench.core.worker.workloads.low_precision import convert_linears, torchao_version
from sysbench.core.worker.workloads.stepped_workload import (
    EnterPhase,
    MakeOptimizer,
    SteppedWorkload,
    TokenCache,
    autocast_dtype,
    bytes_of,
    optimizer_over,
    phases_of,
    shape_words,
    tensors_in,
    weight_dtype,
)
from sysbench.core.worker.workloads.transformer import Transformer, selective_contexts

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError)
"""Errors with which models refuse inputs of another shape."""

MIN_ALIKE = 2
"""Minimum number of children of one class that count as blocks."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Repeated blocks of the model: children of a list with the same class and parameters.

    Only the outermost; modules without children, such as linear layers, are no blocks.
    """
    blocks: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            blocks += _similar_children(child)
        else:
            blocks += blocks_of(child)
    if isinstance(model, nn.Sequential) and not blocks:
        blocks = _similar_children(model)
    return blocks


def _similar_children(container: nn.Module) -> list[nn.Module]:
    children = list(container.children())
    classes = [type(child) for child in children]
    alike = [
        child
        for child in children
        if classes.count(type(child)) >= MIN_ALIKE
        and next(child.children(), None) is not None
        and next(child.parameters(), None) is not None
    ]
    return alike or [block for child in children for block in blocks_of(child)]


CROSS_ENTROPY = "cross-entropy of the logits with random targets"
OF_OUTPUT = "the loss of the output"
MEAN_SQUARE = "mean square of the outputs"


class Workload(SteppedWorkload):
    """A model with its own inputs, loss, optimizer or step where it has them.

    Attributes:
        targets: Targets of the built-in loss over token ids; None for custom inputs.
        ids: Number of different target ids.
        loss_words: Description of the loss; empty before the first loss.
        linear_layers: Linear layers of a converted model.
        is_selective: Whether recomputed segments keep the results of some operators.
    """

    is_selective = False
    linear_layers: tuple[LinearLayers, ...] = ()

    def __init__(
        self,
        spec: RunSpec,
        device: torch.device | None = None,
        make_optimizer: MakeOptimizer = optimizer_over,
    ) -> None:
        """Build the spec's model on its device, or on another one.

        Raises:
            SpecError: The model does not support a key.
            ModelError: The user's code does not follow the interface.
            Exception: Any error of the user's code.
        """
        super().__init__(spec)
        self.device = device or self.device
        self._make_optimizer = make_optimizer
        self.ids = 0
        with self.device:
            self.parts = self._parts()
            self._check_keys()
            with guarded("batch()"):
                self.batch, self.targets = self._inputs()
        model = self._convert(_place(self.parts.model, spec, self.device))
        self.batch = self._to_device(self.batch)
        self.loss_words = ""
        self.model = self._prepare(model)
        self.cache = self._filled_cache() if spec.has_cache else None
        self.optimizers = self._optimizers() if spec.step == "train" else ()
        self.phases = self._phases()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensors_in((self.batch, self.targets)))

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the model for the record."""
        spec, model = self.spec, self.model
        source, path = source_of(spec.model), Path(spec.model_file)
        parameters = list(model.parameters())
        return {
            "class": f"{type(model).__module__}.{type(model).__qualname__}",
            "parameters": sum(one.numel() for one in parameters),
            "trainable_parameters": sum(one.numel() for one in parameters if one.requires_grad),
            "parameter_bytes": bytes_of(parameters),
            "buffer_bytes": sum(one.nbytes for one in model.buffers()),
            "inputs": [shape_words(one) for one in self.inputs],
            "loss": self.loss_words,
            "source": spec.model_source,
            "libraries": libraries_of(source, path),
            **self.parts.facts,
        }

    def _parts(self) -> FactoryParts:
        return parts_of(self.spec)

    def _convert(self, model: nn.Module) -> nn.Module:
        precision = self.spec.precision_row
        if not precision.recipe:
            return model
        facts = torch.cuda.get_device_properties(self.device)
        precision.check_capability(f"{facts.major}.{facts.minor}", facts.name)
        converted, self.linear_layers = convert_linears(model, precision)
        return converted

    def _prepare(self, model: nn.Module) -> nn.Module:
        if self.spec.checkpoint:
            self._recompute(model)
        return self._compile(model.train(self.spec.keeps_graph))

    def _compile(self, model: nn.Module) -> nn.Module:
        return compiled(self.spec, model)

    def _recompute(self, model: nn.Module) -> None:
        """Have the blocks recomputed, which is outside of `_casting`, as they were in it."""
        own = weakref.proxy(self)  # or the model would hold the workload, which holds the model
        options: dict[str, Any] = {"context_fn": lambda: own._segment_contexts()}
        if self.spec.compiles:  # the compiler sees forward alone, and plans what is recomputed
            options = {}
        if isinstance(model, Transformer):
            model.recompute = partial(model.recompute, **options)
        else:
            options["use_reentrant"] = False
            model.gradient_checkpointing_enable(options)  # type: ignore[operator]

    def _segment_contexts(self) -> tuple[AbstractContextManager[object], ...]:
        """Contexts of the forward of a recomputed segment, and of running it again."""
        if not self.is_selective:
            return nullcontext(), self._casting()
        forward, again = selective_contexts()
        return forward, _in_both(self._casting(), again)

    def _phases(self) -> tuple[str, ...]:
        absent = {"loss"} if self.parts.loss else set[str]()
        if not self.optimizers:
            absent |= {"clip", "optimizer"}
        return tuple(phase for phase in phases_of(self.spec) if phase not in absent)

    def _check_keys(self) -> None:
        """Reject keys that the model does not support.

        Raises:
            SpecError: For the first of them.
        """
        spec, parts = self.spec, self.parts
        if spec.has_cache and parts.cache is None:
            allowed = (
                "inference, or add cache(), which makes an empty cache, and decode(model, token, "
                "cache), which computes tokens after those in it, to what the factory returns"
            )
            raise SpecError("step", spec.step, allowed)
        unused = [key for key in SIZES if getattr(spec, key) and key not in parts.takes]
        if unused:
            zeros = " ".join(f"{key}=0" for key in unused)
            names = "an argument named" if len(unused) == 1 else "arguments named"
            allowed = (
                f"write {zeros}: neither the factory nor its batch() has {names} "
                f"{' and '.join(unused)}"
            )
            if parts.makes_signals:
                allowed = f"write {zeros}: the inputs of this model have no {' and '.join(unused)}"
            raise SpecError(unused[0], getattr(spec, unused[0]), allowed)
        brings = any((parts.optimizer, parts.optimizers, parts.step))
        if spec.step == "train" and brings != (spec.optimizer == "custom"):
            allowed = "custom: the model brings its own" if brings else "a name: it brings none"
            raise SpecError("optimizer", spec.optimizer, allowed)
        if parts.step is not None:
            alone = (
                *(("step", "train"), ("clip", 0.0), ("accumulation", 1)),
                *(("compile", "off"), ("parallel", "none")),
            )
            for key, only in alone:
                if getattr(spec, key) != only:
                    raise SpecError(key, getattr(spec, key), f"{only}: the step is the model's own")

    def _inputs(self) -> tuple[Any, Tensor | None]:
        """The batch, and the targets of the built-in loss."""
        if self.parts.batch is not None:
            return self.parts.batch(), None
        if self.parts.step is not None:
            return (), None
        shape = (self.spec.batch, self.spec.new_tokens)
        self.ids = vocabulary_of(self.parts.model)
        if self.spec.has_cache:
            return torch.randint(self.ids, shape), None
        return torch.randint(self.ids, shape), torch.randint(self.ids, shape)

    @property
    def product_dtype(self) -> torch.dtype:
        """Dtype of keys and values."""
        return autocast_dtype(self.spec) or weight_dtype(self.spec)

    def _filled_cache(self) -> TokenCache:
        assert self.parts.cache is not None
        with self.device, torch.inference_mode(), self._casting():
            return self.parts.cache(self.model, self.product_dtype)

    def _to_device(self, batch: Any) -> Any:
        """Move the batch to the device and cast floats to the dtype of the weights."""
        dtype = weight_dtype(self.spec)

        def move(value: Any) -> Any:
            if not hasattr(value, "to"):
                return value
            moved = value.to(self.device)
            is_plain = isinstance(moved, Tensor) and moved.dtype == torch.float32
            return moved.to(dtype) if is_plain else moved

        return tree_map(move, batch)

    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        parts = self.parts
        if parts.step is not None:
            return ()
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        if parts.optimizers is None and parts.optimizer is None:
            return (self._make_optimizer(self.spec, parameters),)
        door = "optimizer()" if parts.optimizers is None else "optimizers()"
        with guarded(door):
            made = (parts.optimizers or parts.optimizer)(parameters)  # type: ignore[misc]
        made = [made] if parts.optimizers is None else made
        if not isinstance(made, (list, tuple)) or not made:
            raise ModelError(f"{door} returned {a_kind(made)}, not a list of Optimizers")
        for one in made:
            if not isinstance(one, torch.optim.Optimizer):
                raise ModelError(f"{door} returned {a_kind(one)}, not an Optimizer")
        return tuple(made)

    def _step(self, enter: EnterPhase) -> None:
        self.loss = None
        if self.cache is not None:
            with torch.inference_mode():
                self.cache.rewind()
        if self.parts.step is not None:
            self._own_step(self.parts.step, enter)
            return
        with ExitStack() as stack:
            stack.enter_context(guarded("a step"))
            if not self.spec.keeps_graph:
                stack.enter_context(torch.inference_mode())
            for _ in range(self.spec.accumulation):
                self._pass_through(enter)
            if self.spec.has_backward:
                self._update(enter)
        enter("")

    def _pass_through(self, enter: EnterPhase) -> None:
        """Run forward, loss and backward of one micro-batch."""
        count = self.spec.accumulation
        with self._casting():
            enter("forward")
            output = self._forward()
            if self.spec.has_backward:
                loss = self._loss_of(output, enter)
                if count > 1:
                    loss = loss / count
        # The graph keeps what it needs of the output; the name would keep all of it.
        del output
        if self.spec.has_backward:
            enter("backward")
            torch.autograd.backward(loss)
            self.loss = loss.detach() * count if count > 1 else loss.detach()

    def _own_step(self, step: Any, enter: EnterPhase) -> None:
        """Run the user's step inside a phase of our own, so that no time is lost."""

        def enter_named(phase: str) -> None:
            if not isinstance(phase, str) or not phase:
                raise ModelError(f"enter() was called with {phase!r}: the name of a phase")
            enter(phase)

        enter("start")
        with guarded("step()"), self._casting():
            step(enter_named)
        enter("")

    def _forward(self) -> Any:
        try:
            return self._call()
        except REFUSALS as error:
            is_of_meta = self.device.type == "meta" and "meta tensors" in str(error)
            if not self.parts.makes_signals or is_of_meta or ran_out_of_memory(error):
                raise
            made = ", ".join(map(shape_words, self.inputs))
            raise ModelError(
                f"with inputs that were made from its configuration, {made}: "
                f"{type(error).__name__}: {error}; return others from batch() of a factory"
            ) from error

    def _call(self) -> Any:
        batch = self.batch
        if self.cache is not None and self.parts.decode is not None:
            return self.parts.decode(self.model, batch, self.cache)
        if self.parts.loss is not None:
            return self.parts.loss(self.model, batch)
        if isinstance(batch, Mapping):
            return self.model(**batch)
        return self.model(*batch) if isinstance(batch, (tuple, list)) else self.model(batch)

    def _loss_of(self, output: Any, enter: EnterPhase) -> Tensor:
        if self.parts.loss is not None:
            self.loss_words = "the factory's loss()"
            if not isinstance(output, Tensor) or output.numel() != 1:
                raise ModelError("loss() has to return a tensor of one element")
            return output
        enter("loss")
        loss, self.loss_words = loss_of(output, self.targets, self.ids)
        return loss

    def _update(self, enter: EnterPhase) -> None:
        super()._update(enter)
        for tensor in self.inputs:
            tensor.grad = None
        if self.spec.optimizer == "custom":
            for optimizer in self.optimizers:
                optimizer.zero_grad()  # it may also have parameters outside the model


@contextmanager
def _in_both(
    outer: AbstractContextManager[object], inner: AbstractContextManager[object]
) -> Iterator[None]:
    with outer, inner:
        yield


def parts_of(spec: RunSpec, mesh: Any = None) -> FactoryParts:
    """Build the spec's model and its parts on torch's default device; for ``mesh`` see
    `built_parts`."""
    if not spec.is_own:
        size, kernel = spec.dimensions, spec.attention_row.kernel
        model = Transformer(
            size,
            spec.context,
            kernel,
            checkpoint=spec.checkpoint,
            has_mask=spec.step != "decode",
        )
        shape = (spec.batch, size.heads, spec.context, size.head_dimension)
        before = spec.context - spec.new_tokens
        return FactoryParts(
            model=model,
            takes=frozenset(SIZES),
            cache=lambda model, dtype: KeyValueCache(size.layers, shape, dtype, before),
            decode=lambda model, tokens, cache: model(tokens, cache),
        )
    if source_of(spec.model).door != "hf":
        return built_parts(spec, mesh)
    return configured_parts(spec)


def import_own_model(spec: RunSpec) -> None:
    """Import the code of the spec's model before it is built."""
    if source_of(spec.model).door != "hf":
        import_factory(spec)
        return
    model_class(spec)


def report_own_model(workload: object, report: Report) -> None:
    """Report the facts of a user's model, and which layers of any model are converted."""
    if not isinstance(workload, Workload):
        return
    if workload.spec.is_own:
        report(DeviceDescribed(facts={"model": workload.facts}))
    if workload.linear_layers:
        layers = msgspec.to_builtins(workload.linear_layers)
        facts = {"library": torchao_version(), "recipe": workload.spec.precision_row.recipe}
        report(DeviceDescribed(facts={FLOAT8: {**facts, "layers": layers}}))


def _place(model: nn.Module, spec: RunSpec, device: torch.device) -> nn.Module:
    """Move the model to the device in the precision's dtype.

    Raises:
        SpecError: Its weights have another dtype.
    """
    wanted = weight_dtype(spec)
    if wanted == torch.float32:
        others = {one.dtype for one in model.parameters() if one.is_floating_point()} - {wanted}
        if others:
            names = ", ".join(sorted(str(one).removeprefix("torch.") for one in others))
            raise SpecError(
                "precision", spec.precision, f"float32 weights, and the model has {names} ones"
            )
        return model.to(device)
    if spec.is_own and source_of(spec.model).door == "hf":
        return model.to(device)  # its weights are, and transformers keeps rotary tables in float32
    return model.to(device, wanted)


def loss_of(output: Any, targets: Tensor | None, ids: int) -> tuple[Tensor, str]:
    """A loss of the model's output, and its description.

    The output's own ``loss``, else for token ids the cross-entropy of the logits, else the mean
    square of every output with a gradient, which only serves to run the whole backward.

    Args:
        targets: Ids below ``ids`` for each token; None if the inputs are not token ids.
        ids: Number of ids. A model without a head has a narrower output.

    Raises:
        ModelError: No output has a gradient.
    """
    own = _entry(output, "loss")
    if isinstance(own, Tensor) and own.numel() == 1:
        return own, OF_OUTPUT
    tensors = [one for one in tensors_in(output) if one.requires_grad]
    if not tensors:
        raise ModelError("no tensor of the output has a gradient, so there is no backward pass")
    logits = _entry(output, "logits")
    first = logits if isinstance(logits, Tensor) else tensors[0]
    is_of_tokens = targets is not None and first.dim() == 3 and first.shape[:2] == targets.shape
    if is_of_tokens and targets is not None and first.shape[2] >= ids:
        # Flat logits have a row for each token; ids of a smaller vocabulary than theirs are fine.
        return F.cross_entropy(first.flatten(0, 1), targets.flatten()), CROSS_ENTROPY
    squares = [one.float().square().mean() for one in tensors]
    return torch.stack(squares).sum(), MEAN_SQUARE


def _entry(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return output.get(name)
    if isinstance(output, Tensor) or inspect.isroutine(getattr(output, name, None)):
        return None
    return getattr(output, name, None)
