"""Dialogs: questions, explanations, help, profiles, study export, choice of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Key, Resize
from textual.screen import Screen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.errors import SpecError
from sysbench.core.export.exports import refuse_existing, write
from sysbench.core.record.blocks import PassName
from sysbench.core.runs.library import Entry, Library
from sysbench.core.spec.profiles import save_profile
from sysbench.core.spec.spec import RunSpec
from sysbench.core.studies.study_report import STUDY_FORMATS, StudyReport, study_as
from sysbench.core.tables.cells import heading_of
from sysbench.core.tables.table import Table
from sysbench.tui.modes import MODES
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.text import amount, day_and_time, milliseconds
from sysbench.tui.widgets.choice import Options
from sysbench.tui.widgets.dialog import Dialog, InputDialog, report_errors
from sysbench.tui.widgets.drawing import Folding, Framed, Pair, hanging, pair_lines, wrap_lines
from sysbench.tui.widgets.table_view import TableView

if TYPE_CHECKING:
    from sysbench.tui.app import SysbenchApp


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a number is computed."""

    title: str
    formula: str
    clock: str
    source: str
    included: str


def _read(path: Path) -> dict[str, Explanation]:
    areas = msgspec.toml.decode(path.read_bytes(), type=dict[str, dict[str, Explanation]])
    return {
        f"{area}.{name}": entry for area, names in areas.items() for name, entry in names.items()
    }


EXPLANATIONS = _read(Path(__file__).parents[1] / "explanations.toml")
"""How each number on the screens is computed, from ``explanations.toml``."""


class DialogAnswer(NamedTuple):
    name: str
    label: str
    key: str


class AskScreen(Dialog[str]):
    """Asks a question with one key per answer; dismisses with the name of the answer."""

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
        with Framed(self._title, classes="dialog"):
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
    text = "It continues if you quit. Start sysbench-tui again to watch it."
    answers = (
        DialogAnswer("leave", "Quit, keep it running", "l"),
        DialogAnswer("stop", "Stop it", "s"),
        DialogAnswer("stay", "Stay", "escape"),
    )
    return AskScreen("A run is live", text, answers)


def ask_before_queueing() -> AskScreen:
    """Ask whether to queue a run; dismisses with ``queue`` or ``stay``."""
    text = "The new run can wait and start when the device is free."
    answers = (
        DialogAnswer("queue", "Queue it", "q"),
        DialogAnswer("stay", "Do not start", "escape"),
    )
    return AskScreen("A run is live", text, answers)


def ask_before_long(takes: str) -> AskScreen:
    """Ask whether to start a study that takes this long; dismisses with ``start`` or ``stay``."""
    answers = (
        DialogAnswer("start", "Start", "y"),
        DialogAnswer("stay", "Do not start", "escape"),
    )
    return AskScreen("Start a long study?", f"The empty cells take {takes}.", answers)


def ask_before_stopping(
    screen: Screen[Any], title: str, text: str, stop: Callable[[], bool], over: str
) -> None:
    def answered(choice: str | None) -> None:
        with report_errors(screen, "Not stopped"):
            if choice == "stop" and not stop():
                screen.notify(over)

    answers = (DialogAnswer("stop", "Stop it", "s"), DialogAnswer("stay", "Let it run", "escape"))
    screen.app.push_screen(AskScreen(title, text, answers), answered)


WIDE = 140
"""Width from which explanations are at the right, and help has two columns."""


class TextScreen(Dialog[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1,q,enter", "dismiss", "Close", id="text.close")
    ]
    heading = ""
    WIDE_CLASS: ClassVar[str] = ""
    """Class of the dialog on screens of `WIDE` columns."""

    def compose(self) -> ComposeResult:
        # The class from the start, as adding it later costs a layout.
        wide = self.WIDE_CLASS if self.app.size.width >= WIDE else ""
        with VerticalScroll(classes=f"dialog {wide}") as dialog:
            dialog.border_title = Content(self.heading)
            dialog.border_subtitle = "esc closes"
            yield Folding(wrap_lines(self.lines), id="text")

    def on_resize(self, event: Resize) -> None:
        if self.WIDE_CLASS:
            self.query_one(".dialog").set_class(event.size.width >= WIDE, self.WIDE_CLASS)

    def lines(self, width: int) -> Iterator[Content]:
        raise NotImplementedError


class NotesScreen(TextScreen):
    def __init__(self, title: str, lines: Callable[[int], Iterable[Content]]) -> None:
        super().__init__()
        self.heading, self._lines = title, lines

    def lines(self, width: int) -> Iterator[Content]:
        yield from self._lines(width)


class TableScreen(Dialog[None]):
    CSS = "TableScreen TableView { max-height: 60vh; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,enter", "dismiss", "Close", id="table.close")
    ]

    def __init__(self, table: Table) -> None:
        super().__init__()
        self._table = table

    def compose(self) -> ComposeResult:
        with Framed(self._table.title, "esc closes", classes="dialog -broad"):
            view = TableView(self._table)
            view.styles.height = len(self._table.rows) + 1
            yield view


