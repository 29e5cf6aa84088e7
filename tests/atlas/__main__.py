"""`make atlas`: run sick and healthy trainings under `watch`, and count what the rules find.

``python -m tests.atlas [SCRIPT…]`` runs all or some, and writes docs/validation/atlas.md from all
runs in the folder; ``--findings`` only applies the rules again to the runs that are there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from sysbench.core.findings.findings_rules import findings_of
from sysbench.core.record.record import Finding
from sysbench.core.runs.run_directory import newest_run
from sysbench.core.storage import HOME_VARIABLE
from tests.atlas.diseases import DISEASES, OF_MEASURING, UNSEEN, Disease
from tests.null_gpu.place import place

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "atlas"
PAGE = ROOT / "docs" / "validation" / "atlas.md"
WINDOW = "14:3"
LAUNCHES = """
import time, torch
number, least = torch.zeros(8, device="cuda"), 1.0
for _ in range(9):
    began = time.perf_counter()
    for _ in range(1000):
        number.add_(1)
    least = min(least, time.perf_counter() - began)
print(least)
"""
PACE_PER_MS = 8.0
"""Factor by which kernels of a null GPU take longer, for each millisecond of 1,000 launches."""
MARK, END = "<!-- atlas -->", "<!-- end of atlas -->"
VARIANTS = ("sick", "healthy")
GOAL = 0.9


@cache
def pace() -> int:
    """Factor by which kernels of a null GPU take longer, so that this CPU launches them in time."""
    null = place()
    environ = {**os.environ, **null.environment(pace=0.001)}
    done = subprocess.run(
        [null.python, "-c", LAUNCHES], env=environ, capture_output=True, text=True, check=True
    )
    return round(PACE_PER_MS * 1e3 * float(done.stdout))


def command(disease: Disease, variant: str) -> list[str]:
    """The user's command, without `watch`."""
    script = ["-m", f"tests.atlas.scripts.{disease.script}"]
    script += ["--healthy"] if variant == "healthy" else []
    if disease.where == "ranks":
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [sys.executable, *launcher, *script]
    if disease.where == "cpu":
        return [sys.executable, *script]
    null = place()
    own = null.environment(board=f"{disease.script}-{variant}", pace=pace())
    settings = [f"{name}={value}" for name, value in own.items()]
    return ["env", *settings, str(null.python), *script]


def home(disease: Disease, variant: str) -> Path:
    return FOLDER / f"{disease.script}-{variant}"


def run(disease: Disease, variant: str, window: str = WINDOW) -> str:
    """Run a script under `watch`; return a line about it."""
    watch = [sys.executable, "-P", "-m", "sysbench.tui.cli", "watch", "--quiet"]
    words = [*watch, "--window", window, "--", *command(disease, variant)]
    folder = home(disease, variant)
    shutil.rmtree(folder, ignore_errors=True)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", HOME_VARIABLE: str(folder)}
    began = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True)
    name = f"{disease.script} {variant}"
    if done.returncode:
        return f"{name}: it ended with code {done.returncode}\n{done.stderr[-1500:]}"
    rules = [finding.rule for finding in spoken(disease, variant) or ()]
    return f"{name}, {time.monotonic() - began:.0f} s: {' '.join(rules)}"


def spoken(disease: Disease, variant: str) -> list[Finding] | None:
    """Findings on what the script does; None if it did not run to its end."""
    found = newest_run(home(disease, variant))
    if found is None or (record := found.record()).job is None:
        return None
    return [row for row in findings_of(record) if row.rule not in OF_MEASURING]


def table(of: Sequence[Disease], runs_of: Mapping[str, Mapping[str, Sequence[Finding]]]) -> str:
    """The page's tables of some scripts: by rule, and by script."""
    diseases = [disease for disease in of if disease.script in runs_of]
    found = {disease.script: runs_of[disease.script] for disease in diseases}
    rules = sorted(
        {rule for disease in diseases for rule in disease.rules}
        | {finding.rule for runs in found.values() for row in runs.values() for finding in row}
    )
    lines = ["| rule | sick | found | missed | of other sick | of healthy | precision | recall |"]
    lines.append("|---|---:|---:|---|---|---|---:|---:|")
    scripts = {
        variant: {name: {row.rule for row in found[name].get(variant, ())} for name in found}
        for variant in VARIANTS
    }
    below = []
    for rule in rules:
        own = [
            disease.script
            for disease in diseases
            if rule in disease.rules and "sick" in found[disease.script]
        ]
        both = [disease.script for disease in diseases if rule in disease.both]
        may = [*both, *(disease.script for disease in diseases if rule in disease.follows)]
        hits = [name for name in own if rule in scripts["sick"][name]]
        missed = [name for name in own if name not in hits]
        others = [
            name
            for name, spoke in scripts["sick"].items()
            if rule in spoke and name not in (*own, *may)
        ]
        healthy = [
            name for name, spoke in scripts["healthy"].items() if rule in spoke and name not in both
        ]
        spoke_in = len(hits) + len(others) + len(healthy)
        precision = f"{len(hits) / spoke_in:.2f}" if spoke_in else "–"
        recall = f"{len(hits) / len(own):.2f}" if own else "–"
        columns = [
            *(rule, str(len(own)), str(len(hits)), ", ".join(missed), ", ".join(others)),
            *(", ".join(healthy), precision, recall),
        ]
        if any(value != "–" and float(value) < GOAL for value in (precision, recall)):
            below.append(rule)
        lines.append(f"| {' | '.join(columns)} |")
    lines += ["", f"Below {GOAL}: {', '.join(below) or 'none'}.", ""]
    lines += ["| script | where | sick | healthy |", "|---|---|---|---|"]
    for disease in diseases:
        first, second = (
            "; ".join(f"{row.rule}: {row.verdict}" for row in found[disease.script][variant])
            if variant in found[disease.script]
            else "not run"
            for variant in VARIANTS
        )
        lines.append(f"| {disease.script} | {disease.where} | {first} | {second} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", help="scripts to run (default: all)")
    parser.add_argument("--findings", action="store_true", help="run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time (default: 1)")
    arguments = parser.parse_args()
    known = (*DISEASES, *UNSEEN)
    chosen = [one for one in known if one.script in (arguments.scripts or [one.script])]
    if not place().is_built:
        chosen = [disease for disease in chosen if disease.where != "null-gpu"]
        print("no null GPU is built (make null-gpu): its scripts are left out")
    if not arguments.findings:
        pairs = [(disease, variant) for disease in chosen for variant in VARIANTS]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for line in pool.map(lambda pair: run(*pair), pairs):
                print(line, flush=True)
    rows = {
        disease.script: {variant: spoken(disease, variant) for variant in VARIANTS}
        for disease in chosen
    }
    found = {
        name: {variant: row for variant, row in runs.items() if row is not None}
        for name, runs in rows.items()
        if any(row is not None for row in runs.values())
    }
    heading = "## Scripts that no rule was written for"
    text = f"{table(DISEASES, found)}\n\n{heading}\n\n{table(UNSEEN, found)}"
    print(text)
    if not arguments.scripts:
        page = PAGE.read_text()
        before, after = page.split(MARK)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{MARK}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
