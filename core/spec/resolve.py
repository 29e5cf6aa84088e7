"""Resolution of a checked spec to one that can be measured on this machine."""

from __future__ import annotations

from collections.abc import Callable

from sysbench.core.errors import ClusterError, SpecError
from sysbench.core.machine.devices import resolve_device
from sysbench.core.machine.node import hosts_of, shares
from sysbench.core.spec.model_source import located
from sysbench.core.spec.spec import RunSpec


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
    try:
        hosts = max(1, len(hosts_of(spec.ranks)))
    except ClusterError as error:
        raise SpecError("ranks", spec.ranks, f"1 here: {error}") from error
    most = shares(spec.ranks, hosts)[0]
    for count, device in enumerate(spec.devices[1:most] if spec.on_cuda else (), 1):
        try:
            find(device)
        except SpecError as error:
            where = "here" if hosts == 1 else f"on {hosts} nodes like this one"
            allowed = f"at most {count * hosts} {where}, each rank has a CUDA device: {error}"
            raise SpecError("ranks", spec.ranks, allowed) from error
    return spec
