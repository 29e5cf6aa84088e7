"""Paths of studies and their files. Import-light, so that shell completion stays fast."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from sysbench.core.storage import has_folder, home


def studies_folder(root: Path | None = None) -> Path:
    """Return the folder of the studies' directories and of the user's files."""
    return (root or home()) / "studies"


def study_files() -> dict[str, Path]:
    """Return study files by name; the user's take precedence over the shipped."""
    shipped = Path(str(resources.files("sysbench.profiles") / "studies"))
    folders = (shipped, studies_folder())
    return {
        path.stem: path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.glob("*.toml"))
    }


def begun_studies(root: Path | None = None) -> list[Path]:
    """Return the folders of started studies, newest first."""
    folder = studies_folder(root)
    paths = folder.glob("*/study.json") if has_folder(folder) else ()
    newest = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [path.parent for path in newest]
