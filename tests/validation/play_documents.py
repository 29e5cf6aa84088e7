"""Run every command in the documents, page by page, with small models and few steps.

`make test-documents` takes some minutes: the suite only parses the commands that measure.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.core.spec.models import parameters_of_models
from tests.test_docs_commands import PAGES, PROGRAM, ROOT, commands_in, desk, prepare_files

__all__ = ["desk"]

FEWER = {
    "--measure": ("--rounds", "1"),
    "--noise": ("--set", "model=tiny", "--set", "batch=2", "--set", "context=32", "--minutes", "2"),
    "export": ("--force",),
    "ab": ("--smallest", "80%", "--max-minutes", "0.5"),
    "gate": ("--repeat", "2"),
    "save": ("--force",),
    "run": ("batch=2", "context=32", "steps=2", "warmup=1"),
    "--repeat": ("--repeat", "2"),
    "study": ("--dry-run",),
}
"""What makes a measuring command short: of two values the last counts."""
VERDICTS = {"ab", "compare", "gate"}
"""Commands that also end with 3 and 4."""
LIVE = {"attach", "mcp", "serve", "stop", "top", "web"}
"""Commands on something that runs: tests/cli starts each."""
OF_THE_READER = {"--pid", "1204", "RUN", "precision=fp8", "precision=nvfp4"}
"""Words of commands that need Python 3.14, the reader's own runs, or a GPU."""
WITH_COMMANDS = [page for page in PAGES if any(commands_in(page))]


def shortened(words: list[str]) -> list[str]:
    """Replace large models by a small one, and long measurements by short ones."""
    kept = [word.replace("~/ml/.venv", sys.prefix) for word in words]
    if kept[:2] in (["study", "list"], ["study", "show"]):
        return kept
    added = [word for name, few in FEWER.items() if name in words for word in few]
    if words[0] == "ab" and "--" in words:
        return ["ab", "--metric", "wall", *added, *kept[1:]]
    if words[0] == "run" and words[1] in parameters_of_models():
        kept = [word for word in kept if not word.startswith("model.")]
        added = ["model=tiny", *added]
    return [*kept, *added]


def needed_before(words: list[str]) -> list[list[str]]:
    """Return what the reader of a page, or of the page before it, has done before a command."""
    if words[0] == "gate":
        return [["baseline", "save", words[1], "last"]]  # refused where the page has saved it
    if words[:2] == ["study", "show"]:
        small = ["--variant", "small", "--set", "model=tiny", "--max-minutes", "0.1"]
        return [["study", words[2], *small]]
    if words[0] in ("ab", "export") and "last" in words:
        return [["run", "tiny", *FEWER["run"]]]
    return []


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_the_page_runs(
    page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    text = (ROOT / "docs" / "how-to" / "serve.md").read_text("utf-8")
    (desk / "served.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    prepare_files(desk)
    for model in ("tiny", "examples/base.toml"):
        subprocess.run([PROGRAM, "run", model, *FEWER["run"]], check=True)
    failed = []
    for words in commands_in(page):
        if not words or words[0] in LIVE or OF_THE_READER & {*words}:
            continue
        for earlier in needed_before(words):
            subprocess.run([PROGRAM, *earlier], stdin=subprocess.DEVNULL, check=False)
        done = subprocess.run(
            [PROGRAM, *shortened(words)], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        codes = {0, 3, 4} if words[0] in VERDICTS else {0}
        if done.returncode not in codes or "Traceback" in done.stderr:
            failed.append((shlex.join(shortened(words)), done.returncode, done.stderr[-500:]))
    assert not failed, "\n".join(map(str, failed))
