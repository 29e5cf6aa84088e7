"""The registry of a result's tabs, read by the tab bar, keys, help, palette and Inspect.

A tab is a row here, a class, and if it needs styles a ``.tcss`` of its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A tab of a result.

    Attributes:
        name: On the bar, in lower case.
        about: Its content, for help and palette.
        shown_by: ``module:Class`` of the tab, the module as seen from ``sysbench.tui``.
        block: The block of the record that it shows; "" where there is always something.
        filled_by: The pass that fills the block.
        explains: Keys of `sysbench.tui.explanations.EXPLANATIONS` for its numbers.
        is_rare: Whether it is shown only where the run had a pass of its name.
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
            about="what ran, as table, tree, answers, roofline",
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
            about="what was resident, when, and whose",
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
            about="what was compiled, what it cost, the kernels it made",
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
            about="what the processes printed",
            shown_by="screens.log_tab:LogTab",
        ),
        Tab(
            name="export",
            about="files and tables to take home",
            shown_by="screens.export_tab:ExportTab",
        ),
        Tab(
            name="nsys",
            about="NVTX ranges and NVIDIA's own summaries",
            shown_by="screens.nsys_tab:NsysTab",
            block="nsys",
            filled_by="nsys",
            explains=("nsys.range",),
            is_rare=True,
        ),
        Tab(
            name="findings",
            about="of a file: verdict, why, what next",
            shown_by="screens.findings_tab:FindingsTab",
            block="findings",
            is_rare=True,
        ),
    )
}
"""By name, in the order of the bar, the rare ones last."""

USUAL_TABS = tuple(tab.name for tab in TABS.values() if not tab.is_rare)
"""Names of the tabs that every result has."""

_HERE = Path(__file__).parent
STYLES = (_HERE / "result_screen.tcss", *sorted(_HERE.glob("*_tab.tcss")))
"""The stylesheets of all tabs."""
