"""Where studies lie: files of their description, and folders of what was begun.

Imports no more than it needs, for whoever wants names only.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from sysbench.core.storage import home


def studies_folder(root: Path | None = None) -> Path:
    """Folder of the studies' directories and of the user's files."""
    return (root or home()) / "studies"


def study_files() -> dict[str, Path]:
    """File of every study by its name; the user's studies take precedence over the shipped."""
    shipped = Path(str(resources.files("sysbench.profiles") / "studies"))
    folders = (shipped, studies_folder())
    return {
        path.stem: path
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.glob("*.toml"))
    }


def begun_studies(root: Path | None = None) -> list[Path]:
    """Folder of every study that was begun, the newest first."""
    folder = studies_folder(root)
    paths = folder.glob("*/study.json") if folder.is_dir() else ()
    newest = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [path.parent for path in newest]
