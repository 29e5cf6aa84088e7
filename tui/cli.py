"""The command `sysbench-tui`: the workstation without arguments, one command with them."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

from sysbench.core.errors import SysbenchError

INTERRUPTED = 130

# At the end all memory goes. Python looks for garbage in it first, which takes 70 ms.
atexit.register(gc.freeze)


class NoTerminalError(SysbenchError):
    """The workstation was asked for where there is no terminal."""

    exit_code = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors become text only here."""
    _settle_streams()
    given = sys.argv[1:] if argv is None else argv
    try:
        code = _run(given) if given else _open_workstation()
    except KeyboardInterrupt:
        code = _explain("interrupted", INTERRUPTED)
    except SysbenchError as error:
        code = _explain(str(error), error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        code = _explain(f"{place}{error.strerror or error}", 1)
    if given:
        from sysbench.tui.commands.output import flush  # lazy: not for the workstation

        flush()
    return code


def _run(given: Sequence[str]) -> int:
    from sysbench.tui.commands.registry import COMMANDS, parse_arguments  # lazy: as above

    arguments = parse_arguments(given)
    if arguments.command is None:
        return _open_workstation()
    if python := getattr(arguments, "python", None):
        from sysbench.core.machine.interpreter import named_python, use_python  # lazy: as above

        use_python(named_python(python))
    return COMMANDS[arguments.command].load().main(arguments)


def _open_workstation() -> int:
    """Open the workstation; the exit code says which signal ended it, if one did."""
    # `web` starts it without a terminal, with Textual's driver for browsers.
    is_in_browser = "TEXTUAL_DRIVER" in os.environ
    if not (is_in_browser or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise NoTerminalError(
            "the workstation needs a terminal; here, `sysbench-tui run` measures and prints "
            "the tables, and `sysbench-tui --help` lists every command"
        )
    # What is made from here to the first frames stays: a collection each 700 objects, Python's
    # default, takes a sixth of that time.
    gc.set_threshold(100_000)
    # Textual reads it when it is imported. What changes waits for up to two frames to be painted.
    os.environ.setdefault("TEXTUAL_FPS", "120")
    from sysbench.tui.app import SysbenchApp  # lazy: commands need no textual

    app = SysbenchApp()
    app.run()
    return app.return_code or 0


def _settle_streams() -> None:
    """Make the standard streams accept any text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed from outside, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A locale that lacks a character must not end a command half-way.
        getattr(sys, name).reconfigure(errors="replace")


def _explain(message: str, code: int) -> int:
    visible = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)
    print(f"sysbench-tui: {visible}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
