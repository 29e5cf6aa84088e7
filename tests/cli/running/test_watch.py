"""`watch`: the command runs as it would without it, and its steps are recorded."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sysbench.core.compare.statistics import slowest_rank
from sysbench.core.errors import SpecError
from sysbench.core.record.events import RanksRead
from sysbench.core.record.job import step_phases
from sysbench.core.record.record import Record
from sysbench.core.runs.run_directory import RunDirectory, load_record, newest_run
from sysbench.core.storage import HOME_VARIABLE
from sysbench.core.watch.supervise_job import HOOK
from sysbench.core.watch.windows import step_function, window_of

# Isolated, so that a test's PYTHONPATH is the command's alone.
PROGRAM = [sys.executable, "-I", "-m", "sysbench.tui.cli"]

SEEN = """
import json, os, sys
kept = sorted(set(os.environ) - {"PYTHONPATH", "SYSBENCH_WATCH"})
files = len(os.listdir("/proc/self/fd"))
tasks = len(os.listdir("/proc/self/task"))
print(json.dumps([sys.path, sys.argv, sys.flags[:], kept, files, tasks]))
"""
CASES = {
    "what the process sees": SEEN,
    "output and code 7": "import sys; sys.stdout.buffer.write(b'\\x00\\xff\\n'); sys.exit(7)",
    "ended by SIGTERM": "import os; print('x', flush=True); os.kill(os.getpid(), 15)",
    "ended by SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "traceback": "def f():\n  raise ValueError('bad')\nf()",
    "own excepthook": "import sys\nsys.excepthook = lambda *a: print('mine', a[1])\n1 / 0",
    "fork": "import os\nif os.fork() == 0: os._exit(3)\nprint(os.wait()[1])",
    "daemon": "import os\nif os.fork(): os._exit(0)\nos.setsid(); print('child')",
}


def ran(command: list[str], **more: Any) -> tuple[int, bytes, bytes]:
    done = subprocess.run(command, capture_output=True, timeout=120, **more)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("options", [(), ("-I",)], ids=["plain", "-I"])
def test_the_process_sees_the_same(
    options: tuple[str, ...], tmp_path: Path, sysbench_home: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SEEN)
    command = [sys.executable, *options, str(script), "--lr", "1"]
    assert ran([*PROGRAM, "watch", "--", *command], cwd=tmp_path) == ran(command, cwd=tmp_path)


def test_without_site_the_path_has_one_more_entry(tmp_path: Path, sysbench_home: Path) -> None:
    """``-S`` leaves out sitecustomize, which takes its folder off the path: nothing is recorded."""
    script = tmp_path / "script.py"
    script.write_text(SEEN)
    command = [sys.executable, "-S", str(script)]
    watched, bare = (
        json.loads(ran(words)[1]) for words in ([*PROGRAM, "watch", "--", *command], command)
    )
    assert watched[1:] == bare[1:]
    assert [path for path in watched[0] if path not in bare[0]] == [str(HOOK)]


def test_an_interpreter_without_our_packages(tmp_path: Path, sysbench_home: Path) -> None:
    venv.create(tmp_path / "other", with_pip=False)
    script = tmp_path / "script.py"
    script.write_text(SEEN + "import importlib.util as u\nprint(u.find_spec('msgspec'))\n")
    command = [str(tmp_path / "other" / "bin" / "python"), str(script)]
    watched = ran([*PROGRAM, "watch", "--", *command], cwd=tmp_path)
    assert watched == ran(command, cwd=tmp_path)
    assert watched[0] == 0 and watched[1].endswith(b"None\n")


@pytest.mark.parametrize("case", CASES)
def test_the_command_ends_as_without_it(case: str, tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CASES[case])
    command = [sys.executable, str(script)]
    assert ran([*PROGRAM, "watch", "--", *command], cwd=tmp_path) == ran(command, cwd=tmp_path)


def test_the_users_own_sitecustomize_runs(tmp_path: Path, sysbench_home: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__)")
    command = [sys.executable, "-c", "import sitecustomize; print(sitecustomize.__file__)"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    watched = ran([*PROGRAM, "watch", "--", *command], env=environ)
    assert watched == ran(command, env=environ)
    assert watched[1].startswith(b"mine sitecustomize")


def test_a_command_that_is_not_there(sysbench_home: Path) -> None:
    code, output, errors = ran([*PROGRAM, "watch", "--", "no-such-program"])
    assert (code, output, errors) == (127, b"", b"")
    run = newest_run()
    assert run is not None and run.record().status == "failed"


def test_no_command_is_refused(sysbench_home: Path) -> None:
    code, _, errors = ran([*PROGRAM, "watch", "--"])
    assert code == 2 and b"watch -- python train.py" in errors


def test_an_interrupt_from_the_terminal_is_the_commands(
    tmp_path: Path, sysbench_home: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time\n"
        "try:\n  print('ready', flush=True)\n  time.sleep(60)\n"
        "except KeyboardInterrupt:\n  print('stopped')\n"
    )
    command = [*PROGRAM, "watch", "--", sys.executable, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[0] == b"stopped\n"
    assert process.returncode == 0


def test_the_command_survives_its_watcher(tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time\nprint('ready', flush=True)\ntime.sleep(1)\nopen('done', 'w').close()\n"
    )
    command = [*PROGRAM, "watch", "--", sys.executable, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_without_torch_says_so(sysbench_home: Path) -> None:
    assert ran([*PROGRAM, "watch", "--", "true"])[0] == 0
    run = newest_run()
    assert run is not None
    record = run.record()
    assert record.job is not None and record.job.total_steps == 0
    assert [found.rule for found in record.findings][:1] == ["no-steps"]
    shown = ran([*PROGRAM, "list"])
    assert shown[0] == 0 and b"true" in shown[1]


TRAIN = """
import json, time, torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.randint(0, 50, (16,))

