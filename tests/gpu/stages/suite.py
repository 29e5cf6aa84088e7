"""The tests marked ``gpu``, and what failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from sysbench.core.export.text_formats import escaped

from .stage import ROOT, Bench

QUICK = ("-k", "every_precision and fp32")


def lines(bench: Bench) -> Iterator[str]:
    """pytest's summary, a line a test that did not pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "--tb=line", *(QUICK if bench.is_quick else ()), "tests/gpu"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    last = ""
    for text in process.stdout:
        if text.startswith(("FAILED", "ERROR", "SKIPPED")):
            yield f"- {escaped(text.strip())}"
        last = text.strip() or last
    yield ""
    yield escaped(last) if not bench.is_null else escaped(last.partition(" in ")[0])
    if process.wait() not in (0, 5):
        raise SystemExit(f"pytest: {last}")
