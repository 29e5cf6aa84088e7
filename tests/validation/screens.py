"""Pictures of every screen on real runs of the CPU, at five sizes, to be looked at.

``python -m tests.validation.screens FOLDER`` measures four runs and a study of `tiny`, follows a
fifth run and a watched command of two ranks, and saves every screen, tab, view and dialog as an SVG
in ``FOLDER/WIDTHxHEIGHT``, and ``FOLDER/index.html``, a table of them all: a row a screen, a column
a size. The runs stay in ``FOLDER/home``; a second call takes new pictures of the same runs. `TOUR`
has the screens; `null_gpu.screens` goes the same way on null GPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from textual.pilot import Pilot

from sysbench.core.runs.run_directory import RunDirectory, list_runs
from sysbench.core.storage import HOME_VARIABLE
from sysbench.tui.app import SysbenchApp
from sysbench.tui.live.pair_watch import Pair
from sysbench.tui.screens.compare_screen import CompareScreen
from sysbench.tui.screens.inspect_screen import InspectScreen
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.screens.result_views import TABS, ViewsTab
from sysbench.tui.screens.studies_screen import StudiesScreen

ROOT = Path(__file__).parents[2]
SIZES = ("44x14", "80x24", "120x40", "160x48", "200x50")
SETTLED = 0.8
"""Seconds that a screen has to fill before its picture is taken."""

PASSES = ("--passes", "timing,trace,memory")
COMPILED, EXHAUSTED, CHANGED, PLAIN = range(4)
"""The runs of a subject, the oldest first."""
LIVE_FOR = 2.0
"""Seconds that a live run is followed before its picture is taken."""
LIVE = ("steps=1000000", "max_seconds=600")
STUDY = """
title = "Attention at two contexts"
passes = ["timing", "memory"]
[fixed]
model = "tiny"
device = "{device}"
threads = 1
warmup = 1
steps = 5
[axes]
attention = ["naive", "sdpa"]
context = [64, 128]
[[tables]]
name = "sizes"
columns = [
    {{ name = "Step (ms)", value = "timing.step.median_ms" }},
    {{ name = "Peak (MiB)", value = "memory.peak_allocated_bytes", unit = "MiB" }},
]
"""

JOB = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    time.sleep(0.15 if dist.get_rank() == 0 else 0.2)
    model(torch.randn(64, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""A command of two ranks, the second of which is slow; it runs until it is stopped."""
JOB_SECONDS = 40
"""Until it has steps and a traced window."""
COUNTED_AFTER = 8.0
"""Seconds until the holders that a key asked for are counted."""
EXHAUSTED_JOB = """
import resource, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(1000):
    if step == 5:
        taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, taken + 2**28))
    loss = model(torch.randn(4096, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(model(torch.randn(4096, 512)))
"""
"""A command that keeps its outputs with their graphs, under a limit of memory."""


@dataclass(frozen=True)
class Subject:
    """What is measured before anyone looks.

    Attributes:
        spec: Settings of every run.
        differences: Settings of each run beside, by its place.
        live: Settings of the run that is followed beside.
        device: The study's.
        python: The interpreter that measures and shows.
        variables: Environment of its processes, but for what every picture needs.
    """

    spec: tuple[str, ...]
    differences: Mapping[int, tuple[str, ...]]
    live: tuple[str, ...]
    device: str
    python: str
    variables: Mapping[str, str]

    @property
    def program(self) -> list[str]:
        """The command line's begin."""
        return [self.python, "-P", "-m", "sysbench.tui.cli"]


CPU = Subject(
    spec=("tiny", "threads=1", "warmup=2"),
    differences={
        COMPILED: ("steps=20", "compile=default"),
        EXHAUSTED: ("steps=20", "batch=16", "memory_limit=64MiB"),
        CHANGED: ("steps=20", "attention=sdpa"),
        PLAIN: ("steps=20",),
    },
    live=LIVE,
    device="cpu",
    python=sys.executable,
    variables=os.environ,
)

Stop = Callable[["Visit"], AsyncIterator[str]]


class Visit:
    """An app that is shown around in, and the runs that it has."""

    def __init__(self, app: SysbenchApp, pilot: Pilot[None], runs: list[RunDirectory]) -> None:
        self.app, self.pilot, self.runs = app, pilot, runs

    async def pass_time(self) -> None:
        """Let the screen fill."""
        await self.pilot.pause(SETTLED)


async def run_form(visit: Visit) -> AsyncIterator[str]:
    """The form, and what opens from everywhere."""
    yield "run"
    await visit.pilot.press("f1")
    yield "help"
    await visit.pilot.press("escape")
    await visit.pilot.press("ctrl+p")
    yield "palette"
    await visit.pilot.press("escape")


