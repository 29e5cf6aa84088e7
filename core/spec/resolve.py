"""From what a person typed to a spec that can be measured on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from ..errors import SpecError
from ..machine.devices import resolve_device
from .spec import EVERY_PASS, PassName, RunSpec, parse_spec


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
        SpecError: An unknown pass, or none; or nsys where it is not installed.
    """
    asked = names.split(",") if isinstance(names, str) else list(names)
    wanted = {name.strip() for name in asked if name.strip()}
    unknown = sorted(wanted - set(EVERY_PASS))
    if unknown or not wanted:
        allowed = f"any of {', '.join(EVERY_PASS)}"
        raise SpecError("passes", unknown[0] if unknown else names, allowed)
    if "nsys" in wanted and shutil.which("nsys") is None:
        raise SpecError(
            "passes",
            "nsys",
            "nsys is not on PATH: install nsight-systems-cli (NVIDIA) or nsight-systems (Debian "
            "non-free), or leave this pass out",
        )
    return [name for name in EVERY_PASS if name in wanted]
