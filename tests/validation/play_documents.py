"""Run every command in the documents, with small models and few steps; studies are only planned.

`make test-documents` takes some minutes: the suite only parses the commands that measure.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from sysbench.core.spec.models import parameters_of_models
from tests.test_docs_commands import COMMANDS, PROGRAM, ROOT, desk, prepare_files

__all__ = ["desk"]

FEWER = {
    "--measure": ("--rounds", "1"),
    "--noise": ("--minutes", "0.2"),
    "export": ("--force",),
    "ab": ("--smallest", "80%", "--max-minutes", "0.5"),
    "gate": ("--repeat", "2"),
    "run": ("batch=2", "context=32", "steps=2", "warmup=1", "--repeat", "2"),
    "study": ("--dry-run",),
}
"""What makes a measuring command short: of two values the last counts."""
VERDICTS = {"ab", "compare", "gate"}
"""Commands that also end with 3 and 4."""
LIVE = {"attach", "mcp", "serve", "stop", "top", "web"}
"""Commands on something that runs: tests/cli starts each. Others that are left out need Python 3.14
(`watch --pid`), a GPU (fp8), or the reader's own runs (`compare 1204 1211`)."""


def shortened(words: tuple[str, ...]) -> list[str]:
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


def test_every_command_of_the_documents_runs(desk: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text("utf-8")
    (desk / "served.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    prepare_files(desk)
    program = Path(sys.executable).with_name(PROGRAM)
    for line in (["run", "tiny", *FEWER["run"]], ["run", "examples/base.toml", *FEWER["run"]]):
        subprocess.run([program, *line], check=True, stdout=subprocess.DEVNULL)
    failed = []
    for words in COMMANDS:
        if words[0] in LIVE or {"--pid", "1204", "RUN", "precision=fp8"} & {*words}:
            continue
        done = subprocess.run(
            [program, *shortened(words)], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        codes = {0, 3, 4} if words[0] in VERDICTS else {0}
        if done.returncode not in codes or "Traceback" in done.stderr:
            failed.append((shlex.join(shortened(words)), done.returncode, done.stderr[-500:]))
    assert not failed, "\n".join(map(str, failed))
