"""The cells of a study: all combinations of its axes in running order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import did_you_mean
from sysbench.core.machine.devices import resolve_device
from sysbench.core.machine.peaks import find_card
from sysbench.core.predict.dry_run_client import unsupported_reason
from sysbench.core.predict.fit_grid import spec_elsewhere
from sysbench.core.record.blocks import PassName
from sysbench.core.spec.command_line import command_line, estimate_command
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.spec.world import World, check_world
from sysbench.core.studies.schema import (
    CLUSTER_KEYS,
    ONE_RANK,
    Axis,
    Point,
    Study,
    parse_points,
    parser_of,
    separator_of,
)

MOST_CELLS = 10_000


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One place of the grid.

    Attributes:
        point: Axis to label.
        spec: Spec to measure; None if no run can have these settings.
        refused: Reason for that, or empty.
        identity: Hash of spec and passes; cells with the same identity share a run.
        repeat: From 0.
        world: Ranks of a cell that is predicted and not run; None if it is run.
        card: Device of such a cell; empty for that of this machine.
    """

    point: dict[str, str]
    spec: RunSpec | None
    refused: str = ""
    identity: str = ""
    passes: tuple[PassName, ...]
    repeat: int = 0
    world: World | None = None
    card: str = ""

    @property
    def is_predicted(self) -> bool:
        return self.world is not None

    @property
    def command(self) -> str | None:
        """Command that runs or predicts the cell alone; None for a refused one."""
        if self.spec is None:
            return None
        if self.world is None:
            return command_line(self.spec, self.passes)
        return estimate_command(self.spec, self.card, self.world.words or ONE_RANK)

    @property
    def id(self) -> str:
        """Key of the cell in the study's state: ``identity/repeat``."""
        return f"{self.identity}/{self.repeat}"

    @property
    def words(self) -> str:
        """``model=tiny · step=train``, with the repeat."""
        again = [f"repeat {self.repeat + 1}"] if self.repeat else []
        return " · ".join([f"{axis}={label}" for axis, label in self.point.items()] + again)


def with_variant(study: Study, name: str) -> Study:
    if not name:
        return study
    if name not in study.variants:
        variants = ", ".join(study.variants) or f"{study.name} has none"
        raise SpecError("--variant", name, variants)
    variant = study.variants[name]
    changed = {axis.name: axis for axis in variant.axes}
    return msgspec.structs.replace(
        study,
        axes=tuple(changed.get(axis.name, axis) for axis in study.axes),
        fixed=study.fixed | variant.fixed,
        passes=variant.passes or study.passes,
        repeat=variant.repeat or study.repeat,
        variant=name,
    )


def with_overrides(study: Study, overrides: Mapping[str, object]) -> Study:
    """Replace axes or fixed fields: ``{"model": "tiny", "context": "64,128"}``.

    Raises SpecError, also for several values of a key that is no axis, or a key that another axis
    sets.
    """
    axes, fixed = list(study.axes), dict(study.fixed)
    for key, value in overrides.items():
        parse, values = parser_of(key, value), [value]
        if isinstance(value, str):
            values = [part.strip() for part in value.split(separator_of(key))]
        position = next((n for n, axis in enumerate(axes) if axis.name == key), None)
        if position is not None:
            axes[position] = Axis(name=key, points=parse_points(key, values))
            continue
        for axis in axes:
            if key in axis.keys:
                raise SpecError(key, value, f"the axis {axis.name!r} sets it; choose with --only")
        fixed[key] = parse(values[0] if len(values) == 1 else value)
    return msgspec.structs.replace(study, axes=tuple(axes), fixed=fixed)


def expand(
    study: Study,
    overrides: Mapping[str, object] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    repeat: int | None = None,
) -> list[Cell]:
    """Return the cells in running order; the last axis varies fastest.

    Repeats are rounds over the whole grid. Every round after the first has its own random order,
    drawn from the study's identity, so that drift affects all cells alike. The test of
    `sysbench.core.compare.interval.paired` relies on it. A combination that cannot run here is a
    cell with the reason.

    Args:
        overrides: As in `with_overrides`.
        only: Axis to the labels to keep.
        repeat: Rounds; default: the study's.

    Raises:
        SpecError: An invalid override or selection; more than `MOST_CELLS`.
    """
    study = with_overrides(study, overrides or {})
    for name in only or {}:
        if study.axis(name) is None:
            names = [axis.name for axis in study.axes]
            listed = f"{did_you_mean(name, names)}one of {', '.join(names)}"
            raise SpecError("--only", name, f"an axis: {listed}")
    chosen = [_kept(axis, (only or {}).get(axis.name)) for axis in study.axes]
    rounds = repeat or study.repeat
    if (count := rounds * prod(map(len, chosen))) > MOST_CELLS:
        raise SpecError("cells", count, f"at most {MOST_CELLS}")
    make = _Maker(study)
    grid = [cell for points in product(*chosen) if (cell := make.cell(points)) is not None]
    cells = grid.copy()
    for index in range(1, rounds):
        turn = [cell for cell in grid if not cell.is_predicted]  # no round differs
        random.Random(f"{study.identity} {index}").shuffle(turn)
        cells += [msgspec.structs.replace(cell, repeat=index) for cell in turn]
    return cells


