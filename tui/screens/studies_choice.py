"""The list of the Studies screen: profiles by name, then studies that were begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sysbench.core.machine.devices import resolve_device
from sysbench.core.studies.schema import load_study, study_files
from sysbench.core.studies.study_directory import list_studies
from sysbench.core.studies.study_file import Study

SMALL = "small"
"""The variant that a CPU can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One line of the list.

    Attributes:
        label: The text of the line.
        load: Reads the study; raises SysbenchError where it cannot be read.
        is_profile: Whether it is a file, which has several sizes; else a study that was begun.
        is_live: Whether a runner is at work on it.
    """

    label: str
    load: Callable[[], Study]
    is_profile: bool = False
    is_live: bool = False


def choices() -> dict[str, Choice]:
    """Every choice by its key: the profiles, then the studies that were begun, newest first."""
    profiles = {
        f"file-{name}": Choice(label=name, load=partial(load_study, name), is_profile=True)
        for name in study_files()
    }
    begun = {}
    for directory in list_studies():
        is_live = directory.is_live()
        label = f"{'●' if is_live else '↳'} {directory.id}"
        begun[f"begun-{directory.id}"] = Choice(label=label, load=directory.study, is_live=is_live)
    return profiles | begun


def suggested_variant(study: Study) -> str:
    """The small variant where there is no CUDA device, if the study has one."""
    return SMALL if SMALL in study.variants and resolve_device("auto") == "cpu" else ""
