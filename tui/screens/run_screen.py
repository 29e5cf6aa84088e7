"""Run: choose what to measure and see its prediction."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import getters, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus, Paste, Resize
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Button, Static
from textual.worker import get_current_worker

from sysbench.core.errors import SysbenchError
from sysbench.core.formatting import counted
from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.runs.run_directory import create_run
from sysbench.core.spec.command_line import command_line, estimate_command
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.profiles import list_profiles, load_profile, resolve
from sysbench.tui.screens.run_filled import (
    FormContent,
    FormState,
    first_state,
    is_command,
    read_command,
)
from sysbench.tui.screens.run_form import FieldRow, SpecForm
from sysbench.tui.screens.run_prediction import (
    PredictionView,
    exact_text,
    exact_verdict,
    prediction_line,
)
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.widgets.choice import ChoiceScreen
from sysbench.tui.widgets.dialog import report_errors
from sysbench.tui.widgets.key_bar import CommandLine, KeyBar

if TYPE_CHECKING:
    from sysbench.core.predict.dry_run_client import Estimator, ExactPrediction
    from sysbench.core.runs.run_directory import RunDirectory
    from sysbench.core.spec.world import World
    from sysbench.tui.screens.run_device_prediction import DevicePrediction, PredictedWorld


PLAY_SECONDS = 0.6
"""Pause in typing after which the ranks of a world are played."""
SLIM = 60
"""Below this width the prediction panel shrinks to one line."""


class RunScreen(WorkScreen):
    CSS_PATH = "run_screen.tcss"
    BINDING_GROUP_TITLE = "Run"
    EXPLAINS = ("prediction.parameters", "prediction.flops", "prediction.peak")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "start", "Start", id="run.start", tooltip="Start this run"),
        Binding("ctrl+s", "save", "Save", id="run.save", tooltip="Save the form as a profile"),
        Binding("ctrl+o", "load", "Load", id="run.load", tooltip="Load a saved profile"),
        Binding(
            "ctrl+z",
            "undo",
            "Undo",
            show=False,
            id="run.undo",
            tooltip="Undo the paste",
        ),
        Binding("ctrl+t", "ranks", "Ranks", id="run.ranks", tooltip="List the ranks of the world"),
        Binding("y", "copy", "Copy", show=False, id="copy", tooltip="Copy the command"),
        Binding("question_mark", "explain", "Explain", show=False, id="explain"),
    ]

    form = getters.query_one(SpecForm)
    prediction = getters.query_one(PredictionView)
    command_view = getters.query_one(CommandLine)

    def __init__(self) -> None:
        super().__init__()
        self.filled = FormContent(spec=None, passes=[], errors={})
        self._before: FormState | None = None
        self.takes_keys = False
        self.estimator: Estimator | None = None
        self._play: Timer | None = None

    def on_mount(self) -> None:
        # Textual paints nothing until it has started: widgets mounted before would be laid out
        # and painted twice.
        self.app.call_later(self._build)

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < SLIM, "-slim")
        for view in self.query(PredictionView):
            view.call_after_refresh(view.paint)  # its size may be the same
            self._predict_in_a_line()

    def _predict_in_a_line(self) -> None:
        view = self.prediction
        predicted = view.predicted if self.has_class("-slim") else None
        words = prediction_line(predicted, view.division)
        self.query_one("#what").border_subtitle = words

    async def _build(self) -> None:
        what = Vertical(SpecForm(first_state()), Static(id="hint", markup=False), id="what")
        what.border_title = "What to run"
        prediction = VerticalScroll(PredictionView(), id="prediction")
        prediction.border_title = "Prediction"
        for panel in (what, prediction):
            panel.add_class("panel")
        actions = Horizontal(
            Button("Start ^r", variant="primary", id="start", compact=True),
            Button("Save as profile", id="save", compact=True),
            Button("Load profile", id="load", compact=True),
            id="actions",
        )
        with self.app.batch_update():
            parts = Horizontal(what, prediction, id="upper"), CommandLine(), actions
            await self.mount(*parts, before=self.query_one(KeyBar))
        self.focus_next()

    @on(SpecForm.Edited)
    def _show_prediction(self, message: SpecForm.Edited) -> None:
        from sysbench.tui.screens.run_device_prediction import (  # lazy: first frame
            PredictedWorld,
            predict_on_device,
        )

        self.filled = message.filled
        spec, world = self.filled.spec, self.filled.world
        self.query_one("#start", Button).disabled = bool(self.filled.errors)
        self.prediction.show(
            predict_on_device(spec, self.app.session.strip.latest, self.filled.card)
            if spec
            else None,
            self.filled.errors,
            PredictedWorld(world=world) if world and spec else None,
        )
        if self._play is not None:
            self._play.stop()
            self._stop_estimator()
        self._play = self.set_timer(PLAY_SECONDS, self.action_exact) if world and spec else None
        self.refresh_bindings()
        self._predict_in_a_line()
        self.command_view.show(self.command())
        self._hint(self.focused)  # the help of "model" depends on its value
        if not self.takes_keys:
            self.takes_keys = True
            self.app.call_later(self.app.keys.release)

    @property
    def has_settled(self) -> bool:
        """Whether `filled` includes the last edit of the form."""
        return all(form.is_read and form.latest is self.filled for form in self.query(SpecForm))

    @on(DescendantFocus)
    def _show_hint(self, event: DescendantFocus) -> None:
        self._hint(event.widget)

    def _hint(self, focused: Widget | None) -> None:
        around = focused.ancestors if focused is not None else ()
        row = next((node for node in around if isinstance(node, FieldRow)), None)
        self.query_one("#hint", Static).update(row.help if row else "", layout=False)

    def command(self) -> str:
        if self.filled.spec is None or not self.filled.passes:
            return "sysbench-tui run …  (the form has errors)"
        python = os.environ.get(PYTHON_VARIABLE, "")
        return command_line(self.filled.spec, self.filled.passes, self.filled.repeat, python=python)

    def action_copy_estimate(self) -> None:
        if self.filled.spec is None:
            self.notify("Fix the form first.", severity="error")
            return
        world = self.filled.world.words if self.filled.world else ""
        self.app.copy_to_clipboard(estimate_command(self.filled.spec, self.filled.card, world))
        self.notify("Copied the estimate command.", timeout=2)

    @on(Button.Pressed, "#start")
    def action_start(self) -> None:
        if not self.has_settled:
            self.notify(
                "Your last edit is still being checked. Press Ctrl+R again.",
                title="Not started",
                severity="warning",
            )
            return
        errors = self.filled.errors
        if self.filled.spec is None or errors:
            # The reason is shown below each row and in the other panel.
            text = f"{counted(len(errors), 'field')} to fix: {', '.join(errors)}"
            self.notify(text, title="Not started", severity="error")
            if errors:
                self.form.focus_row(next(iter(errors)))
            return
        if self.app.session.live:
            from sysbench.tui.screens.ask_dialog import ask_before_queueing  # lazy: first frame

            self.app.push_screen(ask_before_queueing(), partial(self._queue, self.filled))
            return
        if run := self._start_run(self.filled):
            self.app.follow(run)

    def _queue(self, filled: FormContent, answer: str | None) -> None:
        """Start a supervisor that waits until the device is free; the answer is None if the live
        run ended."""
        run = self._start_run(filled) if answer != "stay" else None
        if run and answer is None:
            self.app.follow(run)
        elif run:
            self.notify(f"{run.id} is queued. Press F5 to see it.")

    def _start_run(self, filled: FormContent) -> RunDirectory | None:
        if filled.spec is None:
            return None
        with report_errors(self, "Not started"):
            run = create_run(resolve(filled.spec), filled.passes, repeat=filled.repeat)
            run.start()
            return run
        return None

    def action_exact(self) -> None:
        from sysbench.core.predict.dry_run_client import (  # lazy: first frame
            Estimator,
            unsupported_reason,
        )

        predicted, division = self.prediction.predicted, self.prediction.division
        if predicted is not None and division is not None:
            self._stop_estimator()
            self.estimator = Estimator()
            self._predict_world(predicted, division.world, self.estimator)
            return
        why = unsupported_reason(predicted.spec) if predicted else "fix the form first"
        if predicted is None or why:
            self.notify(str(why), title="No exact prediction", severity="error")
            return
        self._stop_estimator()
        self.estimator = Estimator()
        self.prediction.show_exact("exact: running the step on meta tensors…")
        self._predict_exactly(predicted, self.estimator)

    @work(thread=True, group="run.exact", exclusive=True, exit_on_error=False)
    def _predict_exactly(self, predicted: DevicePrediction, estimator: Estimator) -> None:
        spec = predicted.spec.changed(device=predicted.device or predicted.spec.device)
        exact: ExactPrediction | None = None
        try:
            with estimator:
                exact = estimator.predict(locate(spec), predicted.capability)
            text = exact_text(spec, predicted.prediction, exact)
            text += exact_verdict(predicted, exact)
        except SysbenchError as error:
            text = f"exact: {error}"
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_exact, predicted, text, exact)

    @work(thread=True, group="run.exact", exclusive=True, exit_on_error=False)
    def _predict_world(
        self, predicted: DevicePrediction, world: World, estimator: Estimator
    ) -> None:
        from sysbench.tui.screens.run_device_prediction import predict_world  # lazy: first frame

        division = predict_world(predicted, world, estimator)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_world, predicted, division)

    def _show_world(self, predicted: DevicePrediction, division: PredictedWorld) -> None:
        if self.prediction.predicted is predicted:
            self.prediction.show_world(division)
            self._predict_in_a_line()
            self.refresh_bindings()

    def action_ranks(self) -> None:
        from sysbench.core.tables.estimate_tables import ranks_table  # lazy: rare
        from sysbench.tui.screens.ask_dialog import TableScreen  # lazy: first frame

        division = self.prediction.division
        if division is not None and division.groups:
            ranks = [one for group in division.groups for one in group.ranks]
            self.app.push_screen(TableScreen(ranks_table(ranks, division.world)))

    def _show_exact(
        self, predicted: DevicePrediction, text: str, exact: ExactPrediction | None
    ) -> None:
        # A pasted command edits the form field by field: each edit predicts the same again.
        current = self.prediction.predicted
        if current and (current.spec, current.device) == (predicted.spec, predicted.device):
            self.prediction.show_exact(text, exact)

    def _stop_estimator(self) -> None:
        if self.estimator is not None:
            self.estimator.stop()

    def on_unmount(self) -> None:
        self._stop_estimator()

    @on(Button.Pressed, "#save")
    def action_save(self) -> None:
        from sysbench.tui.screens.ask_dialog import ask_profile_name  # lazy: first frame

        if self.filled.spec is None:
            self.notify("Fix the form first.", severity="error")
            return
        self.app.push_screen(ask_profile_name(self.filled.spec, self.filled.passes))

    @on(Button.Pressed, "#load")
    def action_load(self) -> None:
        names = list_profiles()
        if names:
            choices = [(name, name) for name in names]
            self.app.push_screen(ChoiceScreen("Load a profile", choices, names[0]), self._load)
        else:
            self.notify("No saved profiles. Fill the form and press Ctrl+S.")

    def _load(self, name: str | None) -> None:
        if name is not None:
            with report_errors(self, "Not loaded"):
                self.form.fill(*load_profile(name))

    def on_paste(self, event: Paste) -> None:
        if not is_command(event.text):
            return
        event.stop()
        with report_errors(self, "Not filled"):
            pasted = read_command(event.text)
            self._before = self.form.state
            self.form.fill(pasted.spec, pasted.passes, pasted.repeat, pasted.card, pasted.world)
            if pasted.unknown:
                text = f"The form has no field for: {', '.join(pasted.unknown)}. Ctrl+Z undoes."
                self.notify(text, title="Filled from the command", severity="warning")
            else:
                self.notify("Filled from the command. Ctrl+Z undoes.")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "undo":
            return self._before is not None
        if action == "ranks":
            views = self.query(PredictionView)
            return any(view.division is not None and view.division.groups for view in views)
        return super().check_action(action, parameters)

    def action_undo(self) -> None:
        if self._before is not None:
            self.form.state, self._before = self._before, None

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        return [
            ("run: Predict exactly", "dry-run the real model on meta tensors", self.action_exact),
            ("run: Copy estimate command", "predict in the shell", self.action_copy_estimate),
            *super().palette_commands(),
        ]
