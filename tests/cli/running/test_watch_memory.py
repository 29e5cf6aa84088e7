"""`watch`: who holds the memory of a training process, on request and when it ran out."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sysbench.core.memory.oom import out_of_memory
from sysbench.core.record.events import Noticed
from sysbench.core.record.memory import LedgerRow
from sysbench.core.record.record import Memory
from sysbench.core.runs.run_directory import newest_run
from sysbench.core.tables.overview import overview
from sysbench.core.watch.supervise_job import FOLDER_VARIABLE, HOOK

# Isolated, so that a test's PYTHONPATH is the command's alone.
PROGRAM = [sys.executable, "-I", "-m", "sysbench.tui.cli"]
TOLERANCE = 0.001

TRAIN = """
import json, resource, subprocess, torch
from torch.nn.functional import gelu

torch.set_num_threads(1)

class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(256, 1024)
        self.down = torch.nn.Linear(1024, 256)
        self.register_buffer("scale", torch.ones(3000))

    def forward(self, x, scratch):
        h = gelu(self.up(x))
        extra = torch.empty(scratch, dtype=torch.uint8)
        return self.down(h)

def train(steps, scratch):
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        # Here
        x = torch.randn(200, 256)
        if step == steps - 1:
            print(json.dumps(count(model, optimizer, losses)), flush=True)
        loss = model(x, scratch if step == steps - 1 else 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(torch.ones(50_000) * loss)

def ask(program):
    command = [*program, "window", "last", "--memory", "4", "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

def wait(program):
    '''Print the status and the memory of this command's record, once it has its memory.'''
    for _ in range(100):
        show = [*program, "show", "last", "--json"]
        record = json.loads(subprocess.check_output(show))
        if record["memory"]:
            break
    print(json.dumps([record["status"], record["memory"]]), flush=True)

def count(model, optimizer, losses):
    '''Bytes by shape and dtype alone.'''
    sizes = [p.numel() * 4 for p in model.parameters()]
    state = [t.numel() * 4 for s in optimizer.state.values() for t in s.values()]
    # The input; the output of the first layer, which gelu saves, and that of gelu.
    batch, hidden = 200 * 256 * 4, 200 * 1024 * 4
    kept = len(losses) * 50_000 * 4
    return {
        "parameters": sum(sizes), "optimizer state": sum(state), "buffers": 12_000,
        "inputs": batch, "hidden": hidden, "kept": kept, "gradients": sum(sizes),
    }
"""
OUT_OF_MEMORY = """
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))
train(4, 2**32)
"""


def ran(command: list[str], **more: Any) -> tuple[int, bytes, bytes]:
    done = subprocess.run(command, capture_output=True, timeout=240, **more)
    return done.returncode, done.stdout, done.stderr


def amounts(ledger: list[LedgerRow]) -> dict[str, int]:
    return {row.name: row.bytes for row in ledger}


def near(expected: int) -> Any:
    return pytest.approx(expected, rel=TOLERANCE)


def test_who_holds_memory_when_it_ran_out(tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + OUT_OF_MEMORY)
    command = [sys.executable, str(script)]
    # The second of these steps is the one that fails.
    code, output, errors = ran([*PROGRAM, "watch", "--memory", "2:2", "--", *command])
    bare = ran(command)
    assert (code, output) == bare[:2]
    assert errors.splitlines()[-1] == bare[2].splitlines()[-1]
    run = newest_run()
    assert run is not None
    record = run.record()
    assert record.status == "oom" and record.job is not None and record.job.exit_code == 1
    pass_and_oom = out_of_memory(record)
    assert pass_and_oom is not None
    oom, counted = pass_and_oom[1], json.loads(output)
    assert (oom.requested_bytes, oom.phase) == (2**32, "forward")
    assert oom.stack[0].startswith("train.py:") and oom.stack[0].endswith(" MLP.forward")
    assert oom.expression == "extra = torch.empty(scratch, dtype=torch.uint8)"
    ledger = amounts(oom.ledger)
    for name in ("parameters", "optimizer state", "buffers", "inputs"):
        assert ledger[name] == near(counted[name])
    assert ledger["activations"] == near(counted["hidden"] + 3 * 200_000)  # each has its factor
    # What gelu returned has not been saved by the next layer.
    assert ledger["outputs"] == near(counted["hidden"] + counted["kept"])
    assert oom.allocated_bytes == sum(ledger.values())
    kept = next(row for row in oom.origins if row.stack[:1] == ["losses[]"])
    line = 1 + (TRAIN.split("\n").index("        losses.append(torch.ones(50_000) * loss)"))
    assert kept.stack[1] == f"train.py:{line}" and kept.bytes == near(counted["kept"])
    assert record.memory is not None and [row.count for row in record.job.windows] == [1]
    first = record.findings[0]
    summed = overview(record)
    assert [found.rule for found in summed.health] == [first.rule]
    assert first not in (summed.finding, *summed.further)
    assert first.rule == "out-of-memory" and "asked 4.00 GiB at train.py:" in first.verdict
    shown = ran([*PROGRAM, "show", "last", "--section", "oom"])[1].decode()
    assert "AdamW exp_avg_sq < up" in shown and "losses[]" in shown


CASES = """
import os, sys, torch
def refused():
    torch.empty(2**62, dtype=torch.uint8)
