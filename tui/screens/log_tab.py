"""Log: output of the workers and the supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Log

from sysbench.core.errors import DamagedFileError
from sysbench.core.record.record import Record
from sysbench.core.runs.artifacts import logs_of
from sysbench.core.spec.own_model import is_job
from sysbench.core.storage import last_bytes
from sysbench.core.tables.cells import literal
from sysbench.tui.screens.result_views import ResultTab

TAIL_BYTES = 2**20

OF_A_JOB = "The output of a watched command is in its own terminal."


class LogTab(ResultTab[Record]):
    """Shows one log at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "next_log", "Next log", id="log.next", tooltip="Show the next log")
    ]

    def content(self, record: Record) -> ComposeResult:
        self.index = 0
        yield Log(classes="panel")

    @property
    def sources(self) -> dict[str, Path]:
        """File of each log by name."""
        passes = dict(logs_of(self.run, self.record))
        return passes | {"supervisor": self.run.path / "supervisor.log"}

    def fill(self, record: Record) -> None:
        self._show()

    def action_next_log(self) -> None:
        self.index = (self.index + 1) % len(self.sources)
        self._show()

    def text(self) -> str:
        path = list(self.sources.values())[self.index]
        try:
            return last_bytes(path, TAIL_BYTES, inside=self.run.path).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except (OSError, DamagedFileError) as error:
            return f"cannot read the log: {error}"

    def _show(self) -> None:
        names = list(self.sources)
        log = self.query_one(Log)
        log.border_title = Content(f"{names[self.index]} log")
        log.border_subtitle = f"{self.index + 1} of {len(names)} · w: next"
        log.clear()
        lines = [literal(line.expandtabs()) for line in self.text().splitlines()]
        blank = OF_A_JOB if is_job(self.record.spec) else "(no output)"
        log.write("\n".join(lines) or blank)

    def copyable(self) -> tuple[str, str] | None:
        return f"the {list(self.sources)[self.index]} log", self.text()
