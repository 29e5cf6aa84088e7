"""The dependencies of the program but torch, a line each: for a machine that only reads.

``python -P .ci/without_torch.py > requirements.txt``, then
``pip install -c constraints.txt -r requirements.txt`` and ``pip install --no-deps .``.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def reading_requirements() -> list[str]:
    """The requirements of pyproject.toml without torch's."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    requirements: list[str] = project["dependencies"]
    return [line for line in requirements if re.split(r"[^\w-]", line)[0] != "torch"]


if __name__ == "__main__":
    print(*reading_requirements(), sep="\n")
