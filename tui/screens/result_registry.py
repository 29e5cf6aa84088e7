"""Registry of the result tabs. A tab is a row here, a class, and an optional ``.tcss`` file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A tab of a result.

    Attributes:
        about: Its content, for help and palette.
        shown_by: ``module:Class``, the module relative to ``sysbench.tui``.
        block: Block of the record that it shows; "" if it is never blank.
        filled_by: Pass that fills the block.
        explains: Keys of `sysbench.tui.explanations.EXPLANATIONS`.
        is_rare: Whether it is shown only if the run has a pass of its name.
    """

    name: str
    about: str
    shown_by: str
    block: str = ""
    filled_by: str = ""
    explains: tuple[str, ...] = ()
    is_rare: bool = False


TABS = {
    tab.name: tab
    for tab in (
        Tab(
            name="summary",
            about="verdict, why, what next",
            shown_by="screens.summary_tab:SummaryTab",
            explains=("timing.step", "memory.peak", "trust.perturbation"),
        ),
        Tab(
            name="timing",
            about="samples, phases, speed",
            shown_by="screens.timing_tab:TimingTab",
            block="timing",
            filled_by="timing",
            explains=("timing.step", "timing.phases", "timing.first", "timing.throughput"),
        ),
        Tab(
            name="kernels",
            about="kernels as table, tree, answers, roofline",
            shown_by="screens.kernels_tab:KernelsTab",
            block="kernels",
            filled_by="trace",
            explains=(
                *("kernels.row", "kernels.sum", "kernels.tree", "trust.coverage"),
                "trust.perturbation",
            ),
        ),
        Tab(
            name="memory",
            about="memory over time and by category, stack, module",
            shown_by="screens.memory_tab:MemoryTab",
            block="memory",
            filled_by="memory",
            explains=(
                *("memory.peak", "memory.ledger", "memory.stacks", "memory.resident"),
                "memory.difference",
            ),
        ),
        Tab(
            name="compile",
            about="compiled parts, compile time, generated kernels",
            shown_by="screens.compile_tab:CompileTab",
            block="compile",
            filled_by="timing",
            explains=(
                *("compile.extent", "compile.seconds", "compile.break-even"),
                "compile.generated",
            ),
        ),
        Tab(
            name="telemetry",
            about="clocks, power, heat over the whole run",
            shown_by="screens.telemetry_tab:TelemetryTab",
            block="telemetry",
            filled_by="timing",
            explains=("telemetry.series",),
        ),
        Tab(
            name="log",
            about="output of the processes",
            shown_by="screens.log_tab:LogTab",
        ),
        Tab(
            name="export",
            about="export traces and tables",
            shown_by="screens.export_tab:ExportTab",
        ),
        Tab(
            name="timeline",
            about="streams, idle time, steps and phases over time",
            shown_by="screens.timeline_tab:TimelineTab",
            block="kernels",
            filled_by="trace",
            explains=("timeline.lanes", "timeline.gap"),
        ),
        Tab(
            name="nsys",
            about="NVTX ranges and NVIDIA's summaries",
            shown_by="screens.nsys_tab:NsysTab",
            block="nsys",
            filled_by="nsys",
            explains=("nsys.range",),
            is_rare=True,
        ),
        Tab(
            name="findings",
            about="verdict, why, what next for an imported file",
            shown_by="screens.summary_tab:FindingsTab",
            block="findings",
            is_rare=True,
        ),
    )
}
"""Tabs by name in the order of the bar, rare ones last."""

USUAL_TABS = tuple(tab.name for tab in TABS.values() if not tab.is_rare)
"""Names of the tabs of every result."""

_HERE = Path(__file__).parent
STYLES = (_HERE / "result_screen.tcss", *sorted(_HERE.glob("*_tab.tcss")))
"""The stylesheets of all tabs."""
