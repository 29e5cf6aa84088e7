"""The command `sysbench-tui`: the workstation without arguments, one command with them."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

from sysbench.core.errors import SysbenchError
from sysbench.core.storage import has_folder, home

INTERRUPTED = 130

# Skip the garbage collection at exit, which takes 70 ms.
atexit.register(gc.freeze)


class NoTerminalError(SysbenchError):
    """The workstation needs a terminal."""

    exit_code = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, print errors, and return the exit code."""
    _settle_streams()
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words) if words else open_workstation()
    except KeyboardInterrupt:
        return _explain("interrupted", INTERRUPTED)
    except SysbenchError as error:
        return _explain(str(error), error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _explain(f"{place}{error.strerror or error}", 1)
    except MemoryError:
        return _explain("out of memory: a limit such as `ulimit -v`, or the machine", 1)


def _run(words: Sequence[str]) -> int:
    """Run one command; its output is written when this returns or raises."""
    from sysbench.tui.commands.output import flush  # lazy: not for the workstation

    try:
        return _run_command(words)
    finally:
        flush()


def _run_command(words: Sequence[str]) -> int:
    from sysbench.tui.commands.output import answer_for  # lazy: as above
    from sysbench.tui.commands.registry import COMMANDS, parse_arguments  # lazy: as above

    arguments = parse_arguments(words)
    if arguments.command is None:
        return open_workstation()
    answer_for(arguments.command)
    if python := getattr(arguments, "python", None):
        from sysbench.core.machine.interpreter import named_python, use_python  # lazy: as above

        use_python(named_python(python))
    return COMMANDS[arguments.command].run(arguments)


def open_workstation(mode: str = "") -> int:
    """Open the workstation; return 0, or 128 + N after signal N."""
    # `web` starts it without a terminal, with Textual's web driver.
    is_in_browser = "TEXTUAL_DRIVER" in os.environ
    if not (is_in_browser or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise NoTerminalError(
            "the workstation needs a terminal; without one, `sysbench-tui run` measures and "
            "prints the tables, and `sysbench-tui --help` lists every command"
        )
    has_folder(home() / "runs")  # raises before the screens start
    # Objects of the first frames stay alive; the default threshold of 700 would spend a sixth of
    # the start on collections.
    gc.set_threshold(100_000)
    # Textual reads this at import. A change waits for up to two frames to be painted.
    os.environ.setdefault("TEXTUAL_FPS", "120")
    from sysbench.tui.app import SysbenchApp  # lazy: commands need no textual

    app = SysbenchApp(mode=mode)
    app.run()
    return app.return_code or 0


def _settle_streams() -> None:
    """Make the standard streams accept any text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # Never fail on a character that the locale lacks.
        getattr(sys, name).reconfigure(errors="replace")


def _explain(message: str, code: int) -> int:
    visible = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in message)
    print(f"sysbench-tui: {visible}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