def caught():
    try:
        refused()
    except RuntimeError:
        pass
def exits():
    try:
        refused()
    except RuntimeError:
        sys.exit(3)
def hook():
    sys.excepthook = lambda *arguments: print("mine", flush=True)
    refused()
def chain():
    try:
        refused()
    except RuntimeError as error:
        raise ValueError("bad batch") from error
def python():
    bytearray(2**62)
def other():
    raise RuntimeError("bad")
for case in (caught, exits, hook, chain, python, other):
    pid = os.fork()
    if pid == 0:
        case()
        break
    print(case.__name__, pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_only_exceptions_that_end_a_process_are_reported(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(CASES)
    environ = {**os.environ, "PYTHONPATH": str(HOOK), FOLDER_VARIABLE: str(tmp_path)}
    code, output, errors = ran([sys.executable, str(tmp_path / "cases.py")], env=environ)
    assert code == 0, errors
    lines = output.decode().splitlines()
    lines.remove("mine")
    rows = [line.split() for line in lines]
    codes = {name: int(code) for name, _, code in rows}
    assert codes == {"caught": 0, "exits": 3, "hook": 1, "chain": 1, "python": 1, "other": 1}
    reported = {name for name, pid, _ in rows if (tmp_path / f"memory-oom-{pid}.json").is_file()}
    assert reported == {"hook", "chain", "python"}


def test_memory_of_the_next_steps(tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "train.py"
    asked = TRAIN.replace("# Here", f"if step == 4: ask({PROGRAM})")
    script.write_text(f"{asked}train(9, 1)\nwait({PROGRAM})")
    code, output, errors = ran([*PROGRAM, "watch", "--", sys.executable, str(script)])
    assert (code, errors) == (0, b"")
    run = newest_run()
    assert run is not None
    record = run.record()
    memory, job = record.memory, record.job
    counted, (status, while_it_ran) = map(json.loads, output.splitlines())
    assert memory is not None and job is not None and memory.is_counted
    assert status == "running" and msgspec.convert(while_it_ran, Memory) == memory
    assert [(window.step, window.count) for window in job.windows] == [(5, 4)]
    assert all(step.traced for step in job.steps[5:])
    forward, end = (amounts(memory.columns[name]) for name in ("end of forward", "steady end"))
    for name in ("parameters", "optimizer state", "buffers", "inputs"):
        assert forward[name] == near(counted[name]) and end[name] == forward[name]
    saved = 2 * counted["hidden"]
    assert forward["activations"] == near(saved + 8 * 200_000)
    assert end["gradients"] == near(counted["gradients"])
    by_module = {row.module: row for row in memory.modules}
    assert by_module["up"].parameter_bytes == 4 * 1024 * 257
    assert by_module["down"].activation_bytes == near(counted["hidden"] + 8 * 200_000)
    # A kept loss is 200,000 bytes, and its graph holds a factor of the same size.
    (grows,) = [found for found in record.findings if found.rule == "memory-grows"]
    assert grows.numbers["growth_bytes"] == near(400_000) and "losses[]" in grows.verdict
    code, _, _ = ran([*PROGRAM, "export", "last", "html", "-o", str(tmp_path / "page.html")])
    assert code == 0 and "losses[]" in (tmp_path / "page.html").read_text()


def test_what_runs_in_the_users_process_is_of_python_3_8() -> None:
    for path in HOOK.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_a_damaged_count_is_a_notice(tmp_path: Path, sysbench_home: Path) -> None:
    count = '{"pid": 1, "device": "cpu", "counts": [{"t_ns": 1, "rows": [[1, 2]]}]}'
    code = (
        f"import os; open(os.environ['{FOLDER_VARIABLE}'] + '/memory-1.json', 'w').write('{count}')"
    )
    assert ran([*PROGRAM, "watch", "--", sys.executable, "-c", code])[0] == 0
    run = newest_run()
    assert run is not None and run.record().status == "finished"
    notices = [event.message for event in run.tail().read() if isinstance(event, Noticed)]
    assert "[1, 2] is no holder of memory" in notices[0]
