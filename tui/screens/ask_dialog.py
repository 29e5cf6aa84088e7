"""A question with a few answers, one key each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.screen import Screen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.errors import SpecError, SysbenchError
from sysbench.core.export.written_files import refuse_existing, write
from sysbench.core.record.blocks import PassName
from sysbench.core.runs.library import Entry, Library
from sysbench.core.spec.profiles import list_profiles, load_profile, save_profile
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.study_exports import STUDY_FORMATS, study_as
from sysbench.core.studies.study_report import StudyReport
from sysbench.core.tables.cells import heading_of
from sysbench.tui.explanations import EXPLANATIONS, Explanation
from sysbench.tui.modes import MODES
from sysbench.tui.text import amount, day_and_time, milliseconds
from sysbench.tui.widgets.choice import Options
from sysbench.tui.widgets.dialog import Dialog, Pair, dialog_room, hanging, pair_lines
from sysbench.tui.widgets.table_view import TableView


class DialogAnswer(NamedTuple):
    """One answer: the value that the screen dismisses with, its text, its key."""

    name: str
    label: str
    key: str


class AskScreen(Dialog[str]):
    """Dismisses with the name of the answer; escape gives the last one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, text: str, answers: Sequence[DialogAnswer]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self.answers = answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            yield Static(self._text, markup=False)
            with Horizontal(classes="buttons"):
                for answer in self.answers:
                    key = "esc" if answer.key == "escape" else answer.key
                    yield Button(f"{answer.label} ({key})", id=answer.name, compact=True)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id)

    def on_key(self, event: Key) -> None:
        for answer in self.answers:
            if event.key == answer.key:
                event.stop()
                self.dismiss(answer.name)


def ask_before_leaving() -> AskScreen:
    """Ask what to do with the live run; dismisses with ``leave``, ``stop`` or ``stay``."""
    text = (
        "It lives in its own process: leaving does not end it. "
        "Start sysbench-tui again to watch it."
    )
    answers = (
        DialogAnswer("leave", "Leave it running", "l"),
        DialogAnswer("stop", "Stop it", "s"),
        DialogAnswer("stay", "Stay", "escape"),
    )
    return AskScreen("A run is live", text, answers)


def ask_before_queueing() -> AskScreen:
    """Ask whether a run shall wait for the live one; dismisses with ``queue`` or ``stay``."""
    text = "This one can wait for the device, and begins when it is free."
    answers = (
        DialogAnswer("queue", "Queue it", "q"),
        DialogAnswer("stay", "Do not start", "escape"),
    )
    return AskScreen("A run is live", text, answers)


def ask_before_stopping() -> AskScreen:
    """Ask whether to end the live run; dismisses with ``stop`` or ``stay``."""
    text = "What it measured so far is kept; the run ends as cancelled."
    answers = (DialogAnswer("stop", "Stop it", "s"), DialogAnswer("stay", "Let it run", "escape"))
    return AskScreen("Stop the run?", text, answers)


class ExplainScreen(Dialog[None]):
    """The columns of the table where the cursor stands, then one paragraph a number; `subject` is
    the row in view, literal, when there is one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close", id="explain.close")
    ]

    def __init__(
        self, keys: Sequence[str], subject: str = "", columns: Sequence[Pair] = ()
    ) -> None:
        super().__init__()
        self._keys = keys
        self._subject = subject
        self._columns = columns

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Where it comes from"
            dialog.border_subtitle = "esc closes"
            if self._subject:
                yield Static(Content(f"{self._subject}\n"), id="subject", markup=False)
            yield Static(id="origins", markup=False)

    def on_mount(self) -> None:
        width = dialog_room(self.app.size.width)
        lines = [line for key in self._keys for line in _paragraph(EXPLANATIONS[key], width)]
        if self._columns:
            heading = Content.styled("Columns of this table", "bold $accent")
            lines = [heading, *pair_lines(self._columns, width), Content(""), *lines]
        if not lines:
            lines = [Content("This tab has no numbers to explain.")]
        self.query_one("#origins", Static).update(Content("\n").join(lines))


def columns_in_view(screen: Screen[Any]) -> list[Pair]:
    """Heading and sentence of each column of the table with the focus, else of the first."""
    tables = [table for table in screen.query(TableView) if table.is_on_screen]
    tables.sort(key=lambda table: not table.has_focus)
    shown = next((table.table for table in tables if table.table is not None), None)
    if shown is None:
        return []
    return [
        (f"  {heading_of(shown, name)}", shown.about[name])
        for name in shown.columns
        if name in shown.about
    ]


def _paragraph(entry: Explanation, width: int) -> Iterator[Content]:
    yield Content.styled(entry.title, "bold $accent")
    pairs = [
        ("  is", entry.formula),
        ("  clock", entry.clock),
        ("  source", entry.source),
        ("  includes", entry.included),
    ]
    yield from pair_lines(pairs, width)
    yield Content("")


KEY_WIDTH = 10


class HelpScreen(Dialog[None]):
    """The active keys of the screen below, grouped by the widget that has them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss", "Close", id="help.close")
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "esc closes"
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(Static).update(Content("\n").join(self._lines()))

    def _lines(self) -> Iterator[Content]:
        width = dialog_room(self.app.size.width)
        for mode in MODES.values():
            yield from hanging(_key(mode.title, "bold $accent"), mode.about, width)
        for title, keys in self._groups().items():
            yield Content("")
            yield Content.styled(title, "bold")
            for what, names in keys.items():
                yield from hanging(_key(" ".join(names), "$accent"), what, width)
        yield Content("")
        yield from hanging(
            _key("tab", "$accent"), "next field or panel; shift+tab goes back", width
        )
        yield from hanging(_key("← →", "$accent"), "turn a choice in the form", width)
        yield from hanging(_key("^p", "$accent"), "the palette: everything else", width)

    def _groups(self) -> dict[str, dict[str, list[str]]]:
        """By group title and action the keys of the screen below.

        Only our bindings have an id: Textual's move cursors and need no help.
        """
        groups: dict[str, dict[str, list[str]]] = {}
        below = self.app.screen_stack[-2]
        for node, binding, _, tooltip in below.active_bindings.values():
            if not binding.id or not binding.description:
                continue
            title = node.BINDING_GROUP_TITLE or below.BINDING_GROUP_TITLE or "Here"
            about = tooltip or binding.tooltip
            what = f"{binding.description}: {about}" if about else binding.description
            keys = groups.setdefault(title, {}).setdefault(what, [])
            keys.append(self.app.get_key_display(binding))
        return groups


