"""Pictures of the real app on a real run, for the README: ``make screenshots``."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
SIZE = (120, 36)
TABS = ("summary", "kernels", "memory")
# The pictures must not make a reader's browser fetch fonts from elsewhere.
WEB_FONT = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)


async def take_pictures() -> None:
    """Measure a small model with every pass, then save what three tabs and the form show."""
    from sysbench.core import RunSpec, run
    from sysbench.tui.app import SysbenchApp
    from sysbench.tui.screens.result.screen import ResultScreen

    sized = RunSpec(vocab=4096, d_model=256, d_ff=1024, layers=4, heads=8, context=256)
    spec = sized.changed(threads=1, until=0.02)
    measured = await asyncio.to_thread(run, spec)
    app = SysbenchApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(2.0)
        save(app.export_screenshot(title="sysbench-tui"), "run")
        app.open_result(measured.directory)
        await pilot.pause(1.0)
        for tab in TABS:
            if isinstance(app.screen, ResultScreen):
                await app.screen.action_tab(tab)
            await pilot.pause(1.0)
            save(app.export_screenshot(title="sysbench-tui"), "result" if tab == TABS[0] else tab)


def save(picture: str, name: str) -> None:
    """Keep one SVG."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(WEB_FONT.sub("", picture))


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["SYSBENCH_HOME"] = home
        asyncio.run(take_pictures())


if __name__ == "__main__":
    main()
