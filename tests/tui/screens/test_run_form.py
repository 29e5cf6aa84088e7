"""The Run screen: predictions and complaints as you type, the command below."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Button, Input, Static

from sysbench.core.machine.devices import resolve_device
from sysbench.core.predict.closed_form import predict
from sysbench.core.runs.run_directory import RunDirectory, create_run
from sysbench.core.spec.model_source import locate
from sysbench.core.spec.profiles import list_profiles, load_profile
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.cli import main
from sysbench.tui.screens.pick_model_dialog import PickModelScreen
from sysbench.tui.screens.run_device_prediction import predict_on_device
from sysbench.tui.screens.run_filled import field_texts, first_state, parse_form
from sysbench.tui.screens.run_form import SpecForm
from sysbench.tui.screens.run_prediction import PredictionView, prediction_lines
from sysbench.tui.screens.run_screen import RunScreen
from sysbench.tui.widgets.choice import Choice
from sysbench.tui.widgets.key_bar import CommandLine
from tests.tui.conftest import until

SPECS = [
    RunSpec(),
    RunSpec(model="cs336-2025/large", context=512, precision="bf16", attention="sdpa"),
    RunSpec(vocab=100, d_model=64, d_ff=96, layers=3, heads=2, until=0.0123456789),
    RunSpec(compile="default", compile_fullgraph=True, compile_dynamic="on", steps=7),
    RunSpec(step="forward", memory_limit=24 * 2**30, warmup=3, max_seconds=0.25),
    RunSpec(model="nano.py:make", model_args='{"layers": 4}', context=0, optimizer="custom"),
    RunSpec(memory_limit=2**20 + 1, optimizer="sgd", clip=1.5, seed=9, device="cuda:1"),
]


def screen_of(app: SysbenchApp) -> RunScreen:
    assert isinstance(app.screen, RunScreen)
    return app.screen


def text_of(app: SysbenchApp) -> str:
    return str(app.screen.query_one(PredictionView).content)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.settings()))
def test_texts_of_a_spec_parse_back_to_it(spec: RunSpec) -> None:
    assert parse_form(field_texts(spec), ["timing"]).spec == spec


def test_fields_that_do_not_matter_do_not_change_the_identity() -> None:
    texts = field_texts(RunSpec(step="forward"))
    texts |= {"optimizer": "sgd", "clip": "1", "compile_backend": "eager", "d_model": "7"}
    assert parse_form(texts, ["timing"]).spec == RunSpec(step="forward")


async def test_a_model_is_picked_by_letters_and_arrows_go_from_row_to_row(
    app: SysbenchApp,
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("enter", "x", "2", ".", "7", "enter")
        model = app.screen.query_one("#field-model", Choice)
        assert model.value == "cs336-2025/2.7B"
        await pilot.press("enter", "t", "i", "enter")
        assert model.value == "tiny"
        await pilot.press("down", "8", "down", "6", "4")
        texts = app.screen.query_one(SpecForm).texts
        assert (texts["batch"], texts["context"]) == ("8", "64")
        await pilot.press("up", "up")
        assert app.focused is model


async def test_the_form_starts_with_the_last_run(app: SysbenchApp, own_run: RunDirectory) -> None:
    header = msgspec.structs.replace(own_run.header(), passes=["timing", "memory"], repeat=3)
    own_run.write(own_run.header_path.name, header)
    async with app.run_test(size=(120, 48)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-rounds"))
        await until(pilot, lambda: screen_of(app).has_settled)
        filled = screen_of(app).filled
        assert (filled.spec, filled.passes, filled.repeat) == (
            header.spec,
            header.passes,
            header.repeat,
        )


def test_the_form_starts_with_the_default_without_a_run_that_it_can_hold(
    own_run: RunDirectory,
) -> None:
    default = field_texts(RunSpec())
    header = own_run.header()
    assert first_state().texts == field_texts(header.spec) != default
    attention = RunSpec(workload="attention", d_model=64, heads=4)
    own_run.write(own_run.header_path.name, msgspec.structs.replace(header, spec=attention))
    assert first_state().texts == default
    own_run.header_path.write_text("{}")
    assert first_state().texts == default


async def test_rounds_are_checked_and_a_zero_says_what_it_stands_for(app: SysbenchApp) -> None:
    async with app.run_test(size=(120, 48)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-rounds"))
        await pilot.pause()
        app.screen.query_one("#field-rounds", Input).value = "many"
        await until(pilot, lambda: "rounds" in screen_of(app).filled.errors)
        app.screen.query_one("#field-rounds", Input).value = "3"
        await until(pilot, lambda: not screen_of(app).filled.errors)
        assert screen_of(app).filled.repeat == 3

        await until(pilot, lambda: app.screen.query("#field-memory_limit"))
        meanings = {"clip": "off", "steps": "until settled", "threads": "automatic"}
        meanings |= {"memory_limit": "none", "seed": ""}
        for name, meaning in meanings.items():
            box = app.screen.query_one(f"#field-{name}", Input)
            line = box.render_line(0)
            assert line.text.split() == ["0", *meaning.split()]
            box.value = "3"
            assert box.render_line(0).text.split() == ["3"]
            assert box.render_line(0).cell_length == line.cell_length
            box.focus()
            box.value = "0"
            await pilot.pause()
            assert box.render_line(0).text.split() == ["0", *meaning.split()]


async def test_the_grid_comes_and_goes_with_the_height(app: SysbenchApp) -> None:
    heading = "Predicted peak by batch and context"
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: "parameters" in text_of(app))
        assert heading not in text_of(app)
        for height in (40, 24):
            await pilot.resize_terminal(120, height)
            await until(pilot, lambda: (heading in text_of(app)) is (app.size.height == 40))
        await pilot.resize_terminal(120, 48)
        await until(pilot, lambda: heading in text_of(app))
        rows = text_of(app)[text_of(app).index(heading) :].split("\n")
        view = app.screen.query_one(PredictionView)
        assert len(rows) >= 8 and all(len(row) <= view.size.width for row in rows)


async def test_the_first_field_has_the_focus_and_each_model_its_hint_and_prediction(
    app: SysbenchApp,
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.focused is app.screen.query_one("#field-model")
        assert [one.id for one in app.screen.query(".panel:focus-within")] == ["what"]
        assert f"{RunSpec().dimensions.parameters:,} parameters" in text_of(app)
        assert "Fits" in text_of(app)

        app.screen.query_one("#field-model", Choice).value = "cs336-2025/2.7B"
        hint = app.screen.query_one("#hint", Static)
        await until(pilot, lambda: "3.41 G parameters: SwiGLU" in str(hint.content))
        app.screen.query_one("#field-model", Choice).value = "cs336-2025/large"
        await until(pilot, lambda: "preset, or your own model" in str(hint.content))

        app.screen.query_one("#field-model", Choice).value = "cs336-2026/10B"
        app.screen.query_one("#field-memory_limit", Input).value = "24GiB"
        await until(pilot, lambda: "Does not fit" in text_of(app))
        await until(pilot, lambda: "Largest batch that fits: 0" in text_of(app))
        command = app.screen.query_one(CommandLine).command
        assert "run cs336-2026/10B " in command
        assert " memory_limit=" in command


def test_auto_is_predicted_for_the_device_that_will_run() -> None:
    here = resolve_device("auto")
    assert predict_on_device(RunSpec(), None).prediction == predict(RunSpec(device=here))


@pytest.mark.parametrize(("flags", "is_named"), [("avx2", False), ("avx512f avx512_bf16", True)])
async def test_what_is_not_in_the_prediction_on_this_cpu_is_named(
    app: SysbenchApp, monkeypatch: pytest.MonkeyPatch, flags: str, is_named: bool
) -> None:
    monkeypatch.setattr(
        "sysbench.tui.screens.run_device_prediction.cpu_flags", lambda: set(flags.split())
    )
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.screen.query_one("#field-device", Input).value = "cpu"
        await pilot.pause()
        in_fp32 = text_of(app)
        app.screen.query_one("#field-precision", Choice).value = "bf16"
        await until(pilot, lambda: text_of(app) != in_fp32)
        if is_named:
            await until(pilot, lambda: "Library workspace: oneDNN's memory" in text_of(app))
        else:
            await pilot.pause()
            assert "Library workspace: oneDNN's memory" not in text_of(app)


async def test_a_model_of_the_user_s_is_typed_under_its_choice(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        model = app.screen.query_one("#field-model", Choice)
        model.value = "yours"
        await until(pilot, lambda: "model" in screen_of(app).filled.errors)
        assert "FILE.py:FACTORY" in screen_of(app).filled.errors["model"]
        app.screen.query_one("#field-code", Input).value = "nano.py:make"
        app.screen.query_one("#field-model_args", Input).value = '{"layers": 4}'
        command = "sysbench-tui run nano.py:make model.layers=4"
        await until(pilot, lambda: screen_of(app).command() == command)
        assert "which runs this code" in " ".join(text_of(app).split())
        model.value = "tiny"
        await until(pilot, lambda: screen_of(app).filled.spec == RunSpec())
        assert not app.screen.query_one("#row-code").display


async def test_a_published_model_is_chosen_and_takes_arguments(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("enter", *"qwen3-0", "enter")
        await until(pilot, lambda: "596,049,920 parameters" in text_of(app))
        assert screen_of(app).command() == "sysbench-tui run qwen3-0.6b"
        assert not app.screen.query("#field-code")
        app.screen.query_one("#field-model_args", Input).value = '{"num_hidden_layers": 2}'
        command = "sysbench-tui run qwen3-0.6b model.num_hidden_layers=2"
        await until(pilot, lambda: screen_of(app).command() == command)
        app.screen.query_one("#field-model", Choice).value = "llama-3.1-8b"
        await until(pilot, lambda: "8,030,261,248 parameters" in text_of(app))
        assert screen_of(app).command() == "sysbench-tui run llama-3.1-8b"
        app.screen.query_one("#field-model", Choice).value = "tiny"
        await until(pilot, lambda: screen_of(app).filled.spec == RunSpec())


async def test_the_code_is_picked_from_earlier_runs_and_from_files(
    app: SysbenchApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    (folder / "more").mkdir(parents=True)
    (folder / "nano.py").write_text("def make(): ...\nclass Wide: ...\ndef _hidden(): ...\n")
    (folder / "more" / "config.json").write_text("{}")
    (folder / "more" / "empty.py").write_text("WIDTH = 4\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    spec = locate(RunSpec(model="nano.py:Wide", batch=0, context=0, device="cpu"), "")
    create_run(spec, ["timing"])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.screen.query_one("#field-model", Choice).value = "yours"
        await until(pilot, lambda: app.screen.query("#field-code"))

        async def picked(*keys: str) -> str:
            app.screen.query_one("#field-code", Input).focus()
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, PickModelScreen))
            await pilot.press(*keys)
            await pilot.pause()
            if isinstance(app.screen, PickModelScreen):
                return str(app.screen.query_one(".complaint", Static).render())
            return app.screen.query_one("#field-code", Input).value

        assert await picked("enter") == "nano.py:Wide"
        # Behind the recent one: the folder above, more/, nano.py and its two factories.
        assert await picked(*["down"] * 3, "enter", "enter") == "nano.py:make"
        assert await picked("down", "down", "right", "down", "enter") == "hf:more/config.json"
        text = await picked("down", "down", "enter", "down", "down", "enter")
        assert text == "✗ empty.py has no function or class"
        await pilot.press("left", "up", "enter", "escape")
        monkeypatch.chdir(folder / "more")
        text = await picked("tilde", "down", "down", "enter", "down", "enter")
        assert text == "~/nano.py:Wide"


async def test_a_card_changes_the_prediction_and_not_what_runs(app: SysbenchApp) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await until(pilot, lambda: app.screen.query("#field-card"))
        app.screen.query_one("#field-model", Choice).value = "cs336-2025/2.7B"
        app.screen.query_one("#field-device", Input).value = "cpu"
        app.screen.query_one("#field-context", Input).value = "2048"
        await until(pilot, lambda: "2.7B" in screen_of(app).command())
        await until(pilot, lambda: "context=2048" in screen_of(app).command())
        command, spec = screen_of(app).command(), screen_of(app).filled.spec
        here = text_of(app)
        app.screen.query_one("#field-card", Choice).value = "h100"
        await until(pilot, lambda: "For H100 80GB HBM3" in text_of(app))
        text = " ".join(text_of(app).split())
        assert "Start runs on this machine" in text
        assert "H100 80GB HBM3: " in text and "of 79.6 GiB" in text
        assert "Largest batch that fits: 0" in text
        assert "may not fit in 79.6 GiB" in text
        assert (screen_of(app).command(), screen_of(app).filled.spec) == (command, spec)
        assert "device=cpu" in command and "--card" not in command
        screen_of(app).action_copy_estimate()
        asked = "sysbench-tui estimate --card h100 cs336-2025/2.7B context=2048"
        assert app.clipboard == asked
        # Another spec in the form: the question stays.
        screen_of(app).form.fill(RunSpec(device="cpu"), ["timing"])
        await until(pilot, lambda: "✓ Fits on H100 80GB HBM3" in text_of(app))
        app.screen.query_one("#field-card", Choice).value = ""
        await until(pilot, lambda: "H100" not in text_of(app))
        assert "H100" not in here


async def test_the_form_says_of_a_card_a_few_keys_away_what_estimate_says(
    app: SysbenchApp, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("cs336-2025/2.7B", "context=2048", "precision=bf16", "--card", "h100")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(
            "enter", *"2.7", "enter", "down", "down", *"2048", "down", "right", "right"
        )
        await pilot.press(*["down"] * 3, "enter", "h", "1", "enter")
        await until(pilot, lambda: "For H100 80GB HBM3" in text_of(app))
        text = " ".join(text_of(app).split())
        command = screen_of(app).command()
    assert main(("estimate", *asked, "--fit", "batch")) == 0
    answer = " ".join(capsys.readouterr().out.split())
    may = "batch 1 might fit, 2 and more will not"
    assert "Nothing is guaranteed to fit in" in answer and may in answer
    assert f"No batch is guaranteed to fit: {may}" in text
    assert command == "sysbench-tui run cs336-2025/2.7B context=2048 precision=bf16"


def test_the_form_names_the_batches_that_may_fit_above_the_largest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("cs336-2025/large", "context=512", "--card", "h100", "--fit", "batch", "--json")
    assert main(("estimate", *asked)) == 0
    fit = json.loads(capsys.readouterr().out)
    assert fit["beyond"] - 1 > fit["next"] > 1
    may = f"batch {fit['next']} to {fit['beyond'] - 1} might fit, {fit['beyond']} and more will not"
    predicted = predict_on_device(RunSpec(model="cs336-2025/large", context=512), None, "h100")
    lines = " ".join(map(str, prediction_lines(predicted, 60)))
    assert f"Largest batch that fits: {fit['largest']}; {may}" in lines


async def test_nonsense_is_refused_at_its_field_where_start_goes_to(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("tab", "x")
        await until(pilot, lambda: app.screen.query("#why-batch"))
        why = app.screen.query_one("#why-batch", Static)
        assert "an integer" in str(why.content)
        assert app.screen.query_one("#start", Button).disabled
        await pilot.press("backspace", "8")
        await until(pilot, lambda: screen_of(app).filled.spec == RunSpec(batch=8))
        await until(pilot, lambda: not why.display)

        app.screen.query_one("#field-context", Input).value = "x"
        app.screen.query_one("#field-clip", Input).value = "y"
        await until(pilot, lambda: len(screen_of(app).filled.errors) == 2)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: app.focused is app.screen.query_one("#field-context"))
        assert [one.message for one in app._notifications] == ["2 fields to fix: context, clip"]


async def test_choices_turn_with_the_arrow_keys_and_no_pass_is_no_run(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.screen.query_one("#field-precision").focus()
        await pilot.press(*["left"] * 5)  # the last four are in 8 or 4 bits, which no CPU has
        await until(pilot, lambda: screen_of(app).filled.spec == RunSpec(precision="bf16-pure"))
        await pilot.press("enter", "up", "enter")
        await until(pilot, lambda: screen_of(app).filled.spec == RunSpec(precision="fp16"))

        for name in ("timing", "trace", "memory"):
            app.screen.query_one(f"#tick-{name}").focus()
            await pilot.press("space")
        await until(pilot, lambda: "passes" in screen_of(app).filled.errors)
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert app.watch_run is None


async def test_custom_dimensions_begin_with_the_presets_and_are_checked(app: SysbenchApp) -> None:
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        await pilot.press("left")
        await pilot.pause()
        heads = app.screen.query_one("#field-heads", Input)
        assert heads.value == str(RunSpec().heads)
        heads.value = "3"
        await until(pilot, lambda: app.screen.query("#why-heads"))
        complaint = app.screen.query_one("#why-heads", Static)
        await until(pilot, lambda: "must divide" in str(complaint.content))
        heads.value = "2"
        custom = RunSpec(vocab=1024, d_model=128, d_ff=512, layers=2, heads=2)
        await until(pilot, lambda: screen_of(app).filled.spec == custom)


async def test_a_form_is_saved_as_a_profile_and_loaded_again(app: SysbenchApp) -> None:
    spec = RunSpec(batch=2, context=64, step="forward")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        screen_of(app).form.fill(spec, ["timing"])
        await pilot.pause()
        await pilot.press("ctrl+s", *"bad/name", "enter")
        await pilot.pause()
        assert "letters" in str(app.screen.query_one(".complaint", Static).content)
        app.screen.query_one(Input).value = "small"
        await pilot.press("enter")
        await pilot.pause()
        assert list_profiles() == ["small"]
        assert load_profile("small") == (spec, ["timing"])

        screen_of(app).form.fill(RunSpec(), ["timing", "trace", "memory"])
        await pilot.press("ctrl+o", "enter")
        await pilot.pause()
        filled = screen_of(app).filled
        assert (filled.spec, filled.passes) == (spec, ["timing"])


async def test_the_form_can_be_filled_before_its_last_rows_exist(app: SysbenchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        form = app.screen.query_one(SpecForm)
        form.fill(msgspec.structs.replace(RunSpec(), seed=5), ["memory"])
        await pilot.pause()
        assert app.screen.query_one("#field-seed", Input).value == "5"