class ExplainScreen(TextScreen):
    """Explains the selected row, the columns of its table, and the numbers of the screen."""

    heading = "About these numbers"
    WIDE_CLASS = "-docked"

    def __init__(
        self, keys: Sequence[str], subject: str = "", columns: Sequence[Pair] = ()
    ) -> None:
        super().__init__()
        self._keys = keys
        self._subject = subject
        self._columns = columns

    def lines(self, width: int) -> Iterator[Content]:
        for text in self._subject.splitlines():
            yield from hanging(Content(""), text, width)
        if self._subject:
            yield Content("")
        if self._columns:
            yield Content.styled("Columns of this table", "bold $accent")
            yield from pair_lines(self._columns, width)
            yield Content("")
        for key in self._keys:
            yield from _paragraph(EXPLANATIONS[key], width)
        if not self._columns and not self._keys:
            yield Content("Nothing to explain on this tab.")


def columns_in_view(screen: Screen[Any]) -> list[Pair]:
    """Heading and explanation of each column of the focused table, else of the first one."""
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
        ("  formula", entry.formula),
        ("  clock", entry.clock),
        ("  source", entry.source),
        ("  includes", entry.included),
    ]
    yield from pair_lines(pairs, width)
    yield Content("")


KEY_WIDTH = 10
MIN_COLUMN, GUTTER = 50, 4


