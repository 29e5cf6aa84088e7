"""`examples/ci`, copied into an empty repository and played as GitHub's runner plays it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from sysbench.core.experiments.baselines import load_baseline, save_baseline
from sysbench.core.record.record import Record
from sysbench.core.storage import HOME_VARIABLE

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
EXAMPLE = ROOT / "examples" / "ci"
CLI = shlex.join((sys.executable, "-P", "-m", "sysbench.tui.cli"))
HOSTED = ("actions/checkout@v5", "actions/setup-python@v6")
"""Actions that prepare the machine; there is nothing to prepare here."""

GH = """#!/bin/sh
case "$1 $2" in
  "run list") echo 42 ;;
  "run download") cp "$ARTIFACTS/gate-baseline" baseline.json ;;
  "pr comment") while [ "$1" != --body-file ]; do shift; done; cp "$2" "$ARTIFACTS/comment.md" ;;
  *) exit 64 ;;
esac
"""


class Runner:
    """Runs the steps of a job in an empty repository with the example's files."""

    def __init__(self, folder: Path) -> None:
        self.repository, self.artifacts = folder / "repository", folder / "artifacts"
        for path in (self.repository, self.artifacts, folder / "bin", folder / "temp"):
            path.mkdir()
        shutil.copy(EXAMPLE / "gate.toml", self.repository)
        workflows = self.repository / ".github" / "workflows"
        workflows.mkdir(parents=True)
        shutil.copy(EXAMPLE / "workflow.yml", workflows / "gate.yml")
        self.workflow = yaml.safe_load((workflows / "gate.yml").read_text())
        self._program(folder / "bin" / "sysbench-tui", f'#!/bin/sh\nexec {CLI} "$@"\n')
        self._program(folder / "bin" / "gh", GH)
        self.folder = folder

    def _program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def job(self, name: str) -> int:
        """Return the exit code of the first step that fails the job, else 0."""
        known = {"github.token": "token", "github.event.number": "7"}
        for step in self.workflow["jobs"][name]["steps"]:
            code = self._step(step, known)
            if code and not step.get("continue-on-error"):
                return code
        return 0

    def _step(self, step: dict[str, Any], known: dict[str, str]) -> int:
        uses, given = step.get("uses", ""), step.get("with", {})
        if uses in HOSTED:
            return 0
        if uses.startswith("actions/upload-artifact@"):
            shutil.copy(self.repository / given["path"], self.artifacts / given["name"])
            return 0
        if not uses:
            return self._shell(step, known)[0]
        assert uses == "OWNER/sysbench-tui/.github/actions/gate@main"
        action = yaml.safe_load(ACTION.read_text())
        assert given.keys() <= action["inputs"].keys()
        inputs = {key: str(row.get("default", "")) for key, row in action["inputs"].items()}
        inputs |= {key: str(value) for key, value in given.items()}
        inputs["repeat"] = "4"
        (measure,) = [row for row in action["runs"]["steps"] if row.get("id") == "measure"]
        code, outputs = self._shell(measure, {f"inputs.{key}": x for key, x in inputs.items()})
        known |= {f"steps.{step.get('id')}.outputs.{key}": x for key, x in outputs.items()}
        return code

    def _shell(self, step: dict[str, Any], known: dict[str, str]) -> tuple[int, dict[str, str]]:
        def value(text: str) -> str:
            return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], str(text))

        output = self.folder / "output.txt"
        output.write_text("")
        environment = {
            **os.environ,
            **{name: value(text) for name, text in step.get("env", {}).items()},
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "ARTIFACTS": str(self.artifacts),
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
        }
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        code = subprocess.run(words, env=environment, cwd=self.repository, check=False).returncode
        lines = output.read_text().splitlines()
        return code, dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A repository whose main branch has a measured baseline."""
    folder = tmp_path_factory.mktemp("ci")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(folder / "home"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        runner = Runner(folder)
        spec = runner.repository / "gate.toml"
        short = 'device = "cpu"\nstep = "inference"\nsteps = 8\nwarmup = 1\n'
        spec.write_text(spec.read_text() + short)
        assert runner.job("baseline") == 0
    return runner


def scaled(value: Any, factor: float) -> Any:
    """Multiply all times in milliseconds."""
    if isinstance(value, list):
        return [scaled(one, factor) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _times(inner, factor) if key.endswith("_ms") else scaled(inner, factor)
        for key, inner in value.items()
    }


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, int | float):
        return value * factor
    return [_times(one, factor) for one in value] if isinstance(value, list) else value


def test_the_install_line_installs_the_checkout_of_the_action() -> None:
    step, _ = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    place = re.search(r'pip install "\$GITHUB_ACTION_PATH/([./]+)"', step["run"])
    assert place is not None
    assert (ACTION.parent / place[1] / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("factor", "torch", "code", "word"),
    [
        (5.0, "", 0, "pass"),
        (0.2, "", 3, "regression"),
        (1.0, "1.0.0", 0, "not decidable"),
    ],
)
def test_a_pull_request_is_judged_against_the_artifact_of_main(
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    torch: str,
    code: int,
    word: str,
) -> None:
    """The baseline of main is as fast as it was, five times slower, or of another torch."""
    monkeypatch.setenv(HOME_VARIABLE, str(runner.folder / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    artifact = runner.artifacts / "gate-baseline"
    measured = artifact.read_bytes()
    record = msgspec.to_builtins(load_baseline("gate", file=artifact).record)
    if torch:
        record["environment"]["torch"]["version"] = torch
        record["environment"]["packages"]["torch"] = torch
    try:
        other = msgspec.convert(scaled(record, factor), type=Record)
        save_baseline("gate", other, file=artifact, force=True)
        assert runner.job("gate") == code
    finally:
        artifact.write_bytes(measured)
    comment = (runner.artifacts / "comment.md").read_text()
    assert f"{word}" in comment
    assert comment in (runner.folder / "summary.md").read_text()
