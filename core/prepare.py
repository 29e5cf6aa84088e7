"""From what a person typed to a spec that can be measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from .devices import resolve_device
from .errors import SpecError
from .spec import PASSES, PassName, RunSpec, parse_spec


def prepare(settings: Mapping[str, object]) -> RunSpec:
    """A checked spec whose device exists here.

    Raises:
        SpecError: Names the field, its value and what is allowed.
    """
    return resolved(parse_spec(settings))


def resolved(spec: RunSpec) -> RunSpec:
    """The spec with ``device = auto`` replaced by the device it means here.

    Raises:
        SpecError: There is no such device, or it cannot do what the spec asks.
    """
    return spec.changed(device=resolve_device(spec.device))


def parse_passes(names: str | Sequence[str]) -> list[PassName]:
    """Passes from ``"timing,trace"`` or a list, in the order in which they run.

    Raises:
        SpecError: An unknown pass, or none.
    """
    asked = names.split(",") if isinstance(names, str) else list(names)
    wanted = {name.strip() for name in asked if name.strip()}
    unknown = sorted(wanted - set(get_args(PassName)))
    if unknown or not wanted:
        raise SpecError("passes", unknown[0] if unknown else names, f"any of {', '.join(PASSES)}")
    return [name for name in PASSES if name in wanted]
