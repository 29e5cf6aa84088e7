"""Keys that arrive in one write are handled in order."""

from __future__ import annotations

from tests.tui.emulated import Emulated

TAB, ENTER, BACKSPACE = b"\t", b"\r", b"\x7f"


def test_fields_are_filled_in_one_write(emulated: Emulated) -> None:
    emulated.wait_for("memory limit")
    emulated.program.press(TAB + 3 * BACKSPACE + b"512" + TAB + b"64")
    emulated.wait_for("│ batch         512 ")
    emulated.wait_for("│ context       64 ")
    emulated.wait_for("batch=512 context=64")


def test_a_list_takes_what_is_typed_while_it_opens(emulated: Emulated) -> None:
    emulated.wait_for("memory limit")
    emulated.program.press(ENTER + b"2.7" + ENTER)
    emulated.wait_for("$ sysbench-tui run cs336-2025/2.7B")
