"""Run: choose what to measure, with the prediction in view."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import getters, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus, Paste, Resize
from textual.widget import Widget
from textual.widgets import Button, Static
from textual.worker import get_current_worker

from sysbench.core.errors import SysbenchError
from sysbench.core.formatting import counted
from sysbench.core.machine.children import PYTHON_VARIABLE
from sysbench.core.record.blocks import PassName
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.screens.run_filled import Filled, FormState
from sysbench.tui.screens.run_form import FieldRow, SpecForm
from sysbench.tui.screens.run_prediction import (
    PredictionView,
    estimate_command,
    exact_text,
    exact_verdict,
    in_a_line,
)
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.widgets.key_bar import CommandLine, KeyBar

if TYPE_CHECKING:
    from sysbench.core.predict.dry_run_client import Estimator
    from sysbench.core.runs.run_directory import RunDirectory
    from sysbench.tui.screens.run_device_prediction import DevicePrediction


SLIM = 60
"""Narrower screens have no room for the panel of predictions, but for a line of it."""


class RunScreen(WorkScreen):
    """The form on the left, the prediction on the right, the command below."""

    CSS_PATH = "run_screen.tcss"
    BINDING_GROUP_TITLE = "Run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "start", "Start", id="run.start", tooltip="Start this run, detached"),
        Binding("ctrl+s", "save", "Save", id="run.save", tooltip="Save the form as a profile"),
        Binding("ctrl+o", "load", "Load", id="run.load", tooltip="Load a saved profile"),
        Binding(
            "ctrl+z",
            "undo",
            "Undo",
            show=False,
            id="run.undo",
            tooltip="As before the paste",
        ),
        Binding("y", "copy", "Copy", show=False, id="copy", tooltip="Copy the command"),
        Binding("question_mark", "explain", "Explain", show=False, id="explain"),
    ]

    form = getters.query_one(SpecForm)
    prediction = getters.query_one(PredictionView)
    command_view = getters.query_one(CommandLine)

    def __init__(self) -> None:
        super().__init__()
        self.filled = Filled(spec=None, passes=[], errors={})
        self._before: FormState | None = None
        self.takes_keys = False
        self.estimator: Estimator | None = None

    def on_mount(self) -> None:
        # Textual paints nothing before its start is over. Widgets mounted by then are laid
        # out and painted twice, and the first painting is never seen.
        self.app.call_later(self._build)

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < SLIM, "-slim")
        for view in self.query(PredictionView):
            view.call_after_refresh(view.fit_screen)
            self._predict_in_a_line()

    def _predict_in_a_line(self) -> None:
        is_slim = self.has_class("-slim")
        words = in_a_line(self.prediction.predicted if is_slim else None)
        self.query_one("#what").border_subtitle = words

    async def _build(self) -> None:
        what = Vertical(SpecForm(RunSpec()), Static(id="hint", markup=False), id="what")
        what.border_title = "What to run"
        prediction = VerticalScroll(PredictionView(), id="prediction")
        prediction.border_title = "What will happen"
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
        """Predict the form's present spec."""
        # Comes after the first frame, so its imports do.
        from sysbench.tui.screens.run_device_prediction import predict_on_device

        self.filled = message.filled
        spec = self.filled.spec
        self.query_one("#start", Button).disabled = bool(self.filled.errors)
        self.prediction.show(
            predict_on_device(spec, self.app.session.strip.latest, self.filled.card)
            if spec
            else None,
            self.filled.errors,
        )
        self._predict_in_a_line()
        self.command_view.show(self.command())
        self._hint(self.focused)  # what a field means can go by its value
        if not self.takes_keys:
            self.takes_keys = True
            self.app.call_later(self.app.keys.release)

    @property
    def has_settled(self) -> bool:
        """Whether `filled` is what the form says: a key acts on what was typed before it."""
        return all(form.is_read and form.latest is self.filled for form in self.query(SpecForm))

    @on(DescendantFocus)
    def _show_hint(self, event: DescendantFocus) -> None:
        """The help of the focused field, where the eye is."""
        self._hint(event.widget)

    def _hint(self, focused: Widget | None) -> None:
        around = focused.ancestors if focused is not None else ()
        row = next((node for node in around if isinstance(node, FieldRow)), None)
        self.query_one("#hint", Static).update(row.help if row else "", layout=False)

    def command(self) -> str:
        if self.filled.spec is None or not self.filled.passes:
            return "sysbench-tui run …  (the form is not complete)"
        python = os.environ.get(PYTHON_VARIABLE, "")
        return command_line(self.filled.spec, self.filled.passes, self.filled.repeat, python=python)

    def action_copy_estimate(self) -> None:
        """Copy the command that predicts the form's spec for the chosen card, or for here."""
        if self.filled.spec is None:
            self.notify("Only a valid form can be predicted.", severity="error", markup=False)
            return
        self.app.copy_to_clipboard(estimate_command(self.filled.spec, self.filled.card))
        self.notify("Copied the estimate command.", markup=False, timeout=2)

    def explanations(self) -> list[str]:
        return ["prediction.parameters", "prediction.flops", "prediction.peak"]

    @on(Button.Pressed, "#start")
    def action_start(self) -> None:
        """Write the run's header, start its supervisor, follow it."""
        if not self.has_settled:
            self.notify(
                "What was typed last is not read yet. Press ^r again.",
                title="Not started",
                severity="warning",
                markup=False,
            )
            return
        errors = self.filled.errors
        if self.filled.spec is None or errors:
            # Why stands under each row and in the other panel.
            text = f"{counted(len(errors), 'field')} to fix: {', '.join(errors)}"
            self.notify(text, title="Not started", severity="error", markup=False)
            if errors:
                self.form.focus_row(next(iter(errors)))
            return
        if self.app.session.live:
            from sysbench.tui.screens.ask_dialog import ask_before_queueing

            self.app.push_screen(ask_before_queueing(), partial(self._queue, self.filled))
            return
        if run := self._started(self.filled):
            self.app.follow(run)

    def _queue(self, filled: Filled, answer: str | None) -> None:
        """Start a supervisor that waits until the device is free.

        Args:
            answer: None where the live run ended before there was one: nothing is in the way.
        """
        run = self._started(filled) if answer != "stay" else None
        if run and answer is None:
            self.app.follow(run)
        elif run:
            self.notify(f"{run.id} waits its turn. F5 lists it.", markup=False)

    def _started(self, filled: Filled) -> RunDirectory | None:
        """A new run of what the form said, and its supervisor; none where that failed."""
        from sysbench.core.spec.profiles import resolve

        if filled.spec is None:
            return None
        try:
            # Nothing of a run is needed before the first frame.
            from sysbench.core.runs.run_directory import create_run

            run = create_run(resolve(filled.spec), filled.passes, repeat=filled.repeat)
            run.start()
        except (SysbenchError, OSError) as error:
            self.notify(str(error), title="Not started", severity="error", markup=False)
            return None
        return run

    def action_exact(self) -> None:
        """Play the form's step on meta tensors, in a separate process."""
        from sysbench.core.predict.dry_run_client import Estimator

        predicted = self.prediction.predicted
        from sysbench.core.predict.dry_run_client import unsupported_reason

        why = unsupported_reason(predicted.spec) if predicted else "the form is not complete"
        if predicted is None or why:
            self.notify(str(why), title="No exact prediction", severity="error", markup=False)
            return
        self._stop_estimator()
        self.estimator = Estimator()
        self.prediction.show_exact("exact: playing the step on tensors without memory…")
        self._predict_exactly(predicted, self.estimator)

    @work(thread=True, group="run.exact", exclusive=True, exit_on_error=False)
    def _predict_exactly(self, predicted: DevicePrediction, estimator: Estimator) -> None:
        spec = predicted.spec.changed(device=predicted.device or predicted.spec.device)
        from sysbench.core.spec.model_source import locate

        try:
            with estimator:
                exact = estimator.predict(locate(spec), predicted.capability)
            text = exact_text(spec, predicted.prediction, exact)
            text += exact_verdict(predicted, exact)
        except SysbenchError as error:
            text = f"exact: {error}"
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_exact, predicted, text)

    def _show_exact(self, predicted: DevicePrediction, text: str) -> None:
        """Show the exact figure, unless the form has changed since."""
        if self.prediction.predicted is predicted:
            self.prediction.show_exact(text)

    def _stop_estimator(self) -> None:
        if self.estimator is not None:
            self.estimator.stop()

    def on_unmount(self) -> None:
        self._stop_estimator()

    @on(Button.Pressed, "#save")
    def action_save(self) -> None:
        from sysbench.tui.screens.ask_dialog import SaveScreen

        if self.filled.spec is None:
            self.notify("Only a valid form can be saved.", severity="error", markup=False)
            return
        self.app.push_screen(SaveScreen(self.filled.spec, self.filled.passes))

    @on(Button.Pressed, "#load")
    def action_load(self) -> None:
        from sysbench.tui.screens.ask_dialog import LoadScreen

        self.app.push_screen(LoadScreen(), self._fill)

    def _fill(self, loaded: tuple[RunSpec, list[PassName]] | None) -> None:
        if loaded is not None:
            self.form.fill(*loaded)

    def fill(self, spec: RunSpec, passes: Sequence[PassName], repeat: int = 1) -> None:
        """Put a spec into the form, such as that of an earlier run."""
        self.form.fill(spec, passes, repeat)

    def on_paste(self, event: Paste) -> None:
        """Fill the form from a command line; the fields leave such a text to the screen."""
        from sysbench.tui.screens.run_filled import (  # not before the first frame
            is_command,
            read_command,
        )

        if not is_command(event.text):
            return
        event.stop()
        try:
            pasted = read_command(event.text)
        except SysbenchError as error:
            self.notify(str(error), title="Not filled", severity="error", markup=False)
            return
        self._before = self.form.state
        self.form.card = pasted.card
        self.form.fill(pasted.spec, pasted.passes, pasted.repeat)
        if pasted.unknown:
            text = f"Not in the form, left out: {', '.join(pasted.unknown)}. ^z undoes."
            self.notify(text, title="Filled from the command", severity="warning", markup=False)
        else:
            self.notify("Filled from the command; ^z undoes.", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "undo":
            return self._before is not None
        return super().check_action(action, parameters)

    def action_undo(self) -> None:
        """Put back what stood in the form before a command was pasted."""
        if self._before is not None:
            self.form.state, self._before = self._before, None

    def palette_commands(self) -> list[tuple[str, str, Any]]:
        commands = [
            ("run: Start", "start what the form says, detached", self.action_start),
            ("run: Predict exactly", "the real code on tensors without memory", self.action_exact),
            (
                "run: Copy estimate command",
                "the prediction of this form, for the shell",
                self.action_copy_estimate,
            ),
            ("run: Save profile", "keep the form under a name", self.action_save),
            ("run: Load profile", "fill the form from a saved one", self.action_load),
        ]
        return [*commands, *super().palette_commands()]
