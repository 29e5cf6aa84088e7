"""Exact mode: dry-run a step on meta tensors in a separate process. No torch here."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, TypeVar

import msgspec

from sysbench.core.errors import SpecError, WorkerFailed
from sysbench.core.machine.children import LineChild
from sysbench.core.machine.interpreter import ready_python
from sysbench.core.predict.closed_form import Prediction, why_not_predicted
from sysbench.core.predict.pipeline_requests import OneF1B, longer_trace
from sysbench.core.predict.requests import AllocatorPeak, Requests, RequestTrace
from sysbench.core.record.environment import LinearLayers, Roof
from sysbench.core.record.record import LedgerRow
from sysbench.core.spec.spec import DIMENSION_NAMES, PLACE_NAMES, RunSpec
from sysbench.core.spec.world import ONE_DEVICE, World

VariantOptimizer = Literal["", "adamw-8bit", "adafactor", "adamw-on-cpu"]
"""Optimizers that runs do not support.

- ``adamw-8bit``: both moments in a byte an element, with a float32 scale for each 256; tensors
  below 4,096 elements in float32. The kernel updates in place, as bitsandbytes does (Dettmers et
  al. 2021, arXiv:2110.02861).
- ``adafactor``: a row and a column of second moments for each matrix, no first moment (Shazeer and
  Stern 2018, arXiv:1804.04235), one parameter after another as torch's with ``foreach=False``.
- ``adamw-on-cpu``: state and step on the host, gradients on the device until the step ends.
"""


class TrainingVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of a dry run from its spec; the default has none.

    Attributes:
        lora_rank: Rank of low-rank adapters on every linear layer but the head, with all else
            frozen (Hu et al. 2021, arXiv:2106.09685); where convolutions hold more weights than
            these layers, on the convolutions, too. 0 trains the model itself.
        world: Ranks over which the step is divided; the batch is that of each ``dp`` rank.
        rank: The one that is played.
        optimizer: In place of the spec's; ``""`` for that one.
        loss_chunks: Parts of the tokens whose logits are computed one after another, so that only
            one part's are alive.
        short: What is played of a pipeline's step; None for all of it.
    """

    lora_rank: int = 0
    world: World = ONE_DEVICE
    rank: int = 0
    optimizer: VariantOptimizer = ""
    loss_chunks: int = 1
    short: OneF1B | None = None

    @property
    def is_alike_in_all_blocks(self) -> bool:
        """True if a deep model can be extended from shallow ones."""
        return not self.lora_rank


PLAIN = TrainingVariant()

NO_LAYER = "the model has no linear layer to adapt"
NO_HEAD = "the model has no output layer over a vocabulary"
NOT_APPLICABLE = (NO_LAYER, NO_HEAD)
"""Refusals of variants that nobody would choose for the model."""


_Key = TypeVar("_Key")

Amounts = tuple[int, ...]
"""Bytes by row of the ledger, in the order of `closed_form.ROWS`."""


class Product(NamedTuple):
    """A matrix product: its operands' dtype, its FLOPs, and the bytes it reads and writes."""

    dtype: str
    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Live bytes just after an operation allocated a storage.

    Attributes:
        block: Index of the block, from 1; 0 outside the blocks.
        place: Name of the part outside the blocks: the embedding, the head, the loss.
        rounded: ``requested``, rounded up to blocks of CUDA's allocator.
    """

    phase: str
    block: int
    place: str
    requested: Amounts
    rounded: Amounts


class Action(NamedTuple):
    """What a step has done before one of its forwards or backwards.

    Attributes:
        moments: Number of moments.
        counts: Products, moved bytes, calls and sent bytes, as in `DryRun`.
        saved_bytes: Bytes that graphs hold at the begin of a backward.
    """

    moments: int
    counts: tuple[Counter[Any], ...]
    saved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of one steady step on tensors without data.

    Attributes:
        moments: In order of time; unordered if the step was extrapolated.
        saved_bytes: Bytes that the graph holds after forward and loss, without weights.
        products: Number of times that each phase computes each product.
        moved_bytes: Bytes that all other operations read and write, by phase.
        uncounted: Names of operations that may multiply matrices and have no formula.
        trace: Its memory requests in order; None if the step was extrapolated.
        alike: Number of steps that ran before and are like it; 0 if none was looked at.
        limits: Where the result is not exact, a sentence each.
        calls: Number of transfers to other ranks, by kind.
        sent: Bytes that they send; collectives in a ring.
        linear_layers: Those of a converted model.
        actions: Before each forward and backward, and at the end.
    """

    layers: int
    parameters: int = 0
    parameter_bytes: int = 0
    trained_parameters: int = 0
    moments: list[Moment]
    saved_bytes: int
    products: Counter[tuple[str, Product]]
    moved_bytes: Counter[str]
    uncounted: frozenset[str] = frozenset()
    trace: RequestTrace | None = field(default=None, compare=False)
    alike: int = 0
    limits: tuple[str, ...] = ()
    calls: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    linear_layers: tuple[LinearLayers, ...] = ()
    actions: tuple[Action, ...] = field(default=(), compare=False)


