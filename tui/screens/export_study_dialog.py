"""Dialog that asks for a file name and writes a study's report."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.export.written_files import refuse_existing, write
from sysbench.core.studies.study_exports import STUDY_FORMATS, study_as
from sysbench.core.studies.study_report import Report
from sysbench.tui.widgets.dialog import Dialog


class StudyExportScreen(Dialog[None]):
    """Asks for a file name; its extension decides the format."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="dialog.cancel")
    ]

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def compose(self) -> ComposeResult:
        study = self._report.study
        name = "-".join(part for part in (study.name, study.variant) if part)
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Export the study"
            dialog.border_subtitle = "enter writes, esc cancels"
            yield Input(str(Path.cwd() / f"{name}.html"), compact=True)
            yield Static(f"The ending decides: {', '.join(STUDY_FORMATS)}", markup=False)
            yield Static(classes="complaint", markup=False)

    @on(Input.Submitted)
    def _write(self, event: Input.Submitted) -> None:
        path = Path(event.value.strip()).expanduser()
        kind = path.suffix.removeprefix(".")
        try:
            if kind not in STUDY_FORMATS:
                raise SpecError("path", str(path), f"ends in one of {', '.join(STUDY_FORMATS)}")
            refuse_existing([path], force=False)
            write(path, study_as(self._report, kind))
        except (SysbenchError, OSError) as error:
            self.query_one(".complaint", Static).update(f"✗ {error}")
            return
        self.app.notify(f"Wrote {path}", markup=False)
        self.dismiss()
