"""Machine: GPUs, processes and the host now, and what ran beside the last run."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual import getters, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.events import Resize, ScreenResume

from sysbench.core.errors import SysbenchError
from sysbench.core.formatting import UNKNOWN, format_bytes
from sysbench.core.machine.sample import GpuProcess, GpuState, HostState, MachineState, ProcessState
from sysbench.core.tables.machine_tables import (
    UNLIMITED,
    age_text,
    clock_limits,
    command_words,
    gpu_processes_table,
    processes_table,
)
from sysbench.tui.live.machine_watch import LastRun, MachineWatch, last_run
from sysbench.tui.live.sensors import of_gib, of_limit, units
from sysbench.tui.screens.work_screen import WorkScreen
from sysbench.tui.text import percent, truncate
from sysbench.tui.widgets.drawing import Drawing, Folding, Framed, hanging, wrap_lines
from sysbench.tui.widgets.key_bar import CommandLine
from sysbench.tui.widgets.table_view import TableView
from sysbench.tui.widgets.telemetry_rows import gpu_lines
from sysbench.tui.widgets.traces import block_rows, gauge, resample

NARROW, WIDE = 100, 140
"""Widths from which bars are longer, and past utilization is shown."""
MIN_NAME_WIDTH = 110
"""Width from which a GPU's line has its name."""
NAME_CHARS = 20
PAST = 20
"""Past values of utilization on a wide screen."""
DIM = "$foreground 65%"

History = Mapping[int, Sequence[float | None]]
"""Utilization by GPU, oldest first."""


def gpu_panel(state: MachineState, history: History, width: int, height: int) -> Content:
    """Two lines for each GPU if ``height`` allows, else one, else all GPUs on one line."""
    gpus = state.gpus
    if not gpus:
        return Content.styled(f"no GPU: {state.no_gpus}", DIM)
    extra = [_mig_lines(gpu, width) for gpu in gpus]
    needed = len(gpus) + sum(map(len, extra))
    if height < len(gpus):
        lines = gpu_lines([gpu.sample for gpu in gpus], None, width, height)
        return Content("\n").join(lines)
    if height < needed:
        extra = [[] for _ in gpus]
    has_details = height >= needed + len(gpus)
    lines = []
    for gpu, first, of_mig in zip(gpus, _first_lines(gpus, history, width), extra, strict=True):
        lines.append(first)
        if has_details and not gpu.sample.lost:
            lines.append(_second_line(gpu, width))
        lines += of_mig
    return Content("\n").join(lines)


def panel_height(state: MachineState, lines_free: int) -> int:
    """Lines that `gpu_panel` fills, at most ``lines_free``."""
    count = len(state.gpus)
    of_mig = sum(len(gpu.mig_instances) for gpu in state.gpus)
    wanted = (2 * count + of_mig, count + of_mig, count, 1)
    return next((lines for lines in wanted if lines and lines <= lines_free), 1)


def _first_lines(gpus: Sequence[GpuState], history: History, width: int) -> list[Content]:
    """``0 ████░░ 40 %  ██░░░░ 10.0/79.0 GiB  612/700 W  1755 MHz  61 °C  power cap``"""
    bar = 5 if width < NARROW else 10
    columns = [
        [of_gib(gpu.sample.memory_used_bytes, gpu.sample.memory_total_bytes) for gpu in gpus],
        [of_limit(gpu.sample.power_watts, gpu.sample.power_limit_watts) for gpu in gpus],
        [units(gpu.sample.sm_clock_mhz, "MHz") for gpu in gpus],
        [units(gpu.sample.temperature_celsius, "°C") for gpu in gpus],
    ]
    widths = [max(map(len, texts)) for texts in columns]
    names = [gpu.sample.name.removeprefix("NVIDIA ") for gpu in gpus]
    name_width = min(NAME_CHARS, max(map(len, names))) if width >= MIN_NAME_WIDTH else 0
    digits = max(len(str(gpu.sample.index)) for gpu in gpus)
    lines = []
    for place, gpu in enumerate(gpus):
        sample = gpu.sample
        line = Content.styled(f"{sample.index:>{digits}} ", "bold")
        if name_width:
            line += Content(f"{truncate(names[place], name_width):<{name_width}}  ")
        if sample.lost:
            lines.append(line + Content.styled("stopped answering (lost)", "$error"))
            continue
        line += _bar(sample.utilization, bar)
        line += Content(f" {percent(sample.utilization, 0):>5}  ")
        if width >= WIDE:
            past = list(history.get(sample.index, ()))[-PAST:]
            line += Content.styled(f"{block_rows(past, 1, 0, 1)[0]:>{PAST}}  ", "$accent 70%")
        used = _share(sample.memory_used_bytes, sample.memory_total_bytes)
        line += _bar(used, bar)
        for texts, size in zip(columns, widths, strict=True):
            line += Content(f"{' ' if texts is columns[0] else '  '}{texts[place]:>{size}}")
        limits = clock_limits(gpu)
        left = width - len(line) - 2
        if left > 0:
            style = DIM if limits in (UNLIMITED, UNKNOWN) else "$warning"
            words = {UNLIMITED: "no limit", UNKNOWN: f"limits {UNKNOWN}"}.get(limits, limits)
            line += Content.styled(f"  {truncate(_fitted(words, left), left)}", style)
        lines.append(line)
    return lines


