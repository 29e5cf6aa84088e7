"""Folders of experiments and baselines.

Import-light, so that shell completion stays fast.
"""

from __future__ import annotations

from pathlib import Path

from sysbench.core.storage import has_folder, home


def experiments_folder(root: Path | None = None) -> Path:
    return (root or home()) / "experiments"


def experiment_folders(root: Path | None = None) -> list[Path]:
    folder = experiments_folder(root)
    if not has_folder(folder):
        return []
    return sorted((path.parent for path in folder.glob("*/experiment.json")), reverse=True)


def baselines_folder(root: Path | None = None) -> Path:
    return (root or home()) / "baselines"