waited = 0.0
model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Slow(), batch_size=2)
iterator = iter(loader)
while True:
    began = time.monotonic()
    batch = next(iterator, None)
    waited += time.monotonic() - began
    if batch is None:
        break
    output = model(batch)
    torch.nn.functional.cross_entropy(output.flatten(0, 1), batch.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps(waited))
"""


def test_a_slow_loader_is_found(tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [*PROGRAM, "watch", "--report", "--", sys.executable, str(script)]
    code, output, report = ran(command)
    assert code == 0, report
    run = newest_run()
    assert run is not None
    record = run.record()
    assert record.status == "finished" and record.spec["model"] == "train.py"
    job, timing = record.job, record.timing
    assert job is not None and timing is not None and job.step is not None
    assert job.total_steps == 24
    assert job.loaders[0].workers == 0 and job.loaders[0].place.startswith("train.py:")
    waited_ms = 1e3 * json.loads(output)
    # The script also times the call around it, and the processor that other processes took.
    assert 0.5 * waited_ms < sum(row.input_ms for row in job.loaders) <= waited_ms
    for step in job.steps:
        parts = (step.input_ms, step.forward_ms, step.backward_ms, step.optimizer_ms)
        assert sum(parts) + step.other_ms == pytest.approx(step.wall_ms, rel=1e-6)
        assert (step.tokens, step.samples, step.micro_batches) == (32, 2, 1)
    assert timing.step.median_ms == job.step.median_ms
    assert next(found for found in record.findings if found.rule == "input-bound")
    assert b"num_workers=0" in report
    text = ran([*PROGRAM, "show", "last"])[1].decode()
    assert "train.py: a command, run unchanged" in text
    assert json.loads(ran([*PROGRAM, "show", "last", "--json"])[1])["job"]["total_steps"] == 24


WINDOW = ("--window", "8:3")


class Early(NamedTuple):
    """A run with a window, and its record while the command still ran."""

    run: RunDirectory
    record: Record


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Early:
    folder = tmp_path_factory.mktemp("early")
    script = folder / "train.py"
    script.write_text(f"{TRAIN}\nimport sys\nsys.stdin.read()\n")
    command = [*PROGRAM, "watch", *WINDOW, "--", sys.executable, str(script)]
    environ = {**os.environ, HOME_VARIABLE: str(folder)}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environ,
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        deadline = time.monotonic() + 120
        while not (
            (run := newest_run(folder)) and run.record_path.is_file() and run.record().kernels
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        record = load_record(run)
        process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")
    assert run.header().command_line() == shlex.join(["sysbench-tui", *command[len(PROGRAM) :]])
    return Early(run, record)


def test_traced_steps_have_kernels_and_count_in_no_statistic(
    early: Early, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = early.run
    monkeypatch.setenv(HOME_VARIABLE, str(run.path.parents[1]))
    record = run.record()
    job, kernels = record.job, record.kernels
    assert job is not None and kernels is not None and record.timing is not None
    (window,) = job.windows
    assert (window.count, window.step) == (3, 8) and window.cost_ms is not None
    # The trace is written in the step after them.
    assert [step.step for step in job.steps if step.traced] == [8, 9, 10, 11]
    assert record.timing.step.n == 24 - 4 - job.warmup_steps
    assert kernels.steps == 3 and kernels.perturbation is not None
    assert any("Linear" in row.module for row in kernels.rows)
    assert run.trace_path.is_file()
    assert ran([*PROGRAM, "show", "last", "--section", "tree"])[0] == 0
    page = tmp_path / "page.html"
    assert ran([*PROGRAM, "export", "last", "html", "-o", str(page)])[0] == 0
    assert "MultiheadAttention" not in page.read_text() and "Linear" in page.read_text()
    code, text, _ = ran([*PROGRAM, "compare", "last", "last"])
    assert code == 0 and b"sysbench-tui ab" not in text
    refused = ran([*PROGRAM, "ab", "last", "last", "--set", "batch=1"])
    assert refused[0] == 2 and b"not with commands" in refused[2]


def test_a_window_ends_with_its_command(tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    watch = [*PROGRAM, "watch", "--window", "21:9", "--", sys.executable, str(script)]
    code, _, errors = ran(watch)
    assert (code, errors) == (0, b"")
    run = newest_run()
    assert run is not None and (job := run.record().job) is not None
    assert [(row.step, row.count) for row in job.windows] == [(21, 3)]
    assert [row.problem for row in job.ranks] == [""]
    assert (kernels := run.record().kernels) is not None and kernels.steps == 3


def test_kernels_can_be_read_while_the_command_runs(early: Early) -> None:
    run, record = early.run, early.record
    assert record.status == "running" and record.job is not None and record.job.exit_code is None
    assert record.kernels is not None and record.timing is not None
    later = run.record()
    assert later.kernels is not None and later.job is not None
    assert later.kernels.step_ms == record.kernels.step_ms
    assert later.job.total_steps == 24 and later.job.exit_code == 0


def test_a_window_needs_a_live_command(sysbench_home: Path) -> None:
    ran([*PROGRAM, "watch", "--", "true"])
    code, _, errors = ran([*PROGRAM, "window", "last"])
    assert code == 2 and b"no live command" in errors


PROFILED = """
import json, torch
from torch.profiler import profile, ProfilerActivity
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
own = []
for _ in range(4):
    for _ in range(5):
        step()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(3):
            step()
    own.append(sum(row.name == "aten::addmm" for row in profiler.events()))