def _fitted(reasons: str, width: int) -> str:
    names = reasons.split(", ")
    texts = [
        ", ".join(names[:shown]) + (f" +{len(names) - shown}" if shown < len(names) else "")
        for shown in range(len(names), 0, -1)
    ]
    return next((text for text in texts if len(text) <= width), texts[-1])


def _share(used: int | None, total: int | None) -> float | None:
    return None if used is None or not total else used / total


def _bar(share: float | None, width: int) -> Content:
    """A gauge; blank if the share is unknown."""
    return Content.styled(" " * width if share is None else gauge(share, width), "$accent")


def _second_line(gpu: GpuState, width: int) -> Content:
    """``  SM 92 %  tensor 61 %  …``: those that fit of what is known, and why load is not."""
    sample = gpu.sample
    shares = {
        "SM": sample.sm_active,
        "tensor": sample.tensor_active,
        "DRAM": sample.dram_active,
        "memory busy": gpu.memory_busy,
        "fan": gpu.fan_share,
    }
    parts = [
        f"{name} {UNKNOWN}: {gpu.missing[name]}"
        for name in ("utilization", "processes")
        if name in gpu.missing
    ]
    parts += [f"{name} {percent(value, 0)}" for name, value in shares.items() if value is not None]
    if gpu.performance_state:
        parts.append(gpu.performance_state)
    if sample.memory_clock_mhz is not None:
        parts.append(f"memory {sample.memory_clock_mhz} MHz")
    if gpu.ecc_errors:
        parts.append(f"{gpu.ecc_errors} uncorrected memory errors")
    if sample.clock_reasons and "idle" in sample.clock_reasons:
        parts.append("idle")
    if gpu.bus_id:
        parts.append(gpu.bus_id)
    line = ""
    for part in parts:
        if not line or len(line) + 2 + len(part) <= width:
            line += f"  {part}"
    return Content.styled(truncate(line, width), DIM)


def _mig_lines(gpu: GpuState, width: int) -> list[Content]:
    return [
        Content.styled(
            truncate(
                f"  MIG {each.gpu_instance} {each.name}  "
                f"{of_gib(each.memory_used_bytes, each.memory_total_bytes)}",
                width,
            ),
            DIM,
        )
        for each in gpu.mig_instances
    ]


def host_lines(host: HostState, width: int) -> list[Content]:
    bar = 10 if width < NARROW else 16
    head = [
        Content.styled(f"{name:<5}", DIM) + _bar(share, bar) + Content(f" {text}")
        for name, share, text in (
            ("CPU", host.cpu, f"{percent(host.cpu, 0)} of {host.cores} cores"),
            (
                "RAM",
                _share(host.memory_used_bytes, host.memory_total_bytes),
                of_gib(host.memory_used_bytes, host.memory_total_bytes),
            ),
        )
    ]
    load = " ".join(f"{load:.2f}" for load in host.load_average)
    swap = of_gib(host.swap_used_bytes, host.swap_total_bytes) if host.swap_total_bytes else "none"
    quota = "" if host.cpu_quota is None else f"   quota {host.cpu_quota:g} cores"
    limit = host.memory_limit_bytes
    tails = [
        f"   load {load}   up {age_text(host.uptime_seconds)}{quota}",
        f"   swap {swap}" + (f"   limit of the group {format_bytes(limit)}" if limit else ""),
    ]
    first, second = (line + Content(text) for line, text in zip(head, tails, strict=True))
    room = width - len(first) - 3
    if len(host.core_shares) > 1 and room >= 8:
        cores = block_rows(resample(host.core_shares, min(room, host.cores)), 1, 0, 1)[0]
        first += Content.assemble("   ", (cores, "$accent"))
    disks = [
        f"{name} {UNKNOWN}: {disk.missing}"
        if disk.free_bytes is None
        else f"{name} {format_bytes(disk.free_bytes)} free of {format_bytes(disk.total_bytes or 0)}"
        for name, disk in host.disks.items()
    ]
    third = Content.styled("disk ", DIM) + Content("   ".join(disks))
    return [first, second, third]


