from __future__ import annotations

import os
import subprocess
import sys

import psutil

from sysbench.core.machine.host_sampler import UNSEEN, memory_capacity_bytes, process_name


def test_a_process_has_its_own_name() -> None:
    assert process_name(os.getpid()) == psutil.Process().name()


def test_a_process_that_ended_is_unseen() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_name(ended.pid) == UNSEEN


def test_capacity_is_at_most_the_machine() -> None:
    assert 0 < memory_capacity_bytes() <= psutil.virtual_memory().total
