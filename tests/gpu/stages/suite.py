"""The tests marked ``gpu``, and what failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from sysbench.core.export.text_formats import escaped
from tests.gpu.stages.stage import ROOT, Bench

MARK = "pytest.mark.gpu"
NOTHING_LEFT = 5
"""pytest's exit code where no test was selected."""
QUICK = ("-k", "every_precision and fp32")


def lines(bench: Bench) -> Iterator[str]:
    """A line a test that did not pass, as it ends, and how many did; those are left out later."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider"]
    # Only files with such tests: a box may lack what the others import.
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text()]
    kept = bench.folder / f"{bench.stage}.passed"
    before = kept.read_text().splitlines() if kept.is_file() else []
    deselected = [part for name in before for part in ("--deselect", name)]
    process = subprocess.Popen(
        [
            *(*command, "--tb=line", *(QUICK if bench.is_quick else ())),
            *(*deselected, *map(str, sorted(files))),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    passed = len(before)
    for text in process.stdout:
        name, _, outcome = text.partition(" ")
        if outcome.startswith("PASSED"):
            passed += 1
            with kept.open("a") as file:
                file.write(f"{name}\n")
        elif text.startswith(("FAILED", "ERROR", "SKIPPED")):
            yield f"- {escaped(text.strip())}"
        elif outcome.startswith(("FAILED", "ERROR")):
            yield f"- {escaped(name)} did not pass"
    yield ""
    yield f"{passed} passed."
    code = process.wait()
    if code not in (0, NOTHING_LEFT):
        raise SystemExit(f"pytest ended with {code}")
