"""What a run's events look like while it measures."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from sysbench.core.record.events import (
    AnyEvent,
    FirstStepTimed,
    Noticed,
    PassEnded,
    PassStarted,
    RunStarted,
    StepsTimed,
    TelemetrySampled,
    WarmupSettled,
    WarmupStepTimed,
    WorkStepped,
)
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.commands.job_actions import step_forecast
from sysbench.tui.commands.progress import Progress, RunFold

SECOND_NS = 1_000_000_000


def steps(t_ns: int, index: int) -> StepsTimed:
    return StepsTimed(
        t_ns=t_ns,
        first_index=index,
        step_ms=[12.5] * 10,
        phases_ms={},
        median_ms=12.5,
        half_width=0.004,
    )


def lines_of(capsys: pytest.CaptureFixture[str], *events: AnyEvent) -> list[str]:
    with Progress(RunFold(), json=False) as progress:
        for event in events:
            progress.show(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_each_line_names_its_pass_and_its_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(
        capsys,
        PassStarted(name="timing", pid=7),
        FirstStepTimed(step_ms=35.0),
        WarmupSettled(steps=4, settled=False),
        PassEnded(name="timing", outcome="finished", detail="finished", seconds=1.25, exit_code=0),
        PassStarted(name="trace", pid=8),
    ) == [
        "timing  started, process 7",
        "timing  first step 35.00 ms",
        "timing  warm-up did not settle after 4 steps",
        "timing  finished, 1.2 s",
        "trace   started, process 8",
    ]


def test_slow_steps_say_how_long_the_warm_up_takes(capsys: pytest.CaptureFixture[str]) -> None:
    spec = msgspec.to_builtins(RunSpec())
    started = RunStarted(run="x", identity="", spec=spec, passes=["timing"], pid=6)
    slow: list[AnyEvent] = [
        PassStarted(name="timing", pid=7),
        FirstStepTimed(step_ms=75_000.0),
        WarmupStepTimed(index=0, step_ms=75_000.0),
        WarmupStepTimed(index=1, step_ms=70_000.0),
    ]
    assert lines_of(capsys, started, *slow)[2:] == [
        "timing  first step 75,000 ms; warm-up takes at least 5:00 more",
        "timing  warm-up step 2: 70,000 ms",
    ]
    fixed = msgspec.structs.replace(started, spec=spec | {"warmup": 3})
    assert "about 2:30 more" in lines_of(capsys, fixed, *slow)[2]
    compiled = msgspec.structs.replace(started, spec=spec | {"compile": "default"})
    assert lines_of(capsys, compiled, *slow)[2] == "timing  first step 75,000 ms"


def test_a_slow_step_is_announced_before_it_runs(sysbench_home: Path) -> None:
    large = RunSpec(model="cs336-2025/large", context=512, device="cpu")
    assert "12.3 TFLOP a step on the CPU, and no similar run" in step_forecast(large)
    assert step_forecast(RunSpec(device="cpu")) == ""
    assert step_forecast(large.changed(device="cuda:0")) == ""


def test_rounds_are_counted_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    end = PassEnded(
        name="timing", outcome="finished", detail="finished", seconds=2.0, exit_code=0, round=2
    )
    spec = {"model": "tiny", "step": "train"}
    started = RunStarted(
        run="r", pid=1, identity="i", passes=["timing", "trace"], spec=spec, repeat=2
    )
    assert lines_of(
        capsys,
        started,
        PassStarted(name="timing", pid=8, round=2),
        end,
        PassStarted(name="timing", pid=9, round=3),
        PassStarted(name="trace", pid=10),
    )[1:] == [
        "timing  round 2 of 2: started, process 8",
        "timing  round 2 of 2: finished, 2.0 s",
        "timing  round 3: started, process 9",
        "trace   started, process 10",
    ]


def test_steps_are_printed_at_most_every_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    events = [steps(5 * SECOND_NS + index * SECOND_NS // 2, 10 * index) for index in range(9)]
    assert lines_of(capsys, *events) == [
        "run     step 10: median 12.50 ms ±0.4 %",
        "run     step 50: median 12.50 ms ±0.4 %",
        "run     step 90: median 12.50 ms ±0.4 %",
    ]


def test_the_same_fact_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    end = WorkStepped(what="decode", done=9, total=9)
    assert lines_of(capsys, end, end) == ["run     decode done"]


def test_telemetry_is_not_a_line_and_messages_are_literal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = (TelemetrySampled(sample={}), Noticed(message="a\r\x1b[2Kb"))
    assert lines_of(capsys, *events) == [r"run     a\r\x1b[2Kb"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_picture_of_the_run_beside_json_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    spec = {"model": "tiny", "step": "train", "steps": 20}
    with Progress(RunFold(), json=True) as progress:
        progress.show(RunStarted(run="r", pid=1, identity="i", passes=["timing"], spec=spec))
        progress.show(PassStarted(name="timing", pid=7))
        progress.show(steps(5 * SECOND_NS, 0))
    assert "timing ●" in terminal.getvalue()
    assert "step 10, median 12.50 ms ±0.4 %" in terminal.getvalue()
    assert "process 7" not in terminal.getvalue().replace("worker 7", "")


def test_a_pipe_beside_json_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(RunFold(), json=True) as progress:
        progress.show(PassStarted(name="timing", pid=7))
    assert capsys.readouterr() == ("", "")