class HelpScreen(TextScreen):
    """The active keys of the screen below, grouped by widget."""

    heading = "Help"
    WIDE_CLASS = "-broad"

    def lines(self, width: int) -> Iterator[Content]:
        if width >= 2 * MIN_COLUMN:
            column = (width - GUTTER) // 2
            yield from _in_two_columns([*self._blocks(column)], column)
        else:
            first, *others = self._blocks(width)
            yield from first
            for block in others:
                yield from [Content(""), *block]

    def _blocks(self, width: int) -> Iterator[list[Content]]:
        yield [
            line
            for mode in MODES.values()
            for line in hanging(_key(mode.title, "bold $accent"), mode.about, width)
        ]
        for title, keys in self._groups().items():
            yield [
                Content.styled(title, "bold"),
                *_key_lines({" ".join(names): what for what, names in keys.items()}, width),
            ]
        others = {
            "tab": "next field or panel; shift+tab: previous",
            "← →": "change a choice in the form",
            "^p": "command palette: everything else",
        }
        yield [*_key_lines(others, width)]

    def _groups(self) -> dict[str, dict[str, list[str]]]:
        """Keys of the screen below by group title and action.

        Only this program's bindings have an id; Textual's cursor keys need no help.
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


def _key_lines(keys: Mapping[str, str], width: int) -> Iterator[Content]:
    for key, what in keys.items():
        yield from hanging(_key(key, "$accent"), what, width)


def _in_two_columns(blocks: Sequence[list[Content]], width: int) -> Iterator[Content]:
    """Blocks with a blank line after each, split where the columns are closest in height."""
    heights = [len(block) + 1 for block in blocks]
    split = min(
        range(1, len(blocks)), key=lambda at: max(sum(heights[:at]), sum(heights[at:])), default=1
    )
    left, right = (
        [line for block in side for line in (*block, Content(""))]
        for side in (blocks[:split], blocks[split:])
    )
    for one, other in zip_longest(left, right, fillvalue=Content("")):
        yield one + Content(" " * (width + GUTTER - one.cell_length)) + other


def ask_profile_name(spec: RunSpec, passes: list[PassName]) -> InputDialog:
    box = Input(placeholder="a name, such as large-bf16", compact=True)
    return InputDialog(
        "Save as profile", "saves", box, lambda name: f"Saved {save_profile(name, spec, passes)}"
    )


def ask_study_path(report: StudyReport) -> InputDialog:
    """Ask for a file name and export the study; the extension selects the format."""

    def export(text: str) -> str:
        path = Path(text).expanduser()
        kind = path.suffix.removeprefix(".")
        if kind not in STUDY_FORMATS:
            raise SpecError("path", str(path), f"use one of {', '.join(STUDY_FORMATS)}")
        refuse_existing([path], force=False)
        write(path, study_as(report, kind))
        return f"Wrote {path}"

    name = "-".join(part for part in (report.study.name, report.study.variant) if part)
    box = Input(str(Path.cwd() / f"{name}.html"), compact=True)
    hint = f"Format by extension: {', '.join(STUDY_FORMATS)}"
    return InputDialog("Export the study", "writes", box, export, hint=hint)


MAX_ROWS = 200


class PickRunScreen(Dialog[str]):
    """Lists runs, newest first; dismisses with the id of the chosen one."""

    def __init__(self, title: str, wanted: Callable[[Entry], bool]) -> None:
        super().__init__()
        self._title = title
        self._entries = [entry for entry in Library().entries() if wanted(entry)]

    def compose(self) -> ComposeResult:
        with Framed(self._title, "enter selects, esc cancels", classes="dialog"):
            if self._entries:
                yield Input(placeholder="filter (all words must match)", compact=True)
                yield Options()
            else:
                yield Static("There is no other run. Press F2 to start one.", markup=False)

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
            options.add_options(fitting[:MAX_ROWS])
            options.highlighted = 0 if fitting else None

    @on(Input.Submitted)
    def _take_first(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


def entry_text(entry: Entry) -> str:
    """Time, main settings, step time and peak of a run on one line."""
    size = f"{entry.model} B{entry.batch} ctx {entry.context} {entry.precision} {entry.step}"
    figures = f"{milliseconds(entry.median_ms)}  {amount(entry.peak_bytes)}"
    return f"{day_and_time(entry.created_ns)}  {size}  {figures}"


UNASKED = "theme: "
"""Prefix of commands that are listed only in a search."""


Command = tuple[str, str, Callable[[], Any]]
"""Title, help, and function of a command."""


class WorkstationCommands(Provider):
    """What the screen's keys do now, its commands without a key, then those of all screens."""

    async def discover(self) -> Hits:
        for title, help, call in self._commands():
            if not title.startswith(UNASKED):
                yield DiscoveryHit(title, call, help=_plain(help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, help, call in self._commands():
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), call, help=_plain(help))

    def _commands(self) -> Iterator[Command]:
        app, screen = cast("SysbenchApp", self.app), self.screen
        keys = key_commands(screen)
        yield from sorted(keys, key=lambda command: command[0].startswith("screen: "))
        if isinstance(screen, WorkScreen):
            yield from screen.palette_commands()
        for mode in MODES.values():
            if app.check_action("mode", (mode.name,)):
                open_mode = partial(app.action_mode, mode.name)
                yield f"go: Open {mode.title}", mode.tooltip, open_mode
        yield "app: Show keys", "every key of this screen", app.action_help
        other = "light" if app.current_theme.dark else "dark"
        yield f"app: Use {other} colours", "kept between starts", app.action_switch_theme
        for theme in sorted(app.available_themes):
            if theme != app.theme:
                yield f"theme: Use {theme}", "", partial(app.choose_theme, theme)
        yield (
            "app: Save screenshot",
            "an SVG of this screen, in the current folder",
            app.save_picture,
        )
        yield "app: Quit", "you can leave a live run running", app.action_quit


def key_commands(screen: Screen[Any]) -> Iterator[Command]:
    """The actions of the active keys that explain themselves, the app's own excepted."""
    app, seen = screen.app, set[str]()
    for node, binding, is_enabled, tooltip in screen.active_bindings.values():
        about = tooltip or binding.tooltip
        is_own = node is not app and bool(binding.id)
        if not (is_own and is_enabled and about) or binding.action in seen:
            continue
        seen.add(binding.action)
        help = f"key {app.get_key_display(binding)}"
        if about[0].islower():  # what a tab shows
            about, help = f"Show {binding.description.lower()}", about
        area = str(binding.id).rpartition(".")[0] or "screen"
        yield f"{area}: {about}", help, partial(app.run_action, binding.action, node)


def _plain(help: str) -> Any:
    return Content(help)