MIN_OTHER_LINES = 14
"""Lines of strip, host, processes, last run and keys that the GPUs leave free."""


class MachineScreen(WorkScreen):
    """Reads the machine every two seconds while it is in view, every five during a run."""

    CSS_PATH = "machine_screen.tcss"
    BINDING_GROUP_TITLE = "Machine"
    EXPLAINS = ("machine.gpu", "machine.processes", "machine.last_run")
    BINDINGS: ClassVar[list[BindingType]] = []

    table = getters.query_one(TableView)

    def __init__(self) -> None:
        super().__init__()
        self.reading = MachineWatch()
        self.state: MachineState | None = None
        self.last: LastRun | None = None
        self._shown: list[ProcessState] = []
        self._history: defaultdict[int, deque[float | None]] = defaultdict(
            lambda: deque(maxlen=PAST)
        )

    def body(self) -> ComposeResult:
        with Framed("GPUs", id="gpus"):
            yield Drawing(lambda width, height: Content("reading the machine …"))
        yield Drawing(id="host")
        yield TableView(title="Processes")
        yield Folding(id="last-run")
        yield CommandLine(self.command())

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.reading.start()
        self._read_last_run()
        self.paint()

    def on_screen_suspend(self) -> None:
        self.reading.stop()

    def on_unmount(self) -> None:
        self.reading.stop()

    def on_resize(self, event: Resize) -> None:
        if self.state is not None:
            self._show_gpus(self.state)

    @work(thread=True, group="machine.last", exclusive=True)
    def _read_last_run(self) -> None:
        """Read the newest record in a thread, since it may be large."""
        try:
            last = last_run()
        except (SysbenchError, OSError) as error:
            text = f"Cannot read the last run: {error}"
            self.call_later(self.notify, text, severity="warning")
        else:
            self.call_later(self._take_last_run, last)

    def _take_last_run(self, last: LastRun | None) -> None:
        if last is not None and last != self.last:
            self.last = last
            head = Content.styled("last run ", DIM)
            draw = wrap_lines(partial(hanging, head, f"{last.id}: {last.words}"))
            self.query_one("#last-run", Folding).show(draw)

    def paint(self) -> None:
        super().paint()
        if not self.is_current:
            return
        self.reading.is_live = self.app.session.live
        if (error := self.reading.error) is not None:
            self.reading.error = None
            text = f"The machine cannot be read: {error}"
            self.notify(text, severity="error")
        state = self.reading.latest()
        if state is not None:
            self.show(state)

    def show(self, state: MachineState) -> None:
        self.state = state
        for gpu in state.gpus:
            self._history[gpu.sample.index].append(gpu.sample.utilization)
        self._show_gpus(state)
        self.query_one("#host", Drawing).show(
            lambda width, height: Content("\n").join(host_lines(state.host, width)[:height])
        )
        self._show_processes(state)

    def _show_gpus(self, state: MachineState) -> None:
        panel = self.query_one("#gpus")
        driver = f"driver {state.driver}, CUDA {state.cuda}" if state.driver else ""
        panel.border_subtitle = Content(driver)
        drawing = panel.query_one(Drawing)
        drawing.styles.height = panel_height(state, self.size.height - MIN_OTHER_LINES)
        drawing.show(lambda width, height: gpu_panel(state, self._history, width, height))

    def _show_processes(self, state: MachineState) -> None:
        selected = self.table.selected
        before = None if selected is None else _key(self._shown[selected])
        self._shown = [*state.gpu_processes, *state.processes]
        tabulate = gpu_processes_table if state.gpus else processes_table
        table = tabulate(self._shown)
        if self.table.table is not None and table.rows == self.table.table.rows:
            return
        place = next((n for n, each in enumerate(self._shown) if _key(each) == before), 0)
        self.table.show(
            table,
            sort=self.table.sort_column if self.table.sort_column in table.columns else "",
            descending=self.table.descending,
            select=place,
        )

    def command(self) -> str:
        return "sysbench-tui top"

    def copyable(self) -> tuple[str, str]:
        return "the processes as Markdown", self.table.markdown()

    def subject(self) -> str:
        place = self.table.selected
        return "" if place is None else command_words(self._shown[place])


def _key(process: ProcessState) -> tuple[int, int | None]:
    return process.pid, process.gpu if isinstance(process, GpuProcess) else None
