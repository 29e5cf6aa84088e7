"""Clocks of the processors, and who else uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sysbench.core.machine.host_sampler import host_tick_ns, processor_mhz

BUSY = "while True: pass"
WATCH = """
from sysbench.core.machine.host_sampler import Neighbours
watch, busy = Neighbours(), []
while not busy:
    busy = watch.busiest()
print(busy[0].name, busy[0].cores > 0, watch.stolen_cores() >= 0)
"""
OWN_CHILD = """
import subprocess, sys, psutil
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
from sysbench.core.machine.host_sampler import Neighbours, _seconds_by_process
watch = Neighbours()
while psutil.Process(child.pid).cpu_times().user < 0.2:
    pass
watch.look()
print(child.pid in {pid for pid, _ in _seconds_by_process()})
child.kill()
"""


def test_the_highest_clock_of_the_allowed_processors_counts(tmp_path: Path) -> None:
    assert processor_mhz(tmp_path) is None
    for number in (*os.sched_getaffinity(0), 9999):
        folder = tmp_path / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        khz = 5_000_000 if number == 9999 else 2_400_000 + number
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    clock = processor_mhz(tmp_path)
    assert clock == 2400 + max(os.sched_getaffinity(0)) / 1000
    (tmp_path / f"cpu{max(os.sched_getaffinity(0))}/cpufreq/scaling_cur_freq").write_text("<unk>")
    assert processor_mhz(tmp_path) != clock


def test_the_clock_that_times_steps_advances() -> None:
    assert 0 < host_tick_ns() < 10**6


def test_a_busy_process_is_named() -> None:
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        seen = subprocess.run(
            [sys.executable, "-P", "-c", WATCH], capture_output=True, text=True, check=True
        ).stdout.split()
    finally:
        busy.kill()
        busy.wait()
    assert seen[1:] == ["True", "True"]


SECRET = """
from sysbench.core.machine.host_sampler import Neighbours
watch, busy = Neighbours(), []
while not any(row.name.startswith("a-worker-with-a") for row in busy):
    busy = watch.busiest(99)
print(busy)
"""


def test_no_argument_of_a_process_is_in_its_name(tmp_path: Path) -> None:
    """psutil completes a long name by the first argument, which a title of its own may fill."""
    link = tmp_path / "a-worker-with-a-long-name"
    link.symlink_to(sys.executable)
    title = f"{link.name} --token=hunter2"
    busy = subprocess.Popen([title, "-c", BUSY], executable=link)
    try:
        seen = subprocess.run(
            [sys.executable, "-P", "-c", SECRET], capture_output=True, text=True, check=True
        ).stdout
    finally:
        busy.kill()
        busy.wait()
    assert "'a-worker-with-a'" in seen and "hunter2" not in seen


def test_own_children_are_no_neighbours() -> None:
    seen = subprocess.run(
        [sys.executable, "-P", "-c", OWN_CHILD], capture_output=True, text=True, check=True
    ).stdout
    assert seen.strip() == "False"
