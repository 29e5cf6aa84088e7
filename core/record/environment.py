"""Read facts of the machine from a record's environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Environment = Mapping[str, Any]

CHANGED_SETTINGS = "changed_settings"
"""Group: torch's settings that the measured code changed, as ``asked`` and ``in_force``."""
LEFT_OUT = "left_out"
"""Group: devices of the machine that no run could use, with the reason."""
SDPA_KERNEL = "sdpa_kernel"
"""Setting: the kernel that torch chose for its fused attention."""


def device_name(environment: Environment) -> str | None:
    return _fact(environment, "device", "name") or _fact(environment, "cpu", "model")


def is_simulated(environment: Environment) -> bool:
    """Return whether the device computes nothing, like the null GPU of tests."""
    device = environment.get("device")
    return isinstance(device, Mapping) and device.get("is_simulated") is True


def compute_capability(environment: Environment) -> str | None:
    """Return the GPU's compute capability, such as ``9.0``; None on the CPU or if unknown."""
    return _fact(environment, "device", "compute_capability")


def torch_version(environment: Environment) -> str | None:
    return _fact(environment, "torch", "version")


def threads(environment: Environment) -> int | None:
    """Return the host threads of operators; None before a worker reported them."""
    count = _fact(environment, "settings", "threads")
    return int(count) if count is not None and count.isdecimal() else None


def sdpa_kernel(environment: Environment) -> str | None:
    """Return the kernel that ``sdpa`` used: ``cudnn``, ``flash`` …; None without sdpa."""
    return _fact(environment, "settings", SDPA_KERNEL)


def changed_settings(environment: Environment) -> dict[str, tuple[Any, Any]]:
    """Return torch's settings that the measured code changed: asked for, and in force."""
    rows = environment.get(CHANGED_SETTINGS)
    return {
        name: (row.get("asked"), row.get("in_force"))
        for name, row in (rows.items() if isinstance(rows, Mapping) else ())
        if isinstance(row, Mapping)
    }


def left_out_gpu(environment: Environment) -> str:
    """Return the reason why no run could use the machine's GPU; empty if one could, or has none."""
    return _fact(environment, LEFT_OUT, "gpu") or ""


def attention_words(attention: str, environment: Environment) -> str:
    """Return ``sdpa (cudnn)``: the spec's attention, with the kernel that torch chose."""
    kernel = sdpa_kernel(environment)
    return f"{attention} ({kernel})" if kernel else attention


def instruction_set(environment: Environment) -> str | None:
    """Return the instruction sets of torch's and oneDNN's kernels, if known; None on a GPU."""
    kernels = _fact(environment, "torch", "cpu_capability")
    onednn = _fact(environment, "torch", "onednn_instructions")
    names = [*([kernels] if kernels else []), *([f"oneDNN {onednn}"] if onednn else [])]
    return ", ".join(names) or None


def node(environment: Environment) -> str | None:
    """Return the digits of the cluster's node with the job's GPUs there: ``3f2a91 gpu 2``.

    For ranks on several nodes it is ``3f2a91+77aa01`` with the first node's GPUs. None outside a
    cluster's job.
    """
    digits, gpus = _fact(environment, "cluster", "node"), _fact(environment, "cluster", "gpus")
    digits = "+".join(nodes(environment)) or digits
    return f"{digits} gpu {gpus}" if digits and gpus else digits


def nodes(environment: Environment) -> list[str]:
    """Return the digits of the nodes of the ranks; empty on a single host."""
    names = _fact(environment, "cluster", "nodes")
    return names.split(",") if names else []


def own_parameters(environment: Environment) -> int:
    """Return the parameters of a user's model; 0 for others and before the worker's report."""
    count = _fact(environment, "model", "parameters")
    return int(count) if count is not None and count.isdecimal() else 0


def machine(environment: Environment) -> dict[str, str | int | None]:
    """Return the facts that identify a machine: device, torch and host threads."""
    return {
        "device_name": device_name(environment),
        "torch": torch_version(environment),
        "threads": threads(environment),
    }


def capacity_bytes(environment: Environment, spec: Mapping[str, Any]) -> int | None:
    """Return the memory of the run's device, or of the host for a run on the CPU, if known."""
    groups = {"cpu": ("memory", "capacity_bytes")}
    group, key = groups.get(str(spec.get("device")), ("device", "memory_total_bytes"))
    values = environment.get(group)
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, int) else None


def other_facts(environment: Environment) -> dict[str, str]:
    """Return all other facts that stay the same between two runs, as text by dotted name."""
    named = {"device.name", "torch.version", "packages.torch", "settings.threads"}
    named.add(f"settings.{SDPA_KERNEL}")
    passing = (f"{FLOAT8}.", "missing.", "cpu.load_average", "rates.", f"{CHANGED_SETTINGS}.")
    return {
        name: text
        for name, text in _flat(environment, "")
        if name not in named and not name.startswith(passing)
    }


def _flat(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield name, str(value)


def merge_environments(environment: Environment, facts: Environment) -> dict[str, Any]:
    """Add facts to the environment's groups; later ones win."""
    groups = dict(environment)
    for group, values in facts.items():
        before = groups.get(group)
        groups[group] = {**before, **values} if isinstance(before, Mapping) else values
    return groups


def _fact(environment: Environment, group: str, key: str) -> str | None:
    values = environment.get(group)
    value = values.get(key) if isinstance(values, Mapping) else None
    return None if value is None else str(value)


class LinearLayers(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers of one place in the blocks and one size, and whether they are converted.

    Attributes:
        name: Path of the module, with ``*`` for the index of a block.
        why_not: Why they were not converted; empty for converted ones.
    """

    name: str
    layers: int
    in_features: int
    out_features: int
    why_not: str = ""


FLOAT8 = "float8"
"""Group of the environment with the library, the recipe and the ``layers`` of a converted model."""


def linear_layers(environment: Environment) -> list[LinearLayers]:
    """Return the layers of a converted model; none for others."""
    group = environment.get(FLOAT8)
    rows = group.get("layers") if isinstance(group, Mapping) else None
    return msgspec.convert(rows or [], list[LinearLayers])


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """Compute and memory ceilings of a device, with their sources.

    ``peak_flops`` is dense, in FLOP/s, for matrix products of ``precision``; ``bandwidth`` is of
    the device's memory, in bytes/s, null if no source has it. If these were measured, the two
    ``quoted`` figures are the vendor's, null if there are none. ``attention_flops`` is the peak for
    fused attention if that may multiply in another format, else null: in ``fp32`` the
    memory-efficient kernel computes three TF32 products per product, so only the TF32 peak is a
    safe bound.
    """

    precision: str
    peak_flops: float
    peak_source: str
    bandwidth: float | None = None
    bandwidth_source: str = ""
    quoted_flops: float | None = None
    quoted_bandwidth: float | None = None
    attention_flops: float | None = None

    @property
    def upper_flops(self) -> float:
        """FLOP/s that cannot be exceeded: the vendor's figure if there is one."""
        return max(self.peak_flops, self.quoted_flops or 0.0)

    def of(self, category: str) -> Roof:
        """Return the roof of a kernel of that category."""
        if category != "attention" or self.attention_flops is None:
            return self
        source = f"{self.peak_source}; fused attention by the TF32 peak"
        return msgspec.structs.replace(
            self,
            peak_flops=self.attention_flops,
            peak_source=source,
            quoted_flops=None,
            attention_flops=None,
        )

    @property
    def ridge(self) -> float | None:
        """Arithmetic intensity, in FLOP/byte, above which the peak is the bound."""
        return self.peak_flops / self.bandwidth if self.bandwidth else None