def longer(run: DryRun, short: OneF1B, long: OneF1B) -> DryRun:
    """Extend a stage's step to more micro-batches and forwards in flight.

    Raises:
        WorkerFailed: Its requests do not repeat.
    """
    actions = run.actions[1:]  # without the begin of the schedule
    counts = [Counter(one) for one in actions[0].counts]
    moments = run.moments[: actions[0].moments]
    *sources, end = long.sources(short)
    kept = _kept_output(run, short)
    for number, source in enumerate(sources):
        begin, after = actions[source : source + 2]
        _add(counts, begin, after)
        # An action's first moment also has what was let go after the one before.
        more_kept = long.more_kept(number - 1) - short.more_kept(source - 1) if number else 0
        for index in range(begin.moments, after.moments):
            moment, at, last = run.moments[index], run.moments[index - 1], moments[-1]
            if more_kept:
                last = _each(lambda a, b, times=more_kept: a + times * b, last, kept)
            moments.append(_each(lambda a, b, c: a + b - c, moment, last, at))
            more_kept = 0
    _add(counts, *actions[end:])
    saved = [
        action.saved_bytes
        for action, (phase, _) in zip(actions[:-1], short.actions, strict=True)
        if phase == "backward"
    ]
    more = (saved[-2] - saved[-1]) * (long.in_flight - short.in_flight)
    if short.in_flight == 1:  # the last stage, which keeps losses
        more = (saved[-1] - saved[-2]) * (long.pairs - short.pairs)
    return replace(
        run,
        moments=[*moments, *run.moments[actions[end].moments :]],
        saved_bytes=run.saved_bytes + more,
        products=counts[0],
        moved_bytes=counts[1],
        calls=counts[2],
        sent=counts[3],
        trace=None if run.trace is None else longer_trace(run.trace, short, long),
        actions=(),
    )


