"""Inspect: imported files (trace, snapshot, nsys export) as result tabs, or a folder of ranks.

A sandboxed child process decodes each file.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import Input, ProgressBar, Static

from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.inspection.compared_sides import find_source
from sysbench.core.inspection.decoding import Decoding
from sysbench.core.inspection.inspection import READABLE, Inspection, Progressed
from sysbench.core.inspection.ranks_folder import FolderDecoding, FolderError
from sysbench.core.ranks.rank_rows import Ranks
from sysbench.core.tables.cells import literal
from sysbench.tui.keys import give_focus
from sysbench.tui.live.pair_watch import Pair
from sysbench.tui.screens.inspect_start import StartPanel
from sysbench.tui.screens.result_views import STYLES, TABS, TabbedScreen
from sysbench.tui.text import decoding_text, file_text, folder_text
from sysbench.tui.widgets.choice import path_box
from sysbench.tui.widgets.dialog import InputDialog
from sysbench.tui.widgets.key_bar import CommandLine, TabBar

if TYPE_CHECKING:
    from sysbench.tui.screens.inspect_ranks import RanksPanel

INSPECTED = tuple(
    sorted(
        (tab for tab in TABS.values() if hasattr(Inspection, tab.block)),
        key=lambda tab: (tab.name != "findings", tab.name == "timeline"),
    )
)
"""Tabs that an inspection can have, the overview first, the timeline last."""

INTRODUCTION = (
    f"Type a path and press enter, or choose below (↓): {READABLE}, from any program and machine. "
    "A folder with one file per rank of a job shows the ranks side by side."
)


OPTION = re.compile(r"\s--(device|steps?|capture)[=\s]\s*(\S+)$")


def _split_options(text: str) -> tuple[str, dict[str, str]]:
    options: dict[str, str] = {}
    while match := OPTION.search(text):
        options[match[1]] = match[2]
        text = text[: match.start()].rstrip()
    return text, options


def _choice(options: Mapping[str, str]) -> tuple[int | None, tuple[int, int] | None]:
    """The device, and the first and last step; None if not given. Raises SpecError."""
    device, steps = options.get("device"), options.get("steps") or options.get("step")
    if device is not None and not device.isdecimal():
        raise SpecError("--device", device, "a number")
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", steps) if steps else None
    if steps and match is None:
        raise SpecError("--steps", steps, "step numbers such as 3 or 2-5")
    chosen = (int(match[1]), int(match[2] or match[1])) if match else None
    return None if device is None else int(device), chosen


class InspectScreen(TabbedScreen):
    AREA = "inspect"
    CSS_PATH: ClassVar[list[str | PurePath]] = [*STYLES, "inspect_screen.tcss"]
    AUTO_FOCUS = "#file"
    BINDING_GROUP_TITLE = "Inspect"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "choose", "Open", show=False, id="inspect.open", tooltip="Open another file"),
        Binding("t", "step", "Step", id="inspect.step", tooltip="Show only some steps"),
        Binding(
            "c", "compare", "Compare", id="inspect.compare", tooltip="Compare with a file or run"
        ),
        Binding("u", "ranks", "Ranks", id="inspect.ranks", tooltip="Back to the folder's ranks"),
        Binding("down", "start", "Files", show=False, id="inspect.start"),
        Binding("escape", "cancel", "Cancel", id="inspect.cancel", tooltip="Stop decoding"),
        Binding("escape", "back", "Back", show=False, id="inspect.back"),
        *(
            Binding(
                str(number),
                f"number({number})",
                "Tab",
                show=False,
                id=f"inspect.tab-{number}",
                tooltip=f"Show tab {number}",
            )
            for number in range(1, len(INSPECTED) + 1)
        ),
    ]

    start = getters.query_one(StartPanel)

    def __init__(self) -> None:
        super().__init__()
        self._decoding: Decoding | FolderDecoding | None = None
        self._panel: RanksPanel | None = None
        self._path = ""
        self._folder: Path | None = None
        """Folder of the ranks that were shown last."""

    def body(self) -> ComposeResult:
        yield path_box("a file or a folder of ranks, then enter", id="file")
        yield Static(id="heading", markup=False)
        with Container(id="tabs"):
            yield TabBar(())
        yield Static(id="message", markup=False)
        yield StartPanel(id="start")
        with Vertical(id="decoding"):
            yield ProgressBar(show_eta=False)
            yield Static(id="stage", markup=False)
        yield Container(id="place")
        yield CommandLine("sysbench-tui inspect FILE")

    def on_mount(self) -> None:
        self.query_one("#message", Static).update(INTRODUCTION)
        self._show_only("file", "message", "start")

    def on_unmount(self) -> None:
        self._stop()

    def on_screen_resume(self, event: ScreenResume) -> None:
        if self.start.display:
            self.start.load()

    async def on_start_panel_opened(self, event: StartPanel.Opened) -> None:
        await self.open(event.path)

    @on(Input.Submitted, "#file")
    async def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            path, options = _split_options(event.value.strip())
            await self.open(Path(os.path.expanduser(path)), options)

    async def open(self, path: Path, options: Mapping[str, str] | None = None) -> None:
        """Decode a file or a folder of ranks, with options as on the command line, then show the
        tables."""
        self._stop()
        await self.clear()
        self._path = str(path)
        chosen = [f"--{name}={value}" for name, value in (options or {}).items()]
        self.query_one("#file", Input).value = " ".join((str(path), *chosen))
        words = ["sysbench-tui", "inspect", str(path), *chosen]
        self.query_one(CommandLine).show(literal(shlex.join(words)))
        try:
            device, steps = _choice(options or {})
            other = (options or {}).get("capture")
            capture = Path(os.path.expanduser(other)) if other else None
            if path.is_dir():
                if steps or capture:
                    raise FolderError("--steps and --capture need a file, not a folder")
                self._decoding = FolderDecoding(path, device=device)
            else:
                self._decoding = Decoding(path, device=device, steps=steps, capture=capture)
        except (SysbenchError, OSError) as error:
            self._refuse(str(error))
            return
        self._show_only("file", "decoding")
        self.query_one(ProgressBar).update(total=None)
        self.query_one("#stage", Static).update("starting")
        self.refresh_bindings()
        self._decode(self._decoding)

    @work(thread=True)
    def _decode(self, decoding: Decoding | FolderDecoding) -> None:
        def show(path: Path, step: Progressed) -> None:
            self.call_later(self._show_step, decoding, path, step)

        result: Inspection | Ranks | None = None
        reason = ""
        try:
            if isinstance(decoding, FolderDecoding):
                result = decoding.run(show)
            else:
                result = decoding.run(partial(show, decoding.path))
        except (SysbenchError, OSError) as error:
            reason = str(error)
        self.call_later(self._show_end, decoding, result, reason)

    def _show_step(self, decoding: Decoding | FolderDecoding, path: Path, step: Progressed) -> None:
        if decoding is self._decoding:
            total = None if step.share is None else 1.0
            self.query_one(ProgressBar).update(total=total, progress=step.share or 0.0)
            of = f"{path.name}: " if isinstance(decoding, FolderDecoding) else ""
            words = f"{of}{decoding_text(step)} · esc cancels"
            self.query_one("#stage", Static).update(literal(words))

    async def _show_end(
        self, decoding: Decoding | FolderDecoding, result: Inspection | Ranks | None, reason: str
    ) -> None:
        if decoding is not self._decoding:
            return
        self._decoding = None
        if isinstance(result, Ranks):
            await self._show_ranks(Path(self._path), result)
        elif result is not None and isinstance(decoding, Decoding):
            if run := decoding.entry.bundled_run:
                self._show_only("file", "message", "start")
                self.app.open_result(run)
            else:
                await self._show_tables(decoding, result)
        else:
            self._refuse(reason)
        self.refresh_bindings()

    async def _show_ranks(self, folder: Path, ranks: Ranks) -> None:
        from sysbench.tui.screens.inspect_ranks import RanksPanel  # lazy: its tables need numpy

        self._folder, self._panel = folder, RanksPanel(ranks, folder)
        self.bar.names = self._panel.names
        self._head(folder_text(ranks), folder.absolute().name, "  enter: open a rank")
        await self.place.mount(self._panel)
        self._show_only("heading", "tabs", "place")
        await self.action_tab(self.bar.names[0])

    async def on_ranks_panel_opened(self, event: RanksPanel.Opened) -> None:
        await self.open(event.path)

    def _head(self, what: str, name: str, keys: str) -> None:
        self.query_one("#heading", Static).update(
            Content.assemble(
                (f"✓ {what}  ", "$success"),
                (literal(name), "bold"),
                (keys, "$foreground 60%"),
            )
        )

    async def _show_tables(self, decoding: Decoding, inspection: Inspection) -> None:
        self._run, self.record = decoding.entry.as_run, inspection.as_record()
        self.bar.names = tuple(
            tab.name for tab in INSPECTED if getattr(inspection, tab.block) is not None
        )
        self._head(
            file_text(inspection),
            Path(inspection.file).name,
            "  u: back to the ranks" if self._is_of_ranks() else "  o: open file",
        )
        self._show_only("heading", "tabs", "place")
        await self.action_tab(self.bar.names[0])

    def _refuse(self, reason: str) -> None:
        message = self.query_one("#message", Static)
        message.set_class(True, "-refused")
        message.update(Content("\n".join(map(literal, f"✗ {reason}".splitlines()))))
        self._show_only("file", "message", "start")
        give_focus(self.query_one("#file"))

    def _show_only(self, *names: str) -> None:
        for name in ("file", "message", "start", "decoding", "heading", "tabs", "place"):
            self.query_one(f"#{name}").display = name in names
        if "start" in names:
            self.start.load()

    def _stop(self) -> None:
        if self._decoding is not None:
            self._decoding.cancel()
            self._decoding = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "cancel":
            return self._decoding is not None
        if action == "start":
            return self.start.display
        if action == "ranks":
            return self._decoding is None and self._panel is None and self._is_of_ranks()
        if action == "step":
            kernels = self.record.kernels if self.record and self.tab is not None else None
            return bool(kernels and kernels.marked_steps)
        if action == "compare":
            return self._decoding is None and self._panel is None and self.tab is not None
        if action == "back":
            return self._decoding is None and (self._panel or self.tab) is not None
        if action == "number":
            return int(str(parameters[0])) <= len(self.bar.names)
        return super().check_action(action, parameters)

    def action_cancel(self) -> None:
        self._stop()
        self._refuse("cancelled")
        self.refresh_bindings()

    def action_choose(self) -> None:
        box = self.query_one("#file")
        box.display = True
        give_focus(box)

    def action_start(self) -> None:
        self.start.start_focus()

    def action_step(self) -> None:
        self.action_choose()
        # Focusing selects the text, so change it afterwards.
        self.call_after_refresh(self._begin_steps)

    def _begin_steps(self) -> None:
        box = self.query_one("#file", Input)
        box.value = f"{self._path} --steps="
        box.cursor_position = len(box.value)

    def action_back(self) -> None:
        self.query_one("#file").display = False
        if self._panel is not None:
            self._panel.turn_to(self._panel.name_shown)
        elif self.tab is not None:
            self.tab.start_focus()

    def action_compare(self) -> None:
        """Ask for B; the file in view is A."""

        def open_both(text: str) -> str:
            pair = Pair(Path(self._path), find_source(os.path.expanduser(text)))
            self.app.call_later(self.app.open_comparison, pair)  # after the dialog is gone
            return ""

        box = path_box("a file, or the id of a run")
        title = f"Compare {literal(Path(self._path).name)} (A) with B"
        self.app.push_screen(InputDialog(title, "compares", box, open_both))

    async def action_ranks(self) -> None:
        if self._folder is not None:
            await self.open(self._folder)

    def _is_of_ranks(self) -> bool:
        return self._folder is not None and Path(self._path).parent == self._folder

    async def clear(self) -> None:
        self._panel = None
        await super().clear()

    async def action_tab(self, name: str) -> None:
        if self._panel is None:
            await super().action_tab(name)
        else:
            self._panel.turn_to(name)
            self.bar.active = name

    def copyable(self) -> tuple[str, str]:
        return self._panel.copyable() if self._panel is not None else super().copyable()

    def explanations(self) -> list[str]:
        return (
            ["ranks.parts", "ranks.clocks"] if self._panel is not None else super().explanations()
        )

    async def action_number(self, number: int) -> None:
        await self.action_tab(self.bar.names[number - 1])

    def command(self) -> str:
        return self.query_one(CommandLine).command