def _key(text: str, style: str) -> Content:
    return Content.styled(f"{text:<{KEY_WIDTH}}", style)


CANCEL: list[BindingType] = [Binding("escape", "dismiss", "Cancel", id="dialog.cancel")]


class SaveScreen(Dialog[None]):
    """Asks for a name and writes the profile."""

    BINDINGS: ClassVar[list[BindingType]] = CANCEL

    def __init__(self, spec: RunSpec, passes: list[PassName]) -> None:
        super().__init__()
        self._spec = spec
        self._passes = passes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Save as profile"
            dialog.border_subtitle = "enter saves, esc cancels"
            yield Input(placeholder="a name, such as large-bf16", compact=True)
            yield Static(classes="complaint", markup=False)

    @on(Input.Submitted)
    def _save(self, event: Input.Submitted) -> None:
        try:
            path = save_profile(event.value.strip(), self._spec, self._passes)
        except (SysbenchError, OSError) as error:
            self.query_one(".complaint", Static).update(f"✗ {error}")
            return
        self.app.notify(f"Saved {path}", markup=False)
        self.dismiss()


class LoadScreen(Dialog[tuple[RunSpec, list[PassName]]]):
    """Lists the saved profiles; dismisses with the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = CANCEL

    def compose(self) -> ComposeResult:
        names = list_profiles()
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Load a profile"
            dialog.border_subtitle = "enter loads, esc cancels"
            if names:
                yield Options(*(Option(Content(name), id=name) for name in names))
            else:
                yield Static("No profile is saved yet. Fill the form, then ^s.", markup=False)
            yield Static(classes="complaint", markup=False)

    @on(OptionList.OptionSelected)
    def _load(self, event: OptionList.OptionSelected) -> None:
        try:
            self.dismiss(load_profile(str(event.option.prompt)))
        except (SysbenchError, OSError) as error:
            self.query_one(".complaint", Static).update(f"✗ {error}")


class StudyExportScreen(Dialog[None]):
    """Asks for a file name; its extension decides the format."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="dialog.cancel")
    ]

    def __init__(self, report: StudyReport) -> None:
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


MOST = 200


class PickRunScreen(Dialog[str]):
    """Lists runs, the newest first; dismisses with the id of the chosen one."""

    BINDINGS = CANCEL

    def __init__(self, title: str, wanted: Callable[[Entry], bool]) -> None:
        super().__init__()
        self._title = title
        self._entries = [entry for entry in Library().entries() if wanted(entry)]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "enter picks, esc cancels"
            if self._entries:
                yield Input(placeholder="words that must occur", compact=True)
                yield Options()
            else:
                yield Static(
                    "There is no other run to choose. esc, then F2 measures one.", markup=False
                )

    def on_mount(self) -> None:
        self._list("")

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, text: str) -> None:
        words = text.lower().split()
        rows = [(entry.id, entry_text(entry)) for entry in self._entries]
        fitting = [
            Option(Content(row), id=run_id)
            for run_id, row in rows
            if all(word in f"{row} {run_id}".lower() for word in words)
        ]
        for options in self.query(OptionList):
            options.clear_options()
            options.add_options(fitting[:MOST])
            options.highlighted = 0 if fitting else None

    @on(Input.Submitted)
    def _take_first(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


def entry_text(entry: Entry) -> str:
    """The settings that decide a run's numbers, and the numbers, on one line."""
    size = f"{entry.model} B{entry.batch} ctx {entry.context} {entry.precision} {entry.step}"
    figures = f"{milliseconds(entry.median_ms)}  {amount(entry.peak_bytes)}"
    return f"{day_and_time(entry.created_ns)}  {size}  {figures}"
