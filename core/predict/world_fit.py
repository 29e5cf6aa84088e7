"""Find the largest step that fits on the ranks of a world."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.predict.allocator_settings import AllocatorSettings
from sysbench.core.predict.dry_run_client import ExactPrediction
from sysbench.core.predict.fit_grid import AvailableMemory, Fit, FitKey, fit, value_of, with_value
from sysbench.core.predict.layout_plan import Need, PlayedRanks, divisors
from sysbench.core.predict.savings import Play
from sysbench.core.spec.spec import RunSpec
from sysbench.core.spec.world import World, check_world


def fit_in_world(
    spec: RunSpec,
    key: FitKey,
    given: Mapping[str, Any],
    capacity_bytes: int,
    room: AvailableMemory,
    settings: AllocatorSettings,
    play: Play,
) -> Fit:
    """Find the largest value of a key that a world divides, and whose fullest rank fits.

    Args:
        given: Settings of the world.

    Raises:
        SpecError: The world does not divide the spec, or the key is not one of a world.
    """
    if key == "microbatches":
        return _fit_microbatches(spec, given, capacity_bytes, room, settings, play)
    world = World(**given)
    units = {"batch": world.microbatches, "context": world.tp if world.sequence else 1}
    if key not in units:
        raise SpecError("--fit", key, f"{', '.join(units)}, microbatches with --world")
    unit = units[key]

    def divided(value: int) -> int:
        return -(-value // unit) * unit

    def fullest(changed: RunSpec) -> ExactPrediction:
        """Of the next value that the world divides: values between have the same answer."""
        changed = with_value(changed, key, divided(value_of(changed, key)))
        check_world(changed, world)
        need = PlayedRanks(changed, play).fullest(world, room, settings)
        return need.rank.prediction

    first = divided(value_of(spec, key))
    here, after = (fullest(with_value(spec, key, value)).peak_bytes for value in (first, 2 * first))
    guess = first + first * (room.least - here) // max(1, after - here)
    found = fit(spec, key, capacity_bytes, fullest, max(unit, guess), settings, room)
    return msgspec.structs.replace(
        found,
        next=None if found.next is None else divided(found.next),
        beyond=None if found.beyond is None else divided(found.beyond),
    )


def _fit_microbatches(
    spec: RunSpec,
    given: Mapping[str, Any],
    capacity_bytes: int,
    room: AvailableMemory,
    settings: AllocatorSettings,
    play: Play,
) -> Fit:
    """Play every number that divides the batch: with some schedules more of them need less."""
    if given.get("pp", 1) == 1:
        raise SpecError("world.pp", 1, "2 or more with --fit microbatches")
    refused, needs = list[SpecError](), dict[int, Need]()
    for count in divisors(spec.batch):
        try:
            world = World(**{**given, "microbatches": count})
            check_world(spec, world)
        except SpecError as error:
            refused.append(error)
        else:
            needs[count] = PlayedRanks(spec, play).fullest(world, room, settings)
    if not needs:
        raise refused[-1]
    fitting = [count for count, need in needs.items() if need.verdict == "fits"]
    largest = max(fitting, default=0)
    larger = [count for count in needs if count > largest]
    never = takewhile(lambda count: needs[count].verdict == "over", reversed(larger))
    following = needs[larger[0]] if larger else None
    return Fit(
        key="microbatches",
        capacity_bytes=capacity_bytes,
        largest=largest,
        peak_bytes=needs[largest].rank.peak_bytes if largest else None,
        next=larger[0] if larger else None,
        next_peak_bytes=None if following is None else following.rank.peak_bytes,
        over_bytes=None if following is None else -following.headroom_bytes,
        room_bytes=room.least,
        doubt_bytes=room.uncertainty_bytes,
        beyond=min(never, default=None),
        reserved_bytes=None,
        smallest=min(fitting, default=None),
    )
