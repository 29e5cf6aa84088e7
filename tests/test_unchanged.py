"""What version 0.1.0 wrote of one stored run is written still: every section, table and export.

``tiny-cpu-written.zip`` holds the output of commit a9da7a7 at 120 columns. A difference here is
a change for people who read or script these: make it on purpose, say it in the changelog, and
add it to `CHANGED`.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.export import page_charts as charts
from sysbench.tui.cli import main

FIXTURES = Path(__file__).parent / "fixtures"
RUN = "20261121-120000-tiny-cpu0"
WRITTEN = zipfile.ZipFile(FIXTURES / "tiny-cpu-written.zip")
RANKED = {
    "#4fc1b0": "parameters",
    "#6c9ef8": "buffers",
    "#d9a65a": "inputs",
    "#a78bda": "optimizer state",
    "#8fb573": "gradients",
    "#d77fa1": "activations",
    "#63b3d1": "outputs",
    "#e08a6d": "temporaries (backward)",
    "#b5b35f": "temporaries (build)",
    "#7f93a8": "temporaries (forward)",
    "#3f7f74": "temporaries (optimizer)",
}
"""Colours of the page as they were, by rank, and the categories that had them."""
LOOK = Path(charts.__file__).with_name("page.css").read_text(encoding="utf-8")
MODEL = "tiny: 787,072 parameters (d_model 128, d_ff 512, 2 layers, 4 heads, vocab 1,024)"
STEP = "53.71 ms a step ±1.9 %, of 51 steps in one process · peak 32.8 MiB"
ABOUT = (
    "batch 4 · context 128 · fp32 · naive attention · train with adamw-foreach · compile off; "
    f"cpu · AMD EPYC · 1 thread · torch 2.13.0+cpu; {STEP}; started 2026-11-21 02:30 UTC"
)
STARTED = '<time datetime="2026-11-21T02:30Z">2026-11-21 02:30 UTC</time>'
SECTIONS = {
    "findings": "What was found",
    "trust": "What the numbers include",
    "step-times": "Steps",
    "timeline": "Live bytes",
    "modules": "Memory by module",
    "tree": "The traced step",
    "spec": "What was measured",
    "passes": "Passes",
    "timing": "Timing",
    "speed": "Speed and how the steps were chosen",
    "questions": "Questions",
    "categories": "Categories of the traced step",
    "kernels": "Operators",
    "roofline": "Roofline",
    "flops": "FLOPs of matrix products a step",
    "memory": "Memory of a steady step",
    "ledger": "Memory ledger",
    "card": "Process memory",
    "reconciliation": "Predicted against measured",
    "resident": "What was resident",
    "origins": "Alive at the peak",
    "largest": "Largest allocations alive at the peak",
    "telemetry": "Telemetry",
    "environment": "Environment",
}
FIGURES = LOOK[LOOK.index("\nfigure {") :]
CHANGED = {
    # The prediction error has one sign everywhere: predicted / measured - 1.
    "closed form 32.8 MiB, measured +0.0 %": (
        "closed form 32.8 MiB, +0.0 % against the measured peak"
    ),
    # Every table of times says which of two intervals it quotes.
    "Timing: milliseconds per step, host clock, no profiler": (
        "Timing: ms per step, host clock, no profiler; 95 % interval inside one process"
    ),
    # Keys of a spec stand alone.
    "run --set step=inference --set until=0.02 --set device=cpu --set threads=1": (
        "run step=inference until=0.02 device=cpu threads=1"
    ),
    "steps, 95 % interval 52.64": "steps, 95 % interval inside one process 52.64",
    # A category of the page has the colour of its name, and every part a class for its look.
    "svg .axis { stroke: var(--line); }": (
        "svg .axis { stroke: var(--line); }\n"
        "svg .area { stroke: var(--card); stroke-width: .5; }\n"
        "svg .step { fill: var(--accent); }\n"
        "svg .median { stroke: var(--warn); }"
    ),
    # On a phone plots scroll, and rows of trees stand under their names.
    "border-radius: 4px; }\n</style>": f"border-radius: 4px; }}{FIGURES}</style>",
    # The page's head has its figures and its date, the contents the names of the sections.
    f"<title>{MODEL}</title>": (
        f'<meta name="description" content="{ABOUT}">\n<title>tiny · {STEP} · sysbench-tui</title>'
    ),
    f"<h1>{MODEL}</h1>": f"<h1>{MODEL}</h1><p><b>{STEP}</b></p>",
    "<nav>": f'<p class="quiet">started {STARTED}</p><nav>',
    **{
        f'<a href="#{anchor}">{anchor.replace("-", " ")}</a>': f'<a href="#{anchor}">{title}</a>'
        for anchor, title in SECTIONS.items()
    },
    # Titles and checks are in plain words.
    "their medians sum to 98.3 % of it": "their medians add up to 98.3 % of the step",
    "over the bare step": "against the untraced step",
    "host operators, self time": "CPU operators, self time",
    "bare 53.71 ms ·": "untraced 53.71 ms ·",
    "Passes: what watching the step costs it": "Passes: what measuring costs the step",
    "Questions of the write-ups, answered": "Questions, answered",
    "Memory ledger: what is resident at the peak": "Memory ledger: bytes at the peak",
    "Card ledger: from": "Process memory: from",
    'class="told quiet"': 'class="tooltip quiet"',
    'told = figure.querySelector(".told")': 'tooltip = figure.querySelector(".tooltip")',
    "told.textContent": "tooltip.textContent",
    "wT9dwjjT+rF941+9P08DO0GDcSTDlNkhSyQYuw+wNzg=": "ftjPpHIfMlPQsrcFl94N26tv7t6F18mSGJ8UGtvIftw=",
    # Series have words.
    "  quantity                    min   median       max  n\n": (
        "  quantity              min   median       max  n\n"
    ),
    "host.cpu_percent        ": "host CPU busy, %  ",
    "host.memory_used_bytes  ": "host memory used  ",
    "| host.cpu\\_percent |": "| host CPU busy, % |",
    "| host.memory\\_used\\_bytes |": "| host memory used |",
    ">host.cpu_percent<": ">host CPU busy, %<",
    ">host.memory_used_bytes<": ">host memory used<",
    'r="2.5" fill="#4fc1b0"': 'r="2.5" class="step"',
    'stroke="#d9a65a"': 'class="median"',
    **{
        before.format(colour): after.format(charts.colour_of(name))
        for colour, name in RANKED.items()
        for before, after in (
            ('fill="{}"', 'class="area" style="fill:{}"'),
            ("background:{}", "background:{}"),
        )
    },
}

ADDED = {
    "library_workspace_bytes",
    "residual_bytes",
    "clock_offset_us",
    "predicted_reserved_bytes",
    "timing.rounds",
    "timing.interval_of",
    "timing.steps",
    "timing.loss_start",
    "timing.throttled",
    "kernels.device",
    "kernels.marked_steps",
    "kernels.collectives",
    "kernels.host",
    "kernels.other_devices",
    "coverage.dropped_fills",
    "coverage.captured",
    "peak_requested_bytes",
    "end_requested_bytes",
    "neighbours",
}
"""Keys that JSON has gained since, a dotted one in that block only; none is renamed or removed."""


@pytest.fixture
def frozen_home(sysbench_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FIXTURES / "tiny-cpu", sysbench_home / "runs" / RUN)
    monkeypatch.setenv("COLUMNS", "120")
    return sysbench_home


@pytest.mark.parametrize("name", WRITTEN.namelist())
def test_it_is_written_as_before(
    name: str, frozen_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = WRITTEN.read(name).decode()
    for before, after in CHANGED.items():
        expected = expected.replace(before, after)
    text = written(name, tmp_path, capsys)
    if name.endswith("json"):
        assert without_added(json.loads(text), name.partition(".")[0]) == json.loads(expected)
    else:
        assert text == expected


def without_added(value: Any, block: str = "") -> Any:
    match value:
        case dict():
            return {
                key: without_added(inner, key)
                for key, inner in value.items()
                if not ADDED & {key, f"{block}.{key}"}
            }
        case list():
            return [without_added(inner) for inner in value]
        case _:
            return value


def written(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of the command that the name of a stored file stands for."""
    stem, _, ending = name.rpartition(".")
    if stem == "export":
        path = folder / name
        main(["export", RUN, ending, "-o", str(path)])
        return path.read_text()
    section = ["--section", stem] if stem else []
    # Then a section in a pipe was as wide as its longest name; that is --wide now.
    wide = ["--wide"] if stem and ending == "txt" else []
    main(["show", RUN, *section, *wide, *(["--json"] if ending == "json" else [])])
    captured = capsys.readouterr()
    return captured.out + captured.err
