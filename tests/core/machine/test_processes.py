"""Processes that are stopped, found among the descendants of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sysbench.core.machine.host_sampler import stopped_process

FAMILY = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
    "print(child.pid, flush=True)\n"
    "input()\n"
    "child.stdin.close(); child.wait()\n"
)


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """Ids of a process and of its child."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent.pid, child
        for pid in (parent.pid, child):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("which", [0, 1])
def test_a_stopped_process_is_found(family: tuple[int, int], which: int) -> None:
    assert stopped_process(family[0]) is None
    os.kill(family[which], signal.SIGSTOP)
    # The kernel stops it when it next runs; nothing reports when.
    while stopped_process(family[0]) is None:
        pass
    assert stopped_process(family[0]) == family[which]


def test_one_that_is_gone_is_not_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert stopped_process(child.pid) is None
