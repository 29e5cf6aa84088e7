"""Which kernel torch takes for its fused attention, asked with the step's own operands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sysbench.core.compare.comparison import compare
from sysbench.core.record.environment import SDPA_KERNEL
from sysbench.core.record.events import AnyEvent, DeviceDescribed, Noticed
from sysbench.core.record.record import Record
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.spec import RunSpec
from sysbench.core.tables.context import headline
from sysbench.core.worker.passes.timing_pass import measure
from sysbench.core.worker.workloads.make_workload import Workload, make_workload
from sysbench.core.worker.workloads.sdpa import report_sdpa_kernel, sdpa_kernel_of
from sysbench.core.worker.workloads.stepped_workload import EnterPhase, StepError
from tests import factories

SMALL: dict[str, Any] = {
    **{"vocab": 64, "d_model": 16, "d_ff": 32, "layers": 2, "heads": 2},
    **{"batch": 1, "context": 8, "device": "cpu"},
}


BARE: dict[str, Any] = {"workload": "attention", "vocab": 1, "d_ff": 1, "layers": 1}


def spec(**changes: Any) -> RunSpec:
    return RunSpec(**SMALL | {"attention": "sdpa"} | changes)


class Seen(TorchFunctionMode):
    """The dtypes and gradients of the operands of every fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[torch.dtype, bool]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") == "_fused_sdp_choice":
            self.operands.append((args[0].dtype, args[0].requires_grad))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("changes", [{}, BARE])
@pytest.mark.parametrize("step", ["inference", "forward+backward"])
def test_it_is_what_torch_says_of_such_operands(changes: dict[str, Any], step: str) -> None:
    workload = make_workload(spec(step=step, **changes))
    assert sdpa_kernel_of(workload) == "flash"
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa_kernel_of(workload) == "math"


@pytest.mark.parametrize("attention", ["naive", "sdpa-math", "sdpa-flash"])
def test_a_kernel_that_the_spec_names_is_not_asked_for(attention: str) -> None:
    assert sdpa_kernel_of(make_workload(spec(attention=attention, step="inference"))) is None


def test_the_question_is_of_the_operands_after_autocast() -> None:
    workload = make_workload(spec(precision="bf16", step="forward+backward"))
    with Seen() as seen:
        assert sdpa_kernel_of(workload) is not None
    assert seen.operands == [(torch.bfloat16, True)]


def test_nothing_of_the_step_is_left_and_the_next_one_is_whole() -> None:
    workload = make_workload(spec(step="train"))
    workload.step(lambda phase: None)
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    assert sdpa_kernel_of(workload) == "flash"
    for parameter, old in zip(workload.model.parameters(), before, strict=True):
        assert parameter.grad is None
        assert torch.equal(parameter, old)
    workload.step(lambda phase: None)
    assert workload.loss_value() is not None


def test_compiled_code_is_asked_eagerly_and_compiles_nothing() -> None:
    from torch._dynamo.utils import counters

    workload = make_workload(spec(step="inference", compile="default", compile_backend="eager"))
    workload.step(lambda phase: None)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs
    assert sdpa_kernel_of(workload) == "flash"
    workload.step(lambda phase: None)
    assert counters["stats"]["unique_graphs"] == graphs


class Broken(Workload):
    def _step(self, enter: EnterPhase) -> None:
        raise ValueError("no room")


def test_a_step_that_fails_now_is_a_notice() -> None:
    events: list[AnyEvent] = []
    with pytest.raises(StepError):
        sdpa_kernel_of(Broken(spec()))
    report_sdpa_kernel(Broken(spec()), events.append)
    (event,) = events
    assert isinstance(event, Noticed)
    assert "no room" in event.message


def test_the_timing_pass_reports_it_among_the_settings(tmp_path: Path) -> None:
    events: list[AnyEvent] = []
    job = Job(spec=spec(steps=2, warmup=0, step="inference"), name="timing", folder=str(tmp_path))
    measure(job, events.append)
    (described,) = (event for event in events if isinstance(event, DeviceDescribed))
    assert described.facts == {"settings": {"sdpa_kernel": "flash"}}


def record(kernel: str | None, **changes: Any) -> Record:
    settings = {} if kernel is None else {SDPA_KERNEL: kernel}
    return factories.record(spec(**changes), environment={"settings": settings})


def test_two_kernels_of_one_name_are_among_what_differs() -> None:
    (factor,) = compare(record("flash"), record("cudnn")).factors
    assert (factor.name, factor.a, factor.b) == ("sdpa_kernel", "flash", "cudnn")
    assert compare(record("flash"), record("flash")).factors == []


def test_a_run_that_does_not_know_its_kernel_has_no_other_one() -> None:
    assert compare(record(None), record("cudnn")).factors == []


def test_the_heading_has_the_kernel_beside_the_name() -> None:
    assert "sdpa (cudnn) attention" in headline(record("cudnn"))[1]
    assert "sdpa attention" in headline(record(None))[1]


def test_the_kernel_of_a_stored_run_is_read_from_its_settings() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(record("efficient")), type=Record)
    assert "sdpa (efficient)" in headline(stored)[1]