print(own)
"""


@pytest.mark.parametrize(
    ("window", "traced"),
    [("7:2", (9, 2)), ("11:4", (11, 2))],
    ids=["begins within the user's profile", "ends before the user's profile"],
)
def test_a_window_makes_way_for_the_user_s_profiler(
    window: str, traced: tuple[int, int], tmp_path: Path, sysbench_home: Path
) -> None:
    script = tmp_path / "profiled.py"
    script.write_text(PROFILED)
    watch = [*PROGRAM, "watch", "--window", window, "--", sys.executable, str(script)]
    code, printed, errors = ran(watch)
    assert (code, printed) == (0, b"[3, 3, 3, 3]\n"), errors
    run = newest_run()
    assert run is not None and (job := run.record().job) is not None
    assert [(row.step, row.count) for row in job.windows] == [traced]
    assert [row.problem for row in job.ranks] == [""]


SERVE = """
import serving
for request in range(9):
    serving.Engine().answer()
"""
SERVING = """
import torch
model = torch.nn.Linear(8, 8)
class Engine:
    @staticmethod
    def answer():
        with torch.no_grad():
            for token in range(3):
                model(torch.randn(2, 8))
"""


def test_calls_of_a_function_are_steps(tmp_path: Path, sysbench_home: Path) -> None:
    (tmp_path / "serving.py").write_text(SERVING)
    (tmp_path / "serve.py").write_text(SERVE)
    command = [sys.executable, str(tmp_path / "serve.py")]
    step_on = ["--step-on", "serving:Engine.answer"]
    assert ran([*PROGRAM, "watch", *step_on, "--", *command])[0] == 0
    run = newest_run()
    assert run is not None
    job = run.record().job
    assert job is not None and job.total_steps == 9
    assert all(step.forward_ms > 0 and step.evaluation_ms == 0 for step in job.steps)


def test_bad_options_are_refused() -> None:
    for text in ("", "3", "a:b", "5:0", "5:1000"):
        with pytest.raises(SpecError, match="STEP:COUNT"):
            window_of(text)
    for text in ("serving", "__main__:f", "a:b c", ":f"):
        with pytest.raises(SpecError, match=r"package\.module:function"):
            step_function(text)


DDP = """
import os, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    if dist.get_rank() == 1:
        time.sleep(0.1)
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_ranks_of_torchrun(tmp_path: Path, sysbench_home: Path) -> None:
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch = [*torchrun, "--nproc-per-node", "2", "--local-addr", "127.0.0.1", str(script)]
    code, _, errors = ran([*PROGRAM, "watch", "--", *launch])
    assert code == 0, errors
    run = newest_run()
    assert run is not None
    job = run.record().job
    assert job is not None and job.world_size == 2 and job.total_steps == 20
    assert [(row.rank, row.steps) for row in job.ranks if row.steps] == [(0, 20), (1, 20)]
    assert len(job.steps) == 40
    # Rank 0 waits for rank 1 in its backward, at the end of which DDP waits for the gradients.
    slowest = slowest_rank({n: [one for one in job.steps if one.rank == n] for n in (0, 1)})
    assert slowest is not None and slowest[0] == 1 and slowest[1] > 50
    for row in job.ranks:
        assert (row.communication_ms is not None) == bool(row.steps)
    for step in job.steps:
        assert step.communication_ms is not None and step.communication_ms < step.wall_ms
        assert sum(step_phases(step).values()) == pytest.approx(step.wall_ms, rel=1e-6)
    read = [event for event in run.tail().read() if isinstance(event, RanksRead)]
    assert [rank.rank for rank in read[-1].ranks] == [0, 1]
    for rank in read[-1].ranks:
        assert sum(rank.phases_ms.values()) == pytest.approx(rank.step_ms)
    # A process that has just ended has no memory.
    held = [rank.held_bytes for event in read for rank in event.ranks if rank.held_bytes]
    assert held and min(held) > 2**20
