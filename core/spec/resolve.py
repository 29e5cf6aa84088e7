"""Resolution of typed settings to a spec that can be measured on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from ..errors import SpecError
from ..machine.devices import resolve_device
from ..record.blocks import EVERY_PASS, PASSES, PassName
from .spec import RunSpec, parse_spec


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
    spec = spec.changed(device=resolve_device(spec.device))
    for count, device in enumerate(spec.devices[1:] if spec.on_cuda else (), 1):
        try:
            resolve_device(device)
        except SpecError as error:
            allowed = f"at most {count} here, each rank has a CUDA device: {error}"
            raise SpecError("ranks", spec.ranks, allowed) from error
    return spec


def parse_passes(names: str | Sequence[str]) -> list[PassName]:
    """Passes from ``"timing,trace"`` or a list, in the order in which they run.

    Raises:
        SpecError: An unknown pass, or none; or one whose program is not installed.
    """
    texts = names.split(",") if isinstance(names, str) else list(names)
    wanted = {text.strip() for text in texts if text.strip()}
    unknown = sorted(wanted - set(EVERY_PASS))
    if unknown or not wanted:
        allowed = f"any of {', '.join(EVERY_PASS)}"
        raise SpecError("passes", unknown[0] if unknown else names, allowed)
    chosen = [row for row in PASSES.values() if row.name in wanted]
    for row in chosen:
        if row.program and shutil.which(row.program) is None:
            allowed = f"{row.program} is not on PATH: {row.remedy}, or leave this pass out"
            raise SpecError("passes", row.name, allowed)
    return [row.name for row in chosen]