class _Maker:
    def __init__(self, study: Study) -> None:
        self.study = study
        self.names = [axis.name for axis in study.axes]
        self.devices: dict[str, str | SpecError] = {}

    def cell(self, points: Sequence[Point]) -> Cell | None:
        """Make the cell of these points; None if the study skips it."""
        labels = {name: point.label for name, point in zip(self.names, points, strict=True)}
        for combination in self.study.skip:
            if all(labels[axis] in left_out for axis, left_out in combination.items()):
                return None
        settings = dict(self.study.fixed)
        for point in points:
            settings |= point.settings
        passes = self.study.passes
        own = {key: value for key, value in settings.items() if key not in CLUSTER_KEYS}
        card, world = settings.get("card", ""), World.parse(settings.get("world", ONE_RANK))
        is_predicted = card or world.size > 1
        make = partial(
            Cell,
            point=labels,
            passes=() if is_predicted else passes,
            world=world if is_predicted else None,
            card=card,
        )
        try:
            if is_predicted:
                spec = self._divided(parse_spec(own), world, card)
                work = f"{card}:{world.words}"
            else:
                device = self._device(own.get("device", "auto"))
                spec = resolve(parse_spec(own | {"device": device}), self._device)
                work = ",".join(passes)
        except SpecError as error:
            identity = _hash(msgspec.json.encode((settings, passes), order="sorted"))
            return make(spec=None, refused=str(error), identity=identity)
        return make(spec=spec, identity=_hash(f"{spec.identity}:{work}".encode()))

    def _divided(self, spec: RunSpec, world: World, card: str) -> RunSpec:
        """Return the spec on its device, which need not be here; raise SpecError if the world does
        not divide it."""
        if card:
            known = find_card(card)
            spec = spec_elsewhere(spec, known)
            spec.precision_row.check_capability(known.capability, known.name)
        if why := unsupported_reason(spec):
            raise SpecError("world", world.words or ONE_RANK, f"left out for this spec: {why}")
        if not card:
            try:
                spec = spec.changed(device=self._device(spec.device))
            except SpecError as error:
                raise SpecError("card", card, f"a GPU such as h100, or {error}") from error
        spec = locate(spec)
        check_world(spec, world)
        return spec

    def _device(self, text: Any) -> str:
        if text not in self.devices:
            find = device_elsewhere if self.study.elsewhere else resolve_device
            try:
                self.devices[text] = find(text)
            except SpecError as error:
                self.devices[text] = error
        found = self.devices[text]
        if isinstance(found, SpecError):
            raise found
        return found


def device_elsewhere(text: str) -> str:
    """Return the device of that name on a machine that cannot be queried from here.

    Raises SpecError for ``auto``, which only that machine can resolve.
    """
    if text == "auto":
        raise SpecError("device", text, "cpu or cuda:N, where the cells run on other machines")
    return text if text == "cpu" else f"cuda:{int(text.partition(':')[2] or 0)}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _kept(axis: Axis, wanted: Sequence[str] | None) -> list[Point]:
    if wanted is None:
        return list(axis.points)
    full = {short_label(point.label): point.label for point in axis.points}
    names = {full.get(name, name) for name in _join_labels(wanted, {*full, *full.values()})}
    unknown = names - set(axis.labels)
    if unknown:
        label = sorted(unknown)[0]
        hint = did_you_mean(label, [*full, *axis.labels])
        allowed = f"{hint}one of {', '.join(axis.labels)}"
        raise SpecError("--only", f"{axis.name}={label}", allowed)
    return [point for point in axis.points if point.label in names]


def _join_labels(parts: Sequence[str], labels: Collection[str]) -> Iterator[str]:
    """Join the parts of labels that have commas."""
    spaced = {label.replace(", ", ","): label for label in labels}
    rest = list(parts)
    while rest:
        sizes = range(len(rest), 0, -1)
        size = next((size for size in sizes if ",".join(rest[:size]) in spaced), 1)
        yield spaced.get(text := ",".join(rest[:size]), text)
        del rest[:size]


def short_label(label: str) -> str:
    """Return ``large`` for ``cs336-2025/large``."""
    return label.rpartition("/")[2]
