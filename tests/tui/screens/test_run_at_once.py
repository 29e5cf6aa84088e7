"""What comes into the form at once: a pasted command, and keys that one write brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from sysbench.core.errors import SpecError
from sysbench.core.record.blocks import DEFAULT_PASSES
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.command_line import command_line
from sysbench.core.spec.profiles import save_profile
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.run_filled import is_command, read_command
from sysbench.tui.screens.run_form import SpecForm
from sysbench.tui.screens.run_screen import RunScreen
from sysbench.tui.widgets.choice import Choice
from sysbench.tui.widgets.key_bar import CommandLine
from tests.tui.conftest import until


async def paste(app: SysbenchApp, text: str) -> None:
    await app.on_event(Paste(text))


def test_a_command_reads_as_it_was_written() -> None:
    spec = RunSpec(model="cs336-2025/large", context=512, precision="bf16", memory_limit=2**30)
    line = command_line(spec, ["timing"], 5)
    for text in (line, f"$ {line}", line.replace(" context", " \\\n  context") + "\nnext line"):
        assert is_command(text)
        pasted = read_command(text)
        assert (pasted.spec, pasted.passes, pasted.repeat) == (spec, ["timing"], 5)
        assert not pasted.unknown
    options = read_command(
        "sysbench-tui run --peak 989 --detach tiny --set batch=2 --set speed=fast --context 64 "
        "--passes timing,memory"
    )
    assert options.spec == RunSpec(model="tiny", batch=2, context=64)
    assert options.unknown == ["--detach", "--peak 989", "speed=fast"]
    assert read_command("sysbench-tui estimate --card h100 tiny").card == "h100"
    assert not is_command("sysbench-tui show last")
    for mistake in ("batch=none", "--repeat many", "'tiny"):
        with pytest.raises(SpecError):
            read_command(f"sysbench-tui run {mistake}")


@pytest.mark.parametrize("field", ["#field-model", "#field-batch"])
async def test_a_pasted_command_fills_the_form_and_is_undone(app: SysbenchApp, field: str) -> None:
    async with app.run_test(size=(120, 48)) as pilot:
        await until(pilot, lambda: app.screen.query("#field-rounds"))
        form = app.screen.query_one(SpecForm)
        app.screen.query_one(field).focus()
        await pilot.press("tab", "tab", "shift+tab", "shift+tab")
        await paste(app, "sysbench-tui run tiny batch=3 wrong=1 --passes timing --repeat 4\n")
        await until(pilot, lambda: form.texts["batch"] == "3")
        command = app.screen.query_one(CommandLine)
        await until(pilot, lambda: "--repeat 4" in str(command.content))
        assert app.screen.query_one("#field-rounds", Input).value == "4"
        assert app.screen.query_one("#field-model", Choice).value == "tiny"
        assert any("wrong=1" in one.message for one in app._notifications)
        await pilot.press("ctrl+z")
        await until(pilot, lambda: form.texts["batch"] == str(RunSpec().batch))
        await until(pilot, lambda: "--repeat" not in str(command.content))
        assert isinstance(app.screen, RunScreen)
        assert set(app.screen.filled.passes) == set(DEFAULT_PASSES)

        await paste(app, "sysbench-tui run batch=none")
        await until(pilot, lambda: any(one.title == "Not filled" for one in app._notifications))
        assert form.texts["batch"] == str(RunSpec().batch)


def at_once(app: SysbenchApp, *keys: str) -> None:
    """Type as a paste or a slow line does: every key is there before one is done."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RunDirectory]:
    """The runs that are started during the test; none gets a process."""
    runs: list[RunDirectory] = []
    monkeypatch.setattr(RunDirectory, "start", lambda run: runs.append(run))
    return runs


TYPED_AT_ONCE = (
    (["tab", "8", "tab", *3 * ["backspace"], *"512", "tab"], {"batch": "8", "context": "512"}),
    (["tab", "tab", "ctrl+u", *"2048", "shift+tab", "7"], {"batch": "7", "context": "2048"}),
    (["tab", "tab", "end", "left", "left", "0", "home", "9"], {"context": "91028"}),
    (["down", "down", *"999"], {"batch": "4", "context": "999"}),
    (["down", "down", *"32", "up", *"7"], {"batch": "7", "context": "32"}),
)


@pytest.mark.parametrize(("keys", "texts"), TYPED_AT_ONCE)
async def test_keys_that_come_in_one_write_are_done_in_their_order(
    app: SysbenchApp, keys: list[str], texts: dict[str, str]
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        at_once(app, *keys)
        boxes = {name: app.screen.query_one(f"#field-{name}", Input) for name in texts}
        await until(pilot, lambda: {name: box.value for name, box in boxes.items()} == texts)
        for _ in range(3):
            await pilot.pause()
        assert {name: box.value for name, box in boxes.items()} == texts
        filled = app.screen.query_one(SpecForm).texts
        assert {name: filled[name] for name in texts} == texts


async def test_what_starts_in_the_same_write_is_what_was_typed(
    app: SysbenchApp, started: list[RunDirectory]
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        at_once(app, "tab", "tab", *"64", "ctrl+r")
        await until(pilot, lambda: started)
    assert started[0].header().spec.context == 64


async def test_a_form_that_is_not_read_in_time_is_not_started(
    app: SysbenchApp, started: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        form = app.screen.query_one(SpecForm)
        await until(pilot, lambda: form.is_read)
        held: list[Callable[[], Awaitable[None]]] = []
        with monkeypatch.context() as patch:
            patch.setattr(form, "call_after_refresh", held.append)
            patch.setattr("sysbench.tui.keys.ANSWER_SECONDS", 0.01)
            at_once(app, "tab", "tab", *"64", "ctrl+r")
            await until(
                pilot, lambda: any("Ctrl+R again" in one.message for one in app._notifications)
            )
        assert not started
        for update in held:
            form.call_after_refresh(update)
        await until(pilot, lambda: form.is_read)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: started)
    assert started[0].header().spec.context == 64


async def test_a_profile_is_loaded_and_started_in_one_write(
    app: SysbenchApp, started: list[RunDirectory]
) -> None:
    spec = RunSpec(batch=2, context=64, step="forward", device="cpu")
    save_profile("small", spec, ["timing"])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        at_once(app, "ctrl+o", "enter", "ctrl+r")
        await until(pilot, lambda: started)
    header = started[0].header()
    assert (header.spec, header.passes) == (spec, ["timing"])
