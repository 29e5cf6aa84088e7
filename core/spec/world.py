"""Division of a training step over the ranks of a cluster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, get_args

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.spec.models import Dimensions
from sysbench.core.spec.spec import RunSpec

DataParallel = Literal["fsdp2", "hsdp", "ddp"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
LOOPED: tuple[Schedule, ...] = ("interleaved", "zero-bubble")
"""Schedules of several stages a rank."""
ShortDtype = Literal["fp32", "bf16", "fp16"]
DIVISIONS = ("pp", "dp", "cp", "tp")
"""Dimensions of the mesh, outermost first: neighbours in rank share a layer's tensors."""
EXAMPLE = "such as dp=32,tp=8"
ANY = "any"
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "data": get_args(DataParallel),
    "schedule": get_args(Schedule),
    "reshard": (True, False),
    "ep": (),
}
"""Keys that can be `ANY` in a plan of layouts, with their values; of ``ep`` all divisors."""


class World(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the mesh, and what its dimensions do; the default is one device.

    Attributes:
        pp: Ranks of the pipeline; each has ``stages`` of consecutive blocks.
        dp: Ranks that see other samples; each has the spec's batch.
        tp: Ranks that divide each layer's tensors.
        cp: Ranks that divide the tokens of a sample, whose keys and values go round in a ring.
        ep: Ranks with other tokens, of all but ``pp``, that divide the experts of each layer.
        skew: Tokens that the first of these receives, over the mean of all.
        data: What ``dp`` divides: ``fsdp2`` parameters, gradients and states; ``hsdp`` the same
            within each of ``replicas`` groups; ``ddp`` nothing.
        sequence: Whether norms and residuals are divided over ``tp`` by tokens.
        loss_parallel: Whether logits stay divided over ``tp`` by words, also in the loss.
        schedule: Order in which a stage runs ``microbatches`` parts of its batch.
        params, reduce: Dtypes in which FSDP gathers parameters and reduces gradients; None for
            that of the weights.
        reshard: Whether FSDP frees a block's gathered parameters after its forward.
        selective: Whether recomputed blocks keep the results of attention and of every second
            product.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    skew: float = 1.0
    data: DataParallel = "fsdp2"
    replicas: int = 1
    sequence: bool = True
    loss_parallel: bool = False
    schedule: Schedule = "1f1b"
    microbatches: int = 1
    stages: int = 1
    params: ShortDtype | None = None
    reduce: ShortDtype | None = None
    reshard: bool = True
    selective: bool = False

    def __post_init__(self) -> None:
        for name in (*DIVISIONS, "ep", "replicas", "microbatches", "stages"):
            if getattr(self, name) < 1:
                raise SpecError(f"world.{name}", getattr(self, name), "1 or more")
        if (self.data == "hsdp") != (self.replicas > 1):
            raise SpecError("world.replicas", self.replicas, "2 or more with data=hsdp, else 1")
        if self.dp % self.replicas:
            raise SpecError("world.replicas", self.replicas, f"a divisor of dp={self.dp}")
        if self.data == "ddp" and self.tp * self.cp > 1:
            with_ = "tp" if self.tp > 1 else "cp"
            raise SpecError("world.data", self.data, f"fsdp2 or hsdp with {with_}")
        if self.ep > 1 and self.data == "ddp":
            allowed = "1 with data=ddp: experts are divided over ranks of fsdp2"
            raise SpecError("world.ep", self.ep, allowed)
        if self.shards * self.tp % self.ep:
            ranks = " x ".join(name for name in ("dp", "cp", "tp") if getattr(self, name) > 1)
            each = f" / replicas={self.replicas}" if self.replicas > 1 else ""
            allowed = f"a divisor of {ranks or 'dp'}{each} = {self.shards * self.tp}"
            raise SpecError("world.ep", self.ep, allowed)
        if not 1 <= self.skew <= self.ep:
            raise SpecError("world.skew", self.skew, f"1 to ep={self.ep}")
        if self.schedule == "1f1b" and self.microbatches < self.pp:
            allowed = f"pp={self.pp} or more, as torch's Schedule1F1B needs, or schedule=gpipe"
            raise SpecError("world.microbatches", self.microbatches, allowed)
        if (self.schedule in LOOPED) != (self.stages > 1):
            allowed = f"2 or more with schedule={' or '.join(LOOPED)}, else 1"
            raise SpecError("world.stages", self.stages, allowed)
        rounds = max(1, self.microbatches // self.pp)
        if self.stages > 1 and self.microbatches % rounds:
            allowed = f"a multiple of pp={self.pp}, for schedule={self.schedule}"
            raise SpecError("world.microbatches", self.microbatches, allowed)
        if self.stages > 1 and self.pp == 1:
            raise SpecError("world.stages", self.stages, "1 without pp")
        for name in ("params", "reduce", "reshard"):
            value = getattr(self, name)
            if value not in (None, True) and (self.dp * self.cp == 1 or self.data == "ddp"):
                raise SpecError(f"world.{name}", value, "needs dp by fsdp2 or hsdp")
        if self.loss_parallel and self.tp == 1:
            raise SpecError("world.loss_parallel", True, "needs tp")
        if self.microbatches > 1 and self.pp == 1:
            raise SpecError("world.microbatches", self.microbatches, "1 without pp")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The world of ``dp=32,tp=8``.

        Raises:
            SpecError: The text has no such form.
        """
        return cls(**parse_division(text))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Values that are no defaults, by key."""
        return {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value != getattr(ONE_DEVICE, name)
        }

    @property
    def words(self) -> str:
        """The text of `parse`, without defaults."""
        return ",".join(f"{name}={str(value).lower()}" for name, value in self.settings.items())

    @property
    def all_stages(self) -> int:
        """Stages of all ranks; the one with an index is on rank ``index % pp``."""
        return self.pp * self.stages

    @property
    def size(self) -> int:
        return self.pp * self.dp * self.cp * self.tp

    @property
    def shards(self) -> int:
        """Ranks over which FSDP divides a parameter."""
        return self.dp * self.cp // self.replicas

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """Position of a rank in each dimension of the mesh."""
        rest, tensor = divmod(rank, self.tp)
        rest, part = divmod(rest, self.cp)
        return dict(zip(DIVISIONS, (*divmod(rest, self.dp), part, tensor), strict=True))

    def check(self, size: Dimensions, batch: int, context: int) -> None:
        """Refuse a world that does not divide a built-in model.

        Raises:
            SpecError: Naming the dimension at fault.
        """
        for count, what in (
            (size.heads, "heads"),
            (size.d_ff, "d_ff"),
            *(((context, "context"),) if self.sequence else ()),
        ):
            if count % self.tp:
                raise SpecError("world.tp", self.tp, f"a divisor of {what}={count}")
        self.check_inputs(batch, context)
        if self.all_stages > size.layers:
            name, value = ("pp", self.pp) if self.stages == 1 else ("stages", self.stages)
            each = "" if self.stages == 1 else f" pp={self.pp} times these, in"
            raise SpecError(
                f"world.{name}", value, f"at most{each} the model's {size.layers} layers"
            )

    def check_inputs(self, batch: int, context: int) -> None:
        """Refuse a world that does not divide the tokens.

        Raises:
            SpecError: Naming the dimension at fault.
        """
        if batch % self.microbatches:
            allowed = f"a divisor of batch={batch}"
            raise SpecError("world.microbatches", self.microbatches, allowed)
        if self.cp > 1 and context % (2 * self.cp * (self.tp if self.sequence else 1)):
            allowed = f"a divisor of half of context={context}: each rank has two parts of it"
            raise SpecError("world.cp", self.cp, allowed)
        if self.ep > 1 and context % self.tp:
            allowed = f"a divisor of context={context} with ep: each rank routes a part of it"
            raise SpecError("world.tp", self.tp, allowed)

    def is_light(self, rank: int) -> bool:
        """Whether a rank receives fewer tokens than the first of its ``ep`` group."""
        return self.skew > 1 and rank % self.ep > 0

    @property
    def kinds(self) -> Mapping[int, int]:
        """The first rank of each stage, part of the tokens and load, and how many there are."""
        each = self.dp * self.cp * self.tp
        period = math.lcm(self.cp * self.tp, self.ep if self.skew > 1 else 1)
        firsts, counts = dict[tuple[int, bool], int](), Counter[int]()
        for rank in range(period):
            kind = rank // self.tp % self.cp, self.is_light(rank)
            counts[firsts.setdefault(kind, rank)] += each // period
        return {
            stage * each + first: count
            for stage in range(self.pp)
            for first, count in counts.items()
        }

    def loads(self, pairs: int) -> list[int]:
        """Tokens that a rank sends to each one of its ``ep`` group.

        Args:
            pairs: Those of the rank, once for each of their experts.
        """
        first = min(pairs, math.ceil(pairs * self.skew / self.ep))
        each, more = divmod(pairs - first, max(1, self.ep - 1))
        return [first, *(each + (rank < more) for rank in range(self.ep - 1))]

    def divides(self, size: Dimensions) -> bool:
        """Whether all ranks of a stage have equal parts of a built-in model."""
        shards = 1 if self.data == "ddp" else self.shards
        parts = (size.vocab, size.d_ff, size.d_model)
        return not any(part % (self.tp * shards) for part in parts)

    def tokens(self, context: int) -> int:
        """Tokens of a residual on one rank, of those that its ``cp`` rank has."""
        return context // self.tp if self.sequence else context

    def stage_blocks(self, layers: int) -> Iterator[range]:
        """Blocks of each stage; earlier stages have the blocks that are left over."""
        each, more = divmod(layers, self.all_stages)
        begin = 0
        for stage in range(self.all_stages):
            end = begin + each + (stage < more)
            yield range(begin, end)
            begin = end


ONE_DEVICE = World()


def check_world(spec: RunSpec, world: World) -> None:
    """Raise SpecError for a world that does not divide the step, as far as the spec shows it."""
    if not spec.is_own:
        world.check(spec.dimensions, spec.batch, spec.context)
        if world.ep > 1:
            allowed = "1 with this model, which has no experts: take one such as olmoe-1b-7b"
            raise SpecError("world.ep", world.ep, allowed)
    else:
        world.check_inputs(spec.batch, spec.context)
        if world.pp > 1 and spec.step != "train":
            raise SpecError("world.pp", world.pp, f"1 with step={spec.step} of this model")
    if world.cp > 1 and not spec.attention_row.has_ring:
        allowed = f"1 with attention={spec.attention}: torch has a ring of attention=sdpa only"
        raise SpecError("world.cp", world.cp, allowed)
    if world.cp > 1 and world.selective:
        raise SpecError("world.selective", world.selective, "not with cp")
    if spec.precision_row.recipe:
        other = spec.precision_row.autocast_only
        allowed = f"{other}: {spec.precision} layers are not divided over ranks"
        raise SpecError("precision", spec.precision, allowed)
    if spec.has_cache and world.tp * world.pp * world.cp > 1:
        allowed = "train or inference, with tp or pp: a cache is not divided over ranks"
        raise SpecError("step", spec.step, allowed)
    if world.selective and not spec.checkpoint:
        allowed = "needs checkpoint=N: without it no block is recomputed"
        raise SpecError("world.selective", world.selective, allowed)


def parse_division(text: str, *, of_plan: bool = False) -> dict[str, Any]:
    """Values by key of ``dp=32,tp=8``; in a plan some can be `ANY`.

    Raises:
        SpecError: The text has no such form.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    if "" in settings.values() or len(settings) < len(pairs):
        raise SpecError("--world", text, f"keys with a value each, {EXAMPLE}")
    types = {field.name: field.type for field in msgspec.structs.fields(World)}
    unknown = settings.keys() - types.keys()
    if unknown:
        raise SpecError("--world", text, f"with the keys {', '.join(types)}, not {min(unknown)}")
    free = {key for key in CHOICES if of_plan and settings.get(key) == ANY}
    values = dict[str, Any]()
    for key, value in settings.items():
        try:
            values[key] = value if key in free else msgspec.convert(value, types[key], strict=False)
        except msgspec.ValidationError:
            raise SpecError("--world", text, f"{key} is {_allowed(types[key])}") from None
    return values


PLAIN_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _allowed(kind: Any) -> str:
    if kind in PLAIN_KINDS:
        return PLAIN_KINDS[kind]
    parts = (kind, *get_args(kind))  # of a literal, or of a literal or None
    return f"one of {', '.join(x for part in parts for x in get_args(part) if isinstance(x, str))}"
