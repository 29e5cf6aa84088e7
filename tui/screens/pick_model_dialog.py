"""Dialog that asks for the code of a model: a recent one or a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sysbench.core.errors import SysbenchError
from sysbench.core.runs.library import Library
from sysbench.core.runs.run_directory import find_run
from sysbench.core.spec.model_source import CONFIG, factories_in
from sysbench.core.spec.own_model import HF, model_setting, names_code, source_of
from sysbench.tui.widgets.choice import Options
from sysbench.tui.widgets.dialog import Dialog
from sysbench.tui.widgets.drawing import Framed

MAX_RECENT = 5
MAX_NAMES = 10_000
"""Entries of a folder that are read."""
MAX_RUNS = 200
"""Newest runs that are searched for recent models."""
UP = ".."


class PickModelScreen(Dialog[str]):
    """Lists recent models, then the working directory; dismisses with a ``model``."""

    CSS = "PickModelScreen OptionList { max-height: 60vh; }"  # 80x24 has no room for 20 rows
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("backspace,left", "up", "Parent folder", id="pick.up"),
        Binding("right", "open", "Open", id="pick.open", show=False),
        Binding("tilde", "home", "Home", id="pick.home"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path.cwd()
        self._file: Path | None = None
        self._answers: list[Path | str] = []

    def compose(self) -> ComposeResult:
        hint = "enter: select, ←: parent folder, ~: home, esc: cancel"
        with Framed("A model of yours", hint, classes="dialog"):
            yield Static(id="where", markup=False)
            yield Options()
            yield self.complaint()

    def on_mount(self) -> None:
        self._show(is_first=True)

    def action_up(self) -> None:
        left, self._file = self._file or self._folder, None
        self._folder = left.parent
        self._show(left)

    def action_home(self) -> None:
        self._folder, self._file = Path.home(), None
        self._show()

    def action_open(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        answer = self._answers[event.option_index]
        if isinstance(answer, str):
            self.dismiss(answer)
        elif answer.name == UP:
            self.action_up()
        elif answer.is_dir():
            self._folder = answer
            self._show()
        elif answer.name == CONFIG:
            self.dismiss(f"{HF}{typed_path(answer)}")
        else:
            self._take(answer)

    def _take(self, file: Path) -> None:
        factories = factories_in(file)
        if len(factories) == 1:
            self.dismiss(f"{typed_path(file)}:{factories[0]}")
        elif factories:
            self._file = file
            self._show()
        else:
            self.complain(f"{file.name} has no function or class")

    def _show(self, before: Path | None = None, *, is_first: bool = False) -> None:
        """List the file's factories, or the folder, at first after recent models; highlight
        ``before``."""
        complaint, rows = "", list[tuple[str, Path | str]]()
        if self._file is not None:
            place = typed_path(self._file)
            rows = [(f"  {name}", f"{place}:{name}") for name in factories_in(self._file)]
        else:
            recent = list(dict.fromkeys(_models_run()))[:MAX_RECENT] if is_first else []
            rows = [(f"recent  {model}", model) for model in recent]
            try:
                rows += [(_label(path), path) for path in entries_of(self._folder)]
            except OSError as error:
                rows += [(f"  {UP}", self._folder / UP)]
                complaint = f"{self._folder}: {error.strerror}"
        self._answers = [answer for _, answer in rows]
        self.query_one("#where", Static).update(f"{self._file or self._folder}")
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(Content(label)) for label, _ in rows)
        options.highlighted = self._answers.index(before) if before in self._answers else 0
        self.complain(complaint)


def _label(path: Path) -> str:
    name = path.name if path.name.isprintable() else repr(path.name)
    return f"  {name}{'/' if path.name != UP and path.is_dir() else ''}"


def entries_of(folder: Path) -> list[Path]:
    """The parent folder, the folders, then the files that can define a model; none hidden.

    Raises OSError if the folder cannot be read.
    """
    folders, files = list[Path](), list[Path]()
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MAX_NAMES), entries, strict=False):
            if entry.name.startswith((".", "__pycache__")):
                continue
            if entry.is_dir():
                folders.append(folder / entry.name)
            elif entry.name.endswith(".py") or entry.name == CONFIG:
                files.append(folder / entry.name)
    return [folder / UP, *sorted(folders), *sorted(files)]


def typed_path(path: Path) -> str:
    """The path relative to the working directory or to ``~``, else absolute."""
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    if path.is_relative_to(Path.home()):
        return f"~/{path.relative_to(Path.home())}"
    return str(path)


def _models_run() -> Iterator[str]:
    """User models of the newest runs, as a user would type them."""
    for entry in Library().entries()[:MAX_RUNS]:
        if not names_code(entry.model):
            continue
        try:
            spec = find_run(entry.id).header().spec
        except (SysbenchError, OSError):
            continue  # the run is damaged or was just deleted
        model = model_setting(spec.model, spec.model_file)
        if not spec.model_file or source_of(spec.model).door == "module":
            yield model
        elif model.startswith(HF):
            yield HF + typed_path(Path(model.removeprefix(HF)))
        else:
            place, _, factory = model.rpartition(":")
            yield f"{typed_path(Path(place))}:{factory}"
