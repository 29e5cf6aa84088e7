"""The rows of the tabs: each has its class, its numbers are explained, its looks are taken."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from textual.binding import Binding

from sysbench.core.record.blocks import PASSES, RECORD_BLOCKS
from sysbench.core.record.record import Record
from sysbench.tui import screens
from sysbench.tui.modes import load_class
from sysbench.tui.screens.ask_dialog import EXPLANATIONS
from sysbench.tui.screens.inspect_screen import INSPECTED
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.screens.result_views import STYLES, TABS, USUAL_TABS, ResultTab
from sysbench.tui.widgets.key_bar import KEYS


def test_every_tab_of_the_folder_has_a_row_and_every_row_its_class() -> None:
    modules = [
        import_module(f"{screens.__name__}.{info.name}")
        for info in iter_modules(screens.__path__)
        if info.name.endswith("_tab")
    ]
    written = {
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, ResultTab)
        and member.__module__ == module.__name__
    }
    loaded = [load_class(tab.shown_by) for tab in TABS.values()]
    assert set(loaded) == written
    assert len(loaded) == len(written)


def test_rows_name_blocks_passes_and_explanations_that_exist() -> None:
    for tab in TABS.values():
        assert not tab.block or hasattr(Record, tab.block)
        # No pass fills the findings: rules make them of what the passes measured.
        assert bool(tab.block) == bool(tab.filled_by or tab.name == "findings")
        assert not tab.filled_by or tab.filled_by in PASSES
        # The supervisor fills telemetry.
        if tab.filled_by and tab.block in RECORD_BLOCKS:
            assert tab.block in PASSES[tab.filled_by].blocks
        assert set(tab.explains) <= EXPLANATIONS.keys()


def test_rare_tabs_come_last() -> None:
    assert tuple(TABS)[: len(USUAL_TABS)] == USUAL_TABS


def test_a_key_a_tab_with_what_it_shows() -> None:
    keys = [binding for binding in ResultScreen.BINDINGS if isinstance(binding, Binding)]
    actions = {binding.key: (binding.action, binding.tooltip) for binding in keys}
    for key, tab in zip(KEYS, TABS.values(), strict=False):
        assert actions[key] == (f"tab('{tab.name}')", tab.about)


def test_inspect_shows_the_tabs_of_the_blocks_that_a_file_may_have() -> None:
    assert {tab.name for tab in INSPECTED} == {"findings", "kernels", "memory", "timeline", "nsys"}


def test_looks_are_found_beside_their_tab() -> None:
    assert STYLES[0].name == "result_screen.tcss"
    styled = {path.stem.removesuffix("_tab") for path in STYLES[1:]}
    assert {"compile", "kernels", "memory"} <= styled <= TABS.keys()
