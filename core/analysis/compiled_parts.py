"""Modules inside compiled code: ranges relative to whatever was compiled."""

from __future__ import annotations

import numpy as np

from .nesting import NONE, Index, follow, nearest
from .notes import WHOLE_MODEL
from .trace.events import HostEvents

PART_RANGE = "part:"
"""Opens a range in generated code. One graph serves every layer, so its path starts at the
module that was compiled: which one, the ranges around the call or the forward node say."""


def with_parts(
    names: list[str], events: HostEvents, parent: Index, modules: list[str], module: Index
) -> Index:
    """Give what lies in a part's range the part's module; appends to ``modules``."""
    is_part = np.array([name.startswith(PART_RANGE) for name in names], dtype=np.bool_)
    if not is_part.any():
        return module
    part = follow(nearest(is_part[events.name], parent), events.name)
    inside = np.flatnonzero(part != NONE)
    pairs, which = np.unique(np.stack((module[inside], part[inside])), axis=1, return_inverse=True)
    known = {path: index for index, path in enumerate(modules)}
    ids = []
    for outer, inner in pairs.T.tolist():
        around = modules[outer] if outer != NONE else WHOLE_MODEL
        path = _joined(around, names[inner].removeprefix(PART_RANGE))
        ids.append(known.setdefault(path, len(modules)))
        if ids[-1] == len(modules):
            modules.append(path)
    result = module.copy()
    result[inside] = np.array(ids, dtype=np.int64)[which.reshape(-1)]
    return result


def _joined(outer: str, inner: str) -> str:
    return inner if outer == WHOLE_MODEL else f"{outer}.{inner}"
