"""Log: the output of the workers and the supervisor, literal."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Log

from sysbench.core.errors import DamagedFileError
from sysbench.core.runs.artifacts import logs_of
from sysbench.core.storage import last_bytes
from sysbench.core.tables.cells import literal
from sysbench.tui.screens.result_views import ResultTab

TAIL_BYTES = 2**20


class LogTab(ResultTab):
    """One log at a time; `w` turns to the next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "next_log", "Next log", id="log.next", tooltip="The next pass's log")
    ]

    def compose(self) -> ComposeResult:
        self.at = 0
        log = Log(classes="panel")
        yield log

    @property
    def sources(self) -> dict[str, Path]:
        """Name of each log to its file."""
        passes = dict(logs_of(self.run, self.record))
        return passes | {"supervisor": self.run.path / "supervisor.log"}

    def on_mount(self) -> None:
        self._show()

    def action_next_log(self) -> None:
        """Show the log of the next pass."""
        self.at = (self.at + 1) % len(self.sources)
        self._show()

    def text(self) -> str:
        """The last part of the log in view."""
        path = list(self.sources.values())[self.at]
        try:
            return last_bytes(path, TAIL_BYTES, inside=self.run.path).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except (OSError, DamagedFileError) as error:
            return f"It cannot be read: {error}"

    def _show(self) -> None:
        names = list(self.sources)
        log = self.query_one(Log)
        log.border_title = Content(f"{names[self.at]} log")
        log.border_subtitle = f"w: {self.at + 1} of {len(names)}"
        log.clear()
        lines = [literal(line.expandtabs()) for line in self.text().splitlines()]
        log.write("\n".join(lines) or "It printed nothing.")

    def copyable(self) -> tuple[str, str] | None:
        return f"the {list(self.sources)[self.at]} log", self.text()
