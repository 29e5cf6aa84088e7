"""The shell command that reproduces what a screen shows."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class CommandLine(Static):
    """``$ sysbench-tui …``, literal."""

    def __init__(self, command: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id, classes="command", markup=False)
        self.command = command

    def on_mount(self) -> None:
        self.show(self.command)

    def show(self, command: str) -> None:
        """Show this command from now on."""
        self.command = command
        self.update(Content.assemble(("$ ", "$accent"), command))