def _kept_output(run: DryRun, short: OneF1B) -> Moment:
    """Bytes of the output that a transfer keeps in a short schedule; zeros if none is."""
    at = [run.moments[action.moments] for action in run.actions[1:-1]]
    if short.kept < 0:
        return _each(lambda a: 0, at[0])
    own, other = (short.actions.index(("backward", short.kept + one)) for one in (0, 1))
    times = 2 if short.kept + 1 == short.pairs else 1  # the other one lets it go
    four = at[own], at[own + 1], at[other], at[other + 1]
    return _each(lambda a, b, c, d: (b - a - (d - c)) // times, *four)


def _each(make: Callable[..., int], *moments: Moment) -> Moment:
    """The first moment, with amounts made of all."""
    requested, rounded = (
        tuple(map(make, *(getattr(one, name) for one in moments)))
        for name in ("requested", "rounded")
    )
    return replace(moments[0], requested=requested, rounded=rounded)


def _add(counts: list[Counter[Any]], before: Action, after: Action) -> None:
    for total, begin, end in zip(counts, before.counts, after.counts, strict=True):
        total.update(end - begin)


def extended(small: DryRun, large: DryRun, layers: int) -> DryRun:
    """Extrapolate a step to another depth from two depths, at least 3, that differ by 1.

    Raises:
        WorkerFailed: The two steps differ in the operations of a block.
    """
    times = layers - small.layers
    at_small, at_large = _labelled(small), _labelled(large)
    if at_small.keys() != at_large.keys():
        raise WorkerFailed("the model's blocks differ, so its depth cannot be extrapolated")

    def moment(label: _Label) -> Moment:
        a, b = at_small[label], at_large[label]
        return Moment(
            phase=a.phase,
            # From the end, -1 is the last block: layers + 1 - 1.
            block=label.block if label.block >= 0 else layers + 1 + label.block,
            place=a.place,
            requested=_along(a.requested, b.requested, times),
            rounded=_along(a.rounded, b.rounded, times),
        )

    return DryRun(
        layers=layers,
        parameters=_line(small.parameters, large.parameters, times),
        parameter_bytes=_line(small.parameter_bytes, large.parameter_bytes, times),
        trained_parameters=_line(small.trained_parameters, large.trained_parameters, times),
        moments=[moment(label) for label in at_small],
        saved_bytes=_line(small.saved_bytes, large.saved_bytes, times),
        products=_counts(small.products, large.products, times),
        moved_bytes=_counts(small.moved_bytes, large.moved_bytes, times),
        limits=large.limits,
        uncounted=small.uncounted | large.uncounted,
        calls=_counts(small.calls, large.calls, times),
        sent=_counts(small.sent, large.sent, times),
        linear_layers=tuple(
            msgspec.structs.replace(a, layers=_line(a.layers, b.layers, times))
            for a, b in zip(small.linear_layers, large.linear_layers, strict=True)
        ),
    )


class _Label(NamedTuple):
    """A moment's place at any depth: the last two blocks by index from the end, -1 and -2."""

    phase: str
    block: int
    place: str
    ordinal: int


def _labelled(run: DryRun) -> dict[_Label, Moment]:
    ordinals: Counter[tuple[str, int, str]] = Counter()
    labelled = {}
    for moment in run.moments:
        key = moment.phase, moment.block, moment.place
        ordinal = ordinals[key]
        ordinals[key] += 1
        for block in _ends(moment.block, run.layers):
            labelled[_Label(moment.phase, block, moment.place, ordinal)] = moment
    return labelled


def _ends(block: int, layers: int) -> list[int]:
    """Indices of a block that hold at any depth; empty for blocks in the middle.

    A block can have two: in 3 layers the second is 2 and -2. Middle blocks need no index, since
    live bytes are affine between the second and the last but one.
    """
    if block in (0, 1):
        return [block]
    if block == layers:
        return [-1]
    return [2] * (block == 2) + [-2] * (block == layers - 1)


def _line(small: int, large: int, times: int) -> int:
    return small + (large - small) * times


def _along(small: Amounts, large: Amounts, times: int) -> Amounts:
    return tuple(_line(a, b, times) for a, b in zip(small, large, strict=True))


def _counts(small: Counter[_Key], large: Counter[_Key], times: int) -> Counter[_Key]:
    return Counter({key: _line(small[key], large[key], times) for key in small | large})


TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.2
"""Limit for one answer; the first includes the import of torch."""


def unsupported_reason(spec: RunSpec) -> str | None:
    """Why the dry run does not support this spec, or None."""
    if spec.compile != "off":
        return (
            "torch.compile changes what is saved and fused; only `estimate --exact` of one step on "
            "one device plays compiled code"
        )
    if not spec.is_own:
        plain = spec.precision_row.autocast_only
        return why_not_predicted(spec.changed(accumulation=1, precision=plain))
    if spec.compiles:
        return "torch.compile changes what is saved and fused; the dry run is eager"
    if spec.parallel != "none":
        return "the dry run covers one device; ranks also hold buckets and shards"
    return None


COMPILED = (
    "saved tensors by the partitioner of torch.compile; temporaries inside fused kernels are not "
    "modelled, nor the order in which Inductor runs kernels, so the peak is approximate"
)


def why_not_played(spec: RunSpec) -> str | None:
    """Why one exact prediction does not support this spec, or None; it plays compiled steps."""
    if spec.compile == "off":
        return unsupported_reason(spec)
    refused = {
        "the play covers compile_backend=inductor": spec.compile_backend != "inductor",
        "the play covers fixed shapes, compile_dynamic=auto or off": spec.compile_dynamic == "on",
        "CUDA graphs keep memory of their own, which is not modelled; compile=default has none": (
            spec.on_cuda and spec.compile in ("reduce-overhead", "max-autotune")
        ),
        "the order in which Inductor recomputes decides the peak; the play covers checkpoint=0": (
            spec.checkpoint > 0
        ),
        "a step that keeps no graph is played in eager code only": not spec.keeps_graph,
        f"{spec.precision} layers are played in eager code only": bool(spec.precision_row.recipe),
    }
    eager = unsupported_reason(spec.changed(compile="off"))
    return eager or next((why for why, is_refused in refused.items() if is_refused), None)


class ProductCount(msgspec.Struct, frozen=True, kw_only=True):
    dtype: str
    flops: int
    bytes: int
    count: int


class PhasePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of the step.

    Attributes:
        peak_bytes: Live bytes at its peak; ``ledger`` adds up to them.
        block_bytes: Peak in CUDA's allocator, each storage rounded up to 512 bytes; None on the
            CPU.
        flops: FLOPs of its matrix products, as the kernels compute them.
        moved_bytes: Bytes that all other operations read and write.
    """

    phase: str
    peak_bytes: int
    block_bytes: int | None
    place: str
    ledger: list[LedgerRow]
    flops: int
    products: list[ProductCount]
    moved_bytes: int


class SentBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sends in a step.

    Attributes:
        kind: A collective, or ``send`` to another stage.
        bytes: Bytes that leave the rank, in a ring: of an all-gather to n ranks and of a
            reduce-scatter the tensor's (n - 1) / n, of an all-reduce twice that.
    """

    kind: str
    calls: int
    bytes: int


class EagerStep(msgspec.Struct, frozen=True, kw_only=True):
    """The same step without torch.compile."""

    saved_activation_bytes: int
    peak_bytes: int
    peak_phase: str


class ExactPrediction(Prediction, frozen=True, kw_only=True):
    """A `Prediction` from the workload's code, as torch executes it here.

    Attributes:
        eager: Of a compiled step, the same without torch.compile; else None.
        block_ledger: The rows of ``ledger`` in blocks of CUDA's allocator; None on the CPU.
        requests: Its requests to CUDA's allocator; None on the CPU.
        held: What the allocator holds for them on a device of unlimited memory.
        uncounted: Names of operators that may multiply matrices and are in no FLOPs.
        seconds: Duration of the prediction, without ``import_seconds`` of torch, once per process.
    """

    phases: list[PhasePrediction]
    block_ledger: list[LedgerRow] | None
    requests: Requests | None = None
    held: AllocatorPeak | None = None
    trained_parameters: int = 0
    uncounted: list[str] = msgspec.field(default_factory=list)
    sent: list[SentBytes] = msgspec.field(default_factory=list)
    linear_layers: tuple[LinearLayers, ...] = ()
    eager: EagerStep | None = None
    seconds: float = 0.0
    import_seconds: float = 0.0


class RankPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank of a world holds.

    Attributes:
        coordinates: Its position in each dimension of the mesh.
        alike: Number of ranks with the same stage.
    """

    rank: int
    coordinates: Mapping[str, int]
    alike: int
    prediction: ExactPrediction

    @property
    def peak_bytes(self) -> int:
        return self.prediction.peak_bytes

    @property
    def allocated_bytes(self) -> int | None:
        """Bytes of blocks at the peak in CUDA's allocator; None where that is not modelled."""
        held = self.prediction.held
        return None if held is None else held.allocated_bytes

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes that CUDA's allocator reserves; None where that is not modelled."""
        held = self.prediction.held
        return None if held is None else held.reserved_bytes

    @property
    def needed_bytes(self) -> int:
        return self.reserved_bytes or self.peak_bytes


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the process; ``spec`` is a `canonical_spec`."""

    spec: RunSpec
    capability: str | None = None
    variant: TrainingVariant = PLAIN


class DryRunAnswer(msgspec.Struct, kw_only=True):
    """A line from the process: a prediction, or the reason why there is none."""

    prediction: ExactPrediction | None = None
    error: str = ""


class Estimator:
    """Exact predictions from a child process, cached by identity.

    The child starts with the ``with`` block or the first question, imports torch, and ends with
    `close`; the cache outlives it. However the child ends, this process sees only an exception.

    Args:
        is_cancelled: Asked while the child works; once it is true, questions fail.
    """

    def __init__(
        self,
        timeout_seconds: float = TIMEOUT_SECONDS,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._is_cancelled = is_cancelled
        self._child: LineChild | None = None
        self._predictions: dict[tuple[str, str | None, TrainingVariant], ExactPrediction] = {}
        self._sources: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._child = self._child or self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def predict(
        self, spec: RunSpec, capability: str | None = None, variant: TrainingVariant = PLAIN
    ) -> ExactPrediction:
        """Predict the cost of one steady eager step with the semantics of ``device``.

        Raises:
            WorkerFailed: The process died, did not answer in time, or could not run the step.
            SpecError: The dry run does not support the step, or there is no interpreter for it.
        """
        if spec.workload != "transformer" and not spec.is_own:
            raise SpecError("workload", spec.workload, "transformer; exact mode supports no other")
        question = Question(spec=canonical_spec(spec), capability=capability, variant=variant)
        key = question.spec.identity, capability, variant
        if key not in self._predictions:
            self._predictions[key] = self._ask(question)
        return self._predictions[key]

    def stop(self) -> None:
        """Stop the child from another thread; the thread that waits for it gets `WorkerFailed`."""
        child = self._child
        if child is not None:
            child.process.kill()

    def close(self) -> None:
        """Stop the process, if there is one, without waiting."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            # To take down all that torch has mapped takes the kernel 0.1 s.
            threading.Thread(target=child.process.wait, daemon=True).start()

    def _ask(self, question: Question) -> ExactPrediction:
        file, source = question.spec.model_file, question.spec.model_source
        if self._sources.setdefault(file, source) != source:
            self.close()  # the child has imported the code as it was
            self._sources = {file: source}
        child = self._child = self._child or self._start()
        try:
            child.send(msgspec.json.encode(question))
            answer = msgspec.json.decode(self._line_from(child), type=DryRunAnswer)
        except (BrokenPipeError, msgspec.DecodeError):
            # Half a line or none: the child is dying or dead.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(1.0)
            ending = f"{_ended(child.process.poll())}{child.last_line()}"
            self.close()
            raise WorkerFailed(f"the process of exact mode {ending}") from None
        except BaseException:
            self.close()
            raise
        if answer.prediction is None:
            raise WorkerFailed(f"exact mode cannot run this step: {answer.error}")
        return answer.prediction

    def _start(self) -> LineChild:
        # Meta tensors need neither a device nor threads.
        return LineChild(
            "sysbench.core.worker.dry_run.child",
            ready_python(),
            CUDA_VISIBLE_DEVICES="",
            OMP_NUM_THREADS="1",
        )

    def _line_from(self, child: LineChild) -> bytes:
        """Return the next line; an empty one if the pipe ends."""
        deadline = time.monotonic() + self._timeout_seconds
        while not child.lines.ended:
            left = deadline - time.monotonic()
            if lines := child.lines.read(min(POLL_SECONDS, max(0.0, left))):
                return lines[0]
            if self._is_cancelled():
                raise WorkerFailed("exact mode was cancelled")
            if left <= 0:
                raise WorkerFailed(
                    f"exact mode did not answer within {self._timeout_seconds:g} s; of the "
                    "built-in models the closed form, without --exact, needs no torch"
                )
        return b""


def canonical_spec(spec: RunSpec) -> RunSpec:
    """Reset every key that does not change a prediction to its default."""
    names: tuple[str, ...] = DIMENSION_NAMES
    names += ("batch", "context", "precision", "attention", "step", "accumulation", "checkpoint")
    if spec.is_own:
        names = (*names, "model", "model_args", *PLACE_NAMES, "trust_code")
    settings: dict[str, Any] = {name: getattr(spec, name) for name in names}
    if spec.step == "train":
        settings |= {"optimizer": spec.optimizer, "clip": 1.0 if spec.clip else 0.0}
    if spec.compile != "off":
        settings |= {"compile": "default", "compile_scope": spec.compile_scope}
    return RunSpec(**settings, device="cpu" if spec.device == "cpu" else "cuda:0")


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "ended without an answer" if code is None else f"ended with code {code}"


def roof_ms(phase: PhasePrediction, roof: Roof) -> float | None:
    """Milliseconds of a phase if every operation ran at its ceiling; None without a bandwidth.

    A matrix product takes its FLOPs at the peak or its operands' bytes at the bandwidth, whichever
    is longer; other operations take their bytes. Launch costs and cache hits are not included. A
    product of another dtype than the run's counts at the run's peak.
    """
    if not roof.bandwidth:
        return None
    seconds = phase.moved_bytes / roof.bandwidth
    for row in phase.products:
        seconds += row.count * max(row.flops / roof.peak_flops, row.bytes / roof.bandwidth)
    return 1e3 * seconds