async def result(visit: Visit) -> AsyncIterator[str]:
    """Each tab of the plain run, each view of it, and the explanations of a table."""
    visit.app.open_result(visit.runs[PLAIN])
    await visit.pass_time()
    screen = visit.app.screen
    assert isinstance(screen, ResultScreen)
    for name, row in TABS.items():
        if row.is_rare or name == "compile":
            continue
        await screen.action_tab(name)
        yield name
        tab = screen.tab
        if isinstance(tab, ViewsTab):
            for view in list(tab.views)[1:]:
                tab.show_view(view)
                yield f"{name}-{view.replace(' ', '-')}"
        if name == "kernels" and isinstance(tab, ViewsTab):
            tab.turn_to("table")
            await visit.pilot.press("question_mark")
            yield "explain-kernels"
            await visit.pilot.press("escape")
            await visit.pilot.press("L")
            yield "kernels-unfolded"
            await visit.pilot.press("L")


async def other_results(visit: Visit) -> AsyncIterator[str]:
    """What a compiled run and one that ran out of memory have beside."""
    for place, tabs in ((COMPILED, ("summary", "compile")), (EXHAUSTED, ("summary", "memory"))):
        visit.app.open_result(visit.runs[place])
        await visit.pass_time()
        screen = visit.app.screen
        assert isinstance(screen, ResultScreen)
        await screen.open()
        for name in tabs:
            await screen.action_tab(name)
            kind = "compiled" if place == COMPILED else "exhausted"
            yield f"{kind}-{name}"
            tab = screen.tab
            if name == "compile" and isinstance(tab, ViewsTab):
                for view in list(tab.views)[1:]:
                    tab.show_view(view)
                    yield f"compile-{view.replace(' ', '-')}"


async def comparison(visit: Visit) -> AsyncIterator[str]:
    """Each view of two runs, and the dialog that measures them in turn."""
    visit.app.open_comparison(Pair(visit.runs[PLAIN], visit.runs[CHANGED]))
    await visit.pass_time()
    screen = visit.app.screen
    assert isinstance(screen, CompareScreen)
    yield "compare"
    for name in list(screen.bar.names)[1:]:
        screen.action_view(name)
        yield f"compare-{name}"
    screen.action_measure()
    yield "compare-measure"
    await visit.pilot.press("escape")


async def library(visit: Visit) -> AsyncIterator[str]:
    """The runs of this machine."""
    visit.app.action_mode("library")
    yield "library"


async def studies(visit: Visit) -> AsyncIterator[str]:
    """The list, and the study that was run."""
    visit.app.action_mode("studies")
    yield "studies"
    screen = visit.app.screen
    assert isinstance(screen, StudiesScreen)
    screen.menu.highlighted = screen.menu.option_count - 1  # the one that was begun
    await visit.pass_time()
    await visit.pilot.press("enter")
    yield "study"
    for number in range(1, 4):
        await visit.pilot.press("v")
        yield f"study-view-{number}"


async def inspection(visit: Visit) -> AsyncIterator[str]:
    """The invitation, and a trace of the plain run with each of its tabs."""
    visit.app.action_mode("inspect")
    yield "inspect"
    screen = visit.app.screen
    assert isinstance(screen, InspectScreen)
    await screen.open(visit.runs[PLAIN].trace_path)
    while not screen.bar.names:
        await visit.pass_time()
    yield "inspect-trace"
    for name in screen.bar.names[1:]:
        await screen.action_tab(name)
        yield f"inspect-{name}"


async def live(visit: Visit) -> AsyncIterator[str]:
    """A run that is measured now, the questions about it, and the way out."""
    await visit.pilot.pause(LIVE_FOR)
    yield "live"
    await visit.pilot.press("q")
    yield "ask-leaving"
    await visit.pilot.press("escape")


async def job(visit: Visit) -> AsyncIterator[str]:
    """A watched command, its result so far, and the kernels of its window."""
    await visit.pilot.pause(LIVE_FOR)
    yield "job-live"
    await visit.pilot.press("k")
    await visit.pass_time()
    yield "job-summary"
    await visit.pilot.press("3")
    yield "job-kernels"
    visit.app.action_mode("library")
    yield "job-library"


async def job_of_one(visit: Visit) -> AsyncIterator[str]:
    """A watched command of one process, before and after its memory was counted on request."""
    await visit.pilot.pause(LIVE_FOR)
    yield "job-one-live"
    await visit.pilot.press("m")
    await visit.pilot.pause(COUNTED_AFTER)
    yield "job-one-counted"


async def newest_memory(visit: Visit) -> AsyncIterator[str]:
    """The newest run: a watched command that ended, and the holders of its memory."""
    newest = list_runs()[0]
    end = newest.record().status
    visit.app.open_result(newest)
    await visit.pass_time()
    yield f"job-{end}-summary"
    assert isinstance(visit.app.screen, ResultScreen)
    await visit.app.screen.action_tab("memory")
    yield f"job-{end}-memory"


TOUR: dict[str, tuple[Stop, ...]] = {
    "rest": (run_form, result, other_results, comparison, library, studies, inspection),
    "live": (live,),
    "job": (job,),
    "job-one": (job_of_one,),
    "job-memory": (newest_memory,),
}
"""What is looked at while nothing is measured, while a run is, and while a command is watched."""


