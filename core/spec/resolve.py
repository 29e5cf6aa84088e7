"""Resolution of a checked spec to one that can be measured on this machine."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import SpecError
from ..machine.devices import resolve_device
from .model_source import located
from .spec import RunSpec


def resolved(
    spec: RunSpec, find: Callable[[str], str] = resolve_device, *, python: str | None = None
) -> RunSpec:
    """The spec with ``device = auto`` replaced by the device it means here, and the code found.

    Args:
        spec: As it was asked for.
        find: `resolve_device`, or what remembers its answers.
        python: Interpreter of the workers; empty for this one (default: the chosen one).

    Raises:
        SpecError: There is no such device, or it cannot do what the spec asks; or no such code of
            an own model.
    """
    spec = located(spec.changed(device=find(spec.device)), python)
    for count, device in enumerate(spec.devices[1:] if spec.on_cuda else (), 1):
        try:
            find(device)
        except SpecError as error:
            allowed = f"at most {count} here, each rank has a CUDA device: {error}"
            raise SpecError("ranks", spec.ranks, allowed) from error
    return spec
