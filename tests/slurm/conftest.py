"""The Slurm that tests of one file share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.daemons import running


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Variables of a Slurm of two nodes."""
    pytest.importorskip("submitit")
    # The path of a socket has 108 characters, fewer than pytest's folders take.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder)) as environment:
            yield environment