async def look(folder: Path, size: str, part: str) -> None:
    """Save the pictures of one part of the tour at one size."""
    width, height = map(int, size.split("x"))
    folder = folder / size
    folder.mkdir(parents=True, exist_ok=True)
    app = SysbenchApp()
    runs = [*reversed(list_runs())][: PLAIN + 1]
    async with app.run_test(size=(width, height)) as pilot:
        visit = Visit(app, pilot, runs)
        await visit.pass_time()
        for stop in TOUR[part]:
            async for name in stop(visit):
                await visit.pass_time()
                app.save_screenshot(str(folder / f"{name}.svg"))


def measure(folder: Path, subject: Subject) -> None:
    """Fill a home with the runs and the study, if it has none."""
    program = partial(subprocess.run, cwd=folder, env=environment(folder, subject))
    if not (folder / "home" / "runs").is_dir():
        for _, differences in sorted(subject.differences.items()):
            # Out of memory is a result, and an exit code that is not 0.
            program([*subject.program, "run", *subject.spec, *differences, *PASSES])
        study = folder / "study.toml"
        study.write_text(STUDY.format(device=subject.device))
        program([*subject.program, "study", str(study)], check=True)


def environment(folder: Path, subject: Subject) -> dict[str, str]:
    """The variables of a process that sees this checkout, the folder's runs and all colours."""
    return {
        **subject.variables,
        HOME_VARIABLE: str(folder / "home"),
        "PYTHONPATH": str(ROOT / ".typing"),
        "OMP_NUM_THREADS": "1",
        "COLORTERM": "truecolor",  # the theme goes by the terminal
        "TEXTUAL_ANIMATIONS": "none",
    }


def take(folder: Path, sizes: Sequence[str], subject: Subject = CPU) -> None:
    """Measure, and take every picture at these sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    measure(folder, subject)
    program = partial(subprocess.run, cwd=ROOT, env=environment(folder, subject), check=True)
    this = [subject.python, "-m", "tests.validation.screens", str(folder)]
    for size in sizes:
        program([*this, "--look", "rest", "--size", size])
    program(
        [*subject.program, "run", *subject.spec, *subject.live, "--passes", "timing", "--detach"]
    )
    try:
        for size in sizes:
            program([*this, "--look", "live", "--size", size])
    finally:
        program([*subject.program, "stop", "last"])
    look_at_jobs(folder, sizes, subject)
    write_index(folder)


def look_at_jobs(folder: Path, sizes: Sequence[str], subject: Subject) -> None:
    """Take the pictures of commands of two ranks, of one, and of one that runs out of memory."""
    environ = environment(folder, subject)
    watch = [*subject.program, "watch", "--window", "6:3", "--", subject.python]
    script, exhausted_script = folder / "job.py", folder / "exhausted.py"
    script.write_text(JOB)
    exhausted_script.write_text(EXHAUSTED_JOB)

    def look_at(part: str) -> None:
        this = [subject.python, "-m", "tests.validation.screens", str(folder), "--look", part]
        for size in sizes:
            subprocess.run([*this, "--size", size], cwd=ROOT, env=environ, check=True)

    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    for part, ranks in (("job", "2"), ("job-one", "1")):
        command = [*watch, *launch, ranks, str(script)]
        with subprocess.Popen(command, cwd=ROOT, env=environ) as process:
            try:
                time.sleep(JOB_SECONDS)
                look_at(part)
            finally:
                process.terminate()
    look_at("job-memory")
    subprocess.run([*watch, str(exhausted_script)], cwd=ROOT, env=environ)  # it fails
    look_at("job-memory")


def write_index(folder: Path) -> None:
    """Write the page with all pictures of the folder: a row a screen, a column a size."""
    sizes = [size for size in SIZES if (folder / size).is_dir()]
    names = dict.fromkeys(
        file.stem
        for size in sizes
        for file in sorted((folder / size).glob("*.svg"), key=lambda file: file.stat().st_mtime_ns)
    )
    rows = (
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(
            f'<td><a href="{size}/{name}.svg"><img src="{size}/{name}.svg"></a>' for size in sizes
        )
        for name in names
    )
    heads = "".join(f"<th>{size}</th>" for size in sizes)
    style = "<style>body{background:#222;color:#ddd;font-family:sans-serif}img{width:100%}</style>"
    text = f"<!doctype html><meta charset=utf-8>{style}<table><tr><th>{heads}</tr>"
    (folder / "index.html").write_text(text + "\n".join(rows) + "</table>\n")


def main() -> None:
    """Take the pictures; with ``--look`` those of one app, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--look", choices=TOUR, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = arguments.size or SIZES
    if arguments.look:
        for size in sizes:
            asyncio.run(look(arguments.folder, size, arguments.look))
    else:
        take(arguments.folder.absolute(), sizes)


if __name__ == "__main__":
    main()
