"""The way from two runs to an experiment on their specs that is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysbench.core.errors import SysbenchError
from sysbench.core.experiments.experiment import create_experiment
from sysbench.core.runs.run_directory import Header
from sysbench.tui.live.pair_watch import pair_of
from sysbench.tui.screens.compare_measure import MeasureScreen, Order

if TYPE_CHECKING:
    from sysbench.tui.app import SysbenchApp


def ask_to_measure(app: SysbenchApp, a: Header, b: Header | None) -> None:
    """Ask for the limits of an experiment, start it in a process of its own, and show it.

    Args:
        app: The workstation.
        a: Of the run whose spec is judged against.
        b: Of that whose spec is judged; None asks for a change of A's.
    """

    def ordered(order: Order | None) -> None:
        if order is not None:
            _start(app, order)

    if app.session.live:
        app.notify(
            "A run is live on this machine. Watch or stop it first (F3).",
            title="Not started",
            severity="warning",
            markup=False,
        )
        return
    app.push_screen(MeasureScreen(a, b), ordered)


def _start(app: SysbenchApp, order: Order) -> None:
    try:
        directory = create_experiment(
            order.a,
            order.b,
            smallest=order.smallest,
            max_minutes=order.minutes,
            plan=order.plan,
            pythons=order.pythons,
        )
        directory.start()
        pair = pair_of(directory)
    except (SysbenchError, OSError) as error:
        app.notify(str(error), title="Not started", severity="error", markup=False)
        return
    app.open_comparison(pair)
