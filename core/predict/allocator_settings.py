"""Parse settings of PyTorch's CUDA caching allocator from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sysbench.core.errors import SpecError

MIB = 2**20
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that torch reads, highest precedence first."""

INTERVALS = 16
"""Number of powers of two, from 1 MiB, that have their own divisions."""

MIN_MAX_SPLIT = 20 * MIB
"""torch refuses a ``max_split_size_mb`` that is not larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """Options of the allocator; the defaults are torch's.

    Attributes:
        expandable_segments: Grow one segment per pool by pages instead of making many.
        max_split_bytes: Blocks of this size or more are never split; None: no limit.
        roundup_divisions: By power of two from 1 MiB: round requests up to a multiple of that power
            over this number; 0 and 1 do not round.
        collect_above: Share of a memory limit above which long unused blocks are given back before
            the allocator reserves more; 0: never.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    roundup_divisions: tuple[int, ...] = (0,) * INTERVALS
    collect_above: float = 0.0


def parse_allocator_settings(environ: Mapping[str, str]) -> AllocatorSettings:
    """Parse the settings of a worker with this environment.

    Raises:
        SpecError: A value that torch would refuse; names the variable.
    """
    name = next((name for name in VARIABLES if environ.get(name)), None)
    if name is None:
        return AllocatorSettings()
    try:
        return parse_settings(environ[name])
    except ValueError as error:
        raise SpecError(name, environ[name], str(error)) from None


def parse_settings(text: str) -> AllocatorSettings:
    """Parse ``expandable_segments:True,max_split_size_mb:128``.

    Options that do not change which blocks a request gets are ignored.

    Raises:
        ValueError: A value that torch would refuse.
    """
    values: dict[str, str] = {}
    for option in re.findall(r"\w+:\[[^\]]*\]|[^,]+", text.replace(" ", "")):
        key, colon, value = option.partition(":")
        if not colon:
            raise ValueError(f"{option!r} has no value: options are KEY:VALUE, with commas")
        values[key] = value
    limit = values.get("max_split_size_mb")
    return AllocatorSettings(
        expandable_segments=_flag(values.get("expandable_segments", "False")),
        max_split_bytes=None if limit is None else _max_split_bytes(limit),
        roundup_divisions=_divisions(values.get("roundup_power2_divisions", "0")),
        collect_above=_share(values.get("garbage_collection_threshold", "0")),
    )


def _flag(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError("expandable_segments is True or False")
    return text == "True"


def _max_split_bytes(text: str) -> int:
    count = int(text) * MIB
    if count <= MIN_MAX_SPLIT:
        raise ValueError("max_split_size_mb is larger than 20")
    return count


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share < 1:
        raise ValueError("garbage_collection_threshold is between 0 and 1")
    return share


def _divisions(text: str) -> tuple[int, ...]:
    """Parse ``4`` for all powers, or ``[256:1,512:2,>:8]`` by power in MiB."""
    if not text.startswith("["):
        return (_power_of_two(text, least=0),) * INTERVALS
    divisions = [0] * INTERVALS
    last: int | None = None
    for entry in text.strip("[]").split(","):
        power, _, count = entry.partition(":")
        number = _power_of_two(count, least=0)
        if power == ">":
            after = 0 if last is None else last + 1
            divisions[after:] = [number] * (INTERVALS - after)
            continue
        index = min(_power_of_two(power).bit_length() - 1, INTERVALS - 1)
        # The first entry also holds for all smaller powers.
        divisions[0 if last is None else index : index + 1] = [number] * (
            index + 1 if last is None else 1
        )
        last = index
    return tuple(divisions)


def _power_of_two(text: str, least: int = 1) -> int:
    number = int(text)
    if number < least or number & (number - 1):
        raise ValueError(f"{text}: roundup_power2_divisions takes powers of two")
    return number
