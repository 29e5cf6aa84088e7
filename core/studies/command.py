"""The command that runs a study again, from what differs between it and its file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from ..errors import SysbenchError
from .file.schema import load_study, study_files
from .file.study import Study
from .run.grid import with_variant


def study_command(study: Study) -> str:
    """``sysbench-tui study precision --variant small --set model=tiny``."""
    return shlex.join(["sysbench-tui", "study", _name(study), *_options(study)])


def _name(study: Study) -> str:
    """The name where it finds the file, else the file."""
    known = study_files().get(study.name)
    return study.name if known is not None and str(known) == study.file else study.file


def _options(study: Study) -> Iterator[str]:
    if study.variant:
        yield from ("--variant", study.variant)
    try:
        original = with_variant(load_study(Path(study.file)), study.variant)
    except SysbenchError:
        # The file is gone or another one by now: what was changed cannot be told.
        return
    for axis in study.axes:
        if axis != original.axis(axis.name):
            yield from ("--set", f"{axis.name}={','.join(axis.labels)}")
    for key, value in study.fixed.items():
        if original.fixed.get(key) != value:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield from ("--set", f"{key}={text}")
