"""The changelog's part on one version: ``python -P .ci/release_notes.py v0.2.0``.

Used by the release workflow. Fails if the tag is not the version in pyproject.toml, or if the
changelog has no such part.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def release_notes(tag: str, pyproject: str, changelog: str) -> str:
    """The text under the heading of the version in pyproject.toml.

    Args:
        tag: ``v`` and the version.
        pyproject: Text of pyproject.toml, the one place of the version.
        changelog: Text of CHANGELOG.md.

    Raises:
        ValueError: The tag names another version, or the changelog does not have this one.
    """
    version: str = tomllib.loads(pyproject)["project"]["version"]
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, pyproject.toml has version {version}")
    heading = re.compile(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if (match := heading.search(changelog)) is None:
        raise ValueError(f"CHANGELOG.md has no heading '## {version} - YYYY-MM-DD'")
    return changelog[match.end() :].partition("\n## ")[0].strip() + "\n"


def main() -> int:
    """Print the notes; the exit code is 1 with a message if there are none."""
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "CHANGELOG.md")]
    try:
        print(release_notes(sys.argv[1], *texts), end="")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
