"""The interface process stays small: no torch, no pandas, no engine it does not use yet."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

DRIVE = """
import asyncio, json, sys
from sysbench.tui.app import SysbenchApp

async def main():
    app = SysbenchApp()
    async with app.run_test(size=(100, 30)) as pilot:
        for key in {keys!r}:
            await pilot.press(key)
            await pilot.pause()
        while not app.session.strip.latest:
            await pilot.pause(0.05)

asyncio.run(main())
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("keys", [["tab", "right"], ["f5", "f1", "escape", "ctrl+p"]])
def test_no_screen_loads_torch_or_pandas(keys: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVE.format(keys=keys)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not {"torch", "pandas", "nvtx"} & loaded


def test_the_first_screen_loads_no_other() -> None:
    code = "import sys, sysbench.tui.app, sysbench.tui.screens.run_screen; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    others = ("result_screen", "live_screen", "library_screen", "inspect_screen")
    for name in (f"sysbench.tui.screens.{other}" for other in others):
        assert find_spec(name), "a module that is gone cannot be loaded"
        assert name not in loaded
    assert "sysbench.core.runs.supervisor" not in loaded
