"""`doctor --noise`: its options, its page, and its end on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sysbench.core.compare.noise_sources import NoiseSource
from sysbench.core.compare.verdict import Verdict
from sysbench.core.experiments.noise import NoiseFloor, Remedy, noise_path
from sysbench.core.experiments.noise_doctor import Examined, Finds
from sysbench.core.runs.run_directory import list_runs
from sysbench.tui.cli import main
from sysbench.tui.commands.doctor_reports import examined_lines

SMALL = ("model=tiny", "step=inference", "batch=1", "context=16", "steps=12", "threads=1")

FLOOR = NoiseFloor(
    device="A processor",
    measured_ns=1,
    subject="tiny",
    identity="x",
    rounds=24,
    between=0.0121,
    low=0.0095,
    high=0.0166,
    drift=0.02,
    inside=0.004,
    pair=0.034,
    residuals=[0.0] * 24,
    step_ms=8.3,
    left_out=1,
    seconds=180.0,
    torch="2.13.0",
    sources=[
        NoiseSource(
            name="between processes", share=0.0121, low=0.0095, high=0.0166, how="by Bonett"
        ),
        NoiseSource(name="drift", share=0.001, low=-0.01, high=0.012, found=False, how="halves"),
        NoiseSource(name="neighbours", share=1.4278, low=0.3, high=2.1, found=True, how="loads"),
        NoiseSource(name="clock", how="not measured: a virtual machine"),
        NoiseSource(name="order", share=0.002, how="10 rounds are too few to test"),
        NoiseSource(name="clock granularity", share=4.3e-7, how="49 ns"),
    ],
    remedies=[Remedy(name="interleave", detail="the machine changed by +3.1 %: `ab`")],
)


def page(result: Examined, width: int = 80) -> list[str]:
    return ["".join(text for text, _ in line) for line in examined_lines(result, width)]


def test_the_page_has_every_figure_with_its_interval_in_80_columns() -> None:
    result = Examined(
        floor=FLOOR,
        finds=[Finds(12, 0.0415), Finds(96, 0.011)],
        verdict=Verdict(verdict="slower", why="", change=0.02, low=0.01, high=0.03),
        rounds=24,
        ending="out-of-time",
        detail="24 rounds",
    )
    lines = page(result)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "A processor: processes of one spec differ by ±1.21 %" in text
    assert "±1.21 % (0.950 % to 1.66 %): by Bonett" in text
    assert "none found, +0.100 % (-1.00 % to +1.20 %)" in text
    assert "found, +143 % (+30.0 % to +210 %)" in text
    assert "not tested, +0.200 %: 10 rounds are too few" in text
    assert "0.00004 %: 49 ns" in text
    assert "a slowdown of 4.15 % in 12 rounds, 1.10 % in 96 rounds" in text
    assert "both sides are the same spec: 5 % of such comparisons end like this" in text
    assert "interleave the machine changed by +3.1 %: `ab`" in text
    assert "1 disturbed round excluded" in text


def test_a_measurement_without_a_floor_says_how_to_get_one() -> None:
    result = Examined(rounds=3, ending="out-of-time", detail="3 rounds in 0.5 minutes")
    assert page(result) == ["3 rounds in 0.5 minutes", "measure longer: --minutes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "2"], "only with --noise"),
        (["--set", "batch=2"], "only with --noise"),
        (["--noise", "--set", "btch=2"], "did you mean 'batch'"),
        (["--noise", "--minutes", "0"], "above 0"),
    ],
)
def test_mistakes_end_with_2(
    sysbench_home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    try:
        code: object = main(["doctor", *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err
    assert not list_runs(sysbench_home)


def test_an_interrupt_keeps_the_rounds_and_writes_no_floor_of_few(sysbench_home: Path) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sysbench.tui.cli", "doctor", "--noise", *settings],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stderr is not None and process.stdout is not None
        for line in process.stderr:
            if line.startswith("round   1"):
                process.send_signal(signal.SIGINT)
                break
        process.stderr.read()
        text = " ".join(process.stdout.read().split())
    assert process.returncode == 130
    assert "stopped on request after 1 round" in text
    assert "so none is stored" in text
    assert not noise_path(sysbench_home).exists()
    counting = [
        row
        for run in list_runs(sysbench_home)
        if run.record_path.exists() and (timing := run.record().timing)
        for row in timing.rounds
        if row.counts
    ]
    assert len(counting) == 1
    (folder,) = (sysbench_home / "experiments").iterdir()
    ended = msgspec.json.decode((folder / "ending.json").read_bytes())
    assert ended["ending"] == "cancelled"
