"""Format a spec as the shell command that runs it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import BINARY_UNITS
from sysbench.core.record.blocks import PASSES
from sysbench.core.spec.spec import RunSpec


def command_line(
    spec: RunSpec,
    passes: Sequence[str] | None = None,
    repeat: int = 1,
    python: str = "",
    watch_options: Sequence[str] = (),
) -> str:
    """Return the command that runs the same spec; by default with its default passes.

    Args:
        repeat: Rounds of the timing pass.
        python: Interpreter of the workers; empty for the program's own.
        watch_options: Of `watch`, before a user's command.
    """
    if spec.is_job:
        watch = shlex.join(("sysbench-tui", "watch", *watch_options))
        return f"{watch} -- {job_command(msgspec.to_builtins(spec))}"
    words = ["sysbench-tui", "run"]
    settings = spec.settings()
    if (model := settings.pop("model", None)) is not None:
        words.append(str(model))
    words += [f"{name}={as_typed(name, value)}" for name, value in settings.items()]
    if passes is not None and tuple(passes) != spec.default_passes:
        words += ["--passes", ",".join(passes)]
    if repeat > 1:
        words += ["--repeat", str(repeat)]
    if python:
        words += ["--python", python]
    return shlex.join(words)


def estimate_command(spec: RunSpec, card: str, world: str = "") -> str:
    """Return the command that predicts the spec, on a card that need not be here if it is named."""
    options = f" --world {world}" if world else ""
    if not card:
        return command_line(spec).replace(" run", f" estimate{options}", 1)
    words = command_line(spec.changed(device="auto"))
    return words.replace(" run", f" estimate --card {card}{options}", 1)


WINDOWS = {"kernels": ("--window", "10:3"), "memory": ("--memory", "10:1")}
"""Options of `watch` that record a block which it does not record by itself."""


def measuring_command(spec: RunSpec, block: str) -> str:
    """Return the command that records this block of the spec's record; empty if nothing can."""
    if spec.is_job:
        return command_line(spec, watch_options=WINDOWS[block]) if block in WINDOWS else ""
    passes = [row.name for row in PASSES.values() if block in row.blocks]
    changes: dict[str, object] = {}
    if block == "compile":
        changes = {"compile": "default"}
    elif block == "distributed":
        changes = {"ranks": 2, "parallel": "ddp"}
    elif block == "telemetry":
        passes = []
    try:
        return command_line(spec.changed(**changes), passes or None) if block != "job" else ""
    except SpecError:
        return ""


def job_command(spec: Mapping[str, Any]) -> str:
    """Return the words of a watched command as a shell takes them, not escaped for display."""
    try:
        return shlex.join(map(str, json.loads(str(spec.get("command")))))
    except (ValueError, TypeError):  # a record that somebody edited
        return str(spec.get("command"))


def as_typed(name: str, value: object) -> str:
    """Format a value as a user would type it after ``KEY=``; parses back to the same."""
    if isinstance(value, bool):
        return str(value).lower()
    if name == "memory_limit" and isinstance(value, int) and value:
        for unit in ("GiB", "MiB", "KiB"):
            if value % BINARY_UNITS[unit] == 0:
                return f"{value // BINARY_UNITS[unit]}{unit}"
    return str(value)
