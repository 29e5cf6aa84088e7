"""What a record's environment says of the machine: the few facts that headlines need.

The environment has groups: ``cpu memory system nvidia packages variables`` from the host,
``torch device settings`` from the worker, and ``missing`` with reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Environment = Mapping[str, Any]


def device_name(environment: Environment) -> str | None:
    """What the device calls itself: the GPU that was measured on, else the CPU."""
    return _fact(environment, "device", "name") or _fact(environment, "cpu", "model")


def torch_version(environment: Environment) -> str | None:
    """Version of torch in the worker."""
    return _fact(environment, "torch", "version")


def threads(environment: Environment) -> int | None:
    """Host threads that operators used; None before a worker told."""
    count = _fact(environment, "settings", "threads")
    return None if count is None else int(count)


def merged(environment: Environment, facts: Environment) -> dict[str, Any]:
    """The environment with more facts in its groups; later ones win."""
    groups = dict(environment)
    for group, values in facts.items():
        known = groups.get(group)
        groups[group] = {**known, **values} if isinstance(known, Mapping) else values
    return groups


def _fact(environment: Environment, group: str, key: str) -> str | None:
    values = environment.get(group)
    value = values.get(key) if isinstance(values, Mapping) else None
    return None if value is None else str(value)
