"""Where the null GPU stands, and what a process needs to see it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "NULL_GPU_VENV"
SETTING = "NULL_GPU_"
MARK = "(null GPU)"
"""Follows the card's name wherever the driver gives it; the worker reports it as simulated."""


@dataclass(frozen=True)
class Place:
    """A virtual environment with a CUDA build of torch, and the libraries that stand in for CUDA.

    Attributes:
        folder: The virtual environment's; the libraries are in its ``null/lib``.
    """

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def libraries(self) -> Path:
        return self.folder / "null" / "lib"

    @property
    def headers(self) -> Path:
        return self.folder / "null" / "include"

    @property
    def is_built(self) -> bool:
        return self.python.exists() and (self.libraries / "done").exists()

    @property
    def site(self) -> Path:
        """The environment's ``site-packages``.

        Raises:
            FileNotFoundError: There is no environment in the folder.
        """
        found = sorted(self.folder.glob("lib/python3*/site-packages"))
        if not found:
            raise FileNotFoundError(self.folder)
        return found[0]

    def environment(self, **settings: object) -> dict[str, str]:
        """Variables to add for a process that is to see null GPUs.

        Args:
            settings: Of the README's table, in lower case without ``NULL_GPU_``.
        """
        return {
            "LD_LIBRARY_PATH": str(self.libraries),
            "TRITON_LIBCUDA_PATH": str(self.libraries),
            **{SETTING + name.upper(): str(value) for name, value in settings.items()},
        }


def is_null(name: str) -> bool:
    """Whether a device's name is that of a null GPU."""
    return name.endswith(MARK)


def place() -> Place:
    """The place that ``NULL_GPU_VENV`` names, or ``.null-gpu`` beside the checkout's files."""
    return Place(Path(os.environ.get(VARIABLE) or ROOT / ".null-gpu").absolute())
