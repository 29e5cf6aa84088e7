"""The Compile tab: the badge, the gaps, the kernels with their code, when compiling pays."""

from __future__ import annotations

import msgspec
import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Static

from sysbench.core.record.compile import EagerPart, GraphBreak, Recompile
from sysbench.core.record.record import Compile, GeneratedKernel
from sysbench.core.runs.run_directory import RunDirectory
from sysbench.core.spec.spec import RunSpec
from sysbench.tui.app import SysbenchApp
from sysbench.tui.screens.compile_tab import CompileTab
from sysbench.tui.screens.result_screen import ResultScreen
from sysbench.tui.widgets.table_view import TableView
from tests import factories
from tests.tui.conftest import open_tab, until

RESULT_FIRST = True

NAME = "triton_poi_fused_add_mul_[/gelu]_0"
CODE = f"""import torch

{NAME} = async_compile.triton('{NAME}', '''
def kernel(): "[bold]"
''', device_str='cuda')


other = 1
"""
WHOLE = factories.compiled(
    scope="block",
    first_step_ms=15_000.0,
    compile_seconds=14.7,
    extent="whole",
    parts_seconds={"dynamo": 0.5, "aot": 1.5, "inductor": 6.4, "backend": 6.3},
    cold_seconds=14.7,
    warm_seconds=1.35,
)
PART = msgspec.structs.replace(
    WHOLE,
    fell_back=True,
    extent="part",
    graph_breaks={"print": 2},
    breaks=[GraphBreak("Failed to trace [/print]", "models/mine.py:7 in forward", "print(x)", 2)],
    recompiles=1,
    recompiled=[Recompile("models/mine.py:5 in forward", "tensor 'x' size mismatch")],
    eager_parts=[
        EagerPart("graph-break", "models/mine.py:7 in forward", "Failed to trace [/print]"),
        EagerPart("recompile-limit", "models/mine.py:5 in forward", "limit exceeded"),
    ],
)


def compiled(run: RunDirectory, block: Compile) -> RunDirectory:
    """The run, as if torch.compile had been on."""
    record = run.record()
    assert record.kernels is not None
    made = GeneratedKernel(
        name=NAME,
        phase="forward",
        fused=True,
        ops=["add", "mul"],
        module="blocks.*.ffn",
        modules=["blocks.*.ffn"],
        sources=["models/transformer.py:44 y = x + x * 2"],
        sites=2,
        bytes_per_call=3 * 2**20,
        file="output_code/1-forward.py",
    )
    row = msgspec.structs.replace(
        record.kernels.rows[0], name=NAME, phase="forward", module="blocks.*.ffn", fused=True
    )
    kernels = msgspec.structs.replace(
        record.kernels, rows=[*record.kernels.rows, row], generated=[made]
    )
    spec = msgspec.convert(record.spec, RunSpec).changed(compile="default", compile_scope="block")
    run.write_record(
        msgspec.structs.replace(
            record,
            identity=spec.identity,
            spec=msgspec.to_builtins(spec),
            compile=block,
            kernels=kernels,
            missing={},
        )
    )
    folder = run.pass_folder("trace") / "output_code"
    folder.mkdir(parents=True)
    (folder / "1-forward.py").write_text(CODE)
    return run


async def opened(pilot: Pilot[None], app: SysbenchApp, run: RunDirectory) -> CompileTab:
    tab = await open_tab(pilot, app, run, "compile")
    assert isinstance(tab, CompileTab)
    return tab


def text(tab: CompileTab, selector: str) -> str:
    return str(tab.query_one(selector, Static).content)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_a_compiled_run_is_badged_and_its_kernels_decoded(
    app: SysbenchApp, gpu_run: RunDirectory, size: tuple[int, int]
) -> None:
    async with app.run_test(size=size) as pilot:
        tab = await opened(pilot, app, compiled(gpu_run, WHOLE))
        assert "✓ compiled whole" in text(tab, ".head")
        assert tab.query_one("#code").display == (size[1] > 24)
        assert not tab.query("#gaps")
        assert tab.generated.region.bottom <= size[1]
        assert tab.generated.table is not None
        assert tab.generated.table.column("name") == [NAME]
        assert "add, mul · blocks.*.ffn · models/transformer.py:44" in text(tab, "#detail")
        await until(pilot, lambda: "break-even n/a" in text(tab, "#worth"))
        assert "sysbench-tui run" in text(tab, "#worth")


async def test_the_code_of_the_kernel_in_view_comes_and_goes(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await opened(pilot, app, compiled(gpu_run, WHOLE))
        panel = tab.query_one("#code", VerticalScroll)
        assert panel.display, "there is room for it"
        await pilot.pause()
        shown = text(tab, "#code Static")
        assert 'def kernel(): "[bold]"' in shown
        assert "other = 1" not in shown
        await pilot.press("c")
        assert not panel.display


async def test_code_outside_of_the_run_is_not_shown(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    run = compiled(gpu_run, WHOLE)
    record = run.record()
    assert record.kernels is not None
    made = [msgspec.structs.replace(record.kernels.generated[0], file="../run.json")]
    kernels = msgspec.structs.replace(record.kernels, generated=made)
    run.write_record(msgspec.structs.replace(record, kernels=kernels))
    async with app.run_test(size=(120, 40)) as pilot:
        tab = await opened(pilot, app, run)
        await pilot.pause()
        assert "has no generated code ../run.json" in text(tab, "#code Static")


async def test_gaps_are_listed_once_with_place_and_reason(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        tab = await opened(pilot, app, compiled(gpu_run, PART))
        assert "! compiled in part" in text(tab, ".head")
        gaps = tab.query_one("#gaps", TableView).table
        assert gaps is not None
        assert gaps.column("what") == ["graph break", "recompile", "recompile-limit"]
        assert gaps.column("count") == [2, 1, 1]
        copied = tab.copyable()
        assert copied is not None
        assert "print(x)" in copied[1]

        # On a short screen the gaps replace the kernels; the selected gap is shown in full.
        await pilot.resize_terminal(80, 24)
        await pilot.press("g")
        await pilot.pause()
        table = tab.query_one("#gaps", TableView)
        assert app.focused is table and not tab.generated.display
        assert table.size.height >= 1 + len(gaps.rows)
        assert (
            text(tab, "#detail")
            == "models/mine.py:7 in forward · Failed to trace [/print] · print(x)"
        )
        await pilot.press("g")
        await pilot.pause()
        assert app.focused is tab.generated and tab.generated.display
        assert "add, mul" in text(tab, "#detail")


async def test_a_run_without_compile_says_so_and_all_tabs_fit_in_eighty_columns(
    app: SysbenchApp, gpu_run: RunDirectory
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        tab = await opened(pilot, app, gpu_run)
        assert "Compile is off" in text(tab, ".blank")
        assert tab.copyable() is None
        screen = tab.screen
        assert isinstance(screen, ResultScreen)
        assert str(screen.bar.render()).rstrip().endswith("9Timeline")
        assert len(str(screen.bar.render())) <= 80
