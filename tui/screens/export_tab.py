"""Export: write artifacts and tables of a run to files. Log: output of its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Log, OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.errors import DamagedFileError, SysbenchError
from sysbench.core.export.exports import EXPORTS, default_path, write_export
from sysbench.core.record.record import Record
from sysbench.core.runs.artifacts import logs_of
from sysbench.core.spec.own_model import is_job
from sysbench.core.storage import last_bytes
from sysbench.core.tables.cells import literal
from sysbench.tui.screens.result_views import ResultTab
from sysbench.tui.text import amount
from sysbench.tui.widgets.choice import Options
from sysbench.tui.widgets.drawing import Framed

KIND_WIDTH = 12


class ExportTab(ResultTab[Record]):
    def content(self, record: Record) -> ComposeResult:
        with Framed("Export", "enter writes the selected export", id="kinds"):
            yield Options(*(Option(_label(kind), id=kind) for kind in EXPORTS))
        with Framed("Path of a file or folder", id="path"):
            yield Input(compact=True, id="target")
        with Framed("Written", id="outcome"):
            yield Static("(nothing written yet)", id="written", markup=False)

    def fill(self, record: Record) -> None:
        self._lines: list[Content] = []

    @on(OptionList.OptionHighlighted)
    def _propose(self, event: OptionList.OptionHighlighted) -> None:
        path = default_path(self.run, str(event.option_id), Path.cwd())
        self.query_one("#target", Input).value = str(path)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self._write(str(event.option_id), self.query_one("#target", Input).value)

    @on(Input.Submitted, "#target")
    def _entered(self, event: Input.Submitted) -> None:
        kinds = self.query_one(OptionList)
        if kinds.highlighted is not None:
            self._write(str(kinds.get_option_at_index(kinds.highlighted).id), event.value)

    @work(thread=True, group="export", exit_on_error=False)
    def _write(self, kind: str, target: str) -> None:
        """Write in a thread: a trace can have a gigabyte."""
        try:
            paths = write_export(self.run, kind, Path(target).expanduser())
        except (SysbenchError, OSError) as error:
            self.app.call_from_thread(self._say, [Content(f"✗ {kind}: {error}")])
            return
        lines = [
            Content(f"✓ {kind}: {path}  {amount(path.stat().st_size)}")
            for path in paths
            if path.is_file()
        ]
        self.app.call_from_thread(self._say, lines)

    def _say(self, lines: list[Content]) -> None:
        self._lines += lines
        self.query_one("#written", Static).update(Content("\n").join(self._lines))

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        def command(kind: str) -> tuple[str, str, Any]:
            path = str(default_path(self.run, kind, Path.cwd()))
            return f"export: Write {kind}", EXPORTS[kind].purpose, lambda: self._write(kind, path)

        return [command(kind) for kind in EXPORTS]


def _label(kind: str) -> Content:
    return Content.assemble(
        (f"{kind:<{KIND_WIDTH}}", "bold"), (EXPORTS[kind].purpose, "$foreground 70%")
    )


TAIL_BYTES = 2**20

OF_A_JOB = "The output of a watched command is in its own terminal."


class LogTab(ResultTab[Record]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "next_log", "Next log", id="log.next", tooltip="Show the next log")
    ]

    def content(self, record: Record) -> ComposeResult:
        self.index = 0
        yield Log(classes="panel")

    @property
    def sources(self) -> dict[str, Path]:
        """The logs by name, empty ones last."""
        passes = dict(logs_of(self.run, self.record))
        logs = passes | {"supervisor": self.run.path / "supervisor.log"}
        return dict(sorted(logs.items(), key=lambda log: not _has_text(log[1])))

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


def _has_text(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
