"""What else of the home refers to a run: said before it is deleted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sysbench.core.errors import DamagedFileError
from sysbench.core.experiments.baselines import list_baselines
from sysbench.core.experiments.experiment import list_experiments
from sysbench.core.studies.study_directory import studies_with


def uses_of(run_id: str, root: Path | None = None) -> list[str]:
    """Experiments, studies and baselines that a run belongs to, each with what its loss costs."""
    words = []
    for experiment in list_experiments(root):
        with suppress(DamagedFileError):
            decided = experiment.experiment()
            if run_id in (decided.a, decided.b):
                words.append(f"experiment {experiment.id}, which loses the rounds of a side")
    words += [
        f"study {study.id}, which runs its cell again" for study in studies_with(run_id, root)
    ]
    words += [
        f"baseline {listed.name}, which keeps its own copy"
        for listed in list_baselines(root)
        if listed.baseline is not None and listed.baseline.run == run_id
    ]
    return words
