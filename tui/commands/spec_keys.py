"""The keys of a spec as `--help` lists them: no more is imported than that needs."""

from __future__ import annotations

import textwrap

from ...core.spec.fields import FIELDS
from ...core.spec.spec import DIMENSION_NAMES, RunSpec


def spec_keys() -> str:
    """Every key of a spec with its default, what it means and what it may hold."""
    default = RunSpec()
    lines = ["keys of a spec, for --set and TOML, with their defaults:"]
    for field in FIELDS:
        value = getattr(default, field.name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        key = field.name if field.name in DIMENSION_NAMES else f"{field.name}={text}"
        lines += textwrap.wrap(
            f"{field.help}: {field.allowed}",
            width=100,
            initial_indent=f"  {key:<26}",
            subsequent_indent=" " * 28,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
