"""Models of users: their steps, their passes, and how what goes wrong in their code ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.predict.dry_run_client import canonical_spec
from sysbench.core.predict.requests import AllocatorPeak, replay_requests
from sysbench.core.record.events import AnyEvent, DeviceDescribed, ResultReported, WorkerFailed
from sysbench.core.record.record import Kernels, Memory
from sysbench.core.runs.worker_process import Job
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.worker.boot import run_pass
from sysbench.core.worker.dry_run.exact import exact_prediction
from sysbench.core.worker.passes import memory_pass as memory
from sysbench.core.worker.passes import timing_pass as timing
from sysbench.core.worker.passes import trace_pass as trace
from sysbench.core.worker.workloads.factory import import_factory
from sysbench.core.worker.workloads.make_workload import make_workload
from sysbench.core.worker.workloads.model_workload import CROSS_ENTROPY, MEAN_SQUARE, Workload
from tests.core.worker.unplaced import GRADIENT_OF_LOSS
from tests.core.worker.workloads.user_code import CODE


@pytest.fixture(scope="module", autouse=True)
def import_path() -> Iterator[None]:
    """Factories are called in this process, which finds their folders no more afterwards."""
    path = sys.path.copy()
    yield
    sys.path[:] = path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(CODE)
    (folder / "broken.py").write_text("def make(:\n")
    return folder


@pytest.fixture
def own(folder: Path) -> Callable[..., RunSpec]:
    def spec(factory: str, file: str = "mine.py", **settings: Any) -> RunSpec:
        small = {"batch": 2, "context": 8, "device": "cpu", "threads": 1, "steps": 2, "warmup": 1}
        return resolve(parse_spec({"model": f"{folder / file}:{factory}", **small, **settings}))

    return spec


def stepped(spec: RunSpec) -> tuple[Workload, list[str]]:
    workload, phases = make_workload(spec), list[str]()
    assert isinstance(workload, Workload)
    workload.step(phases.append)
    return workload, phases


def test_a_module_alone_is_trained_on_token_ids(own: Callable[..., RunSpec]) -> None:
    spec = own("make", **{"model.layers": 3, "clip": 1.0})
    workload, phases = stepped(spec)
    assert phases == [*workload.phases, ""]
    assert workload.phases == ("forward", "loss", "backward", "clip", "optimizer", "zero-grad")
    assert workload.loss_words == CROSS_ENTROPY
    facts = workload.facts
    assert facts["inputs"] == ["int64 (2, 8)"] * 2
    assert facts["parameters"] == 2 * 50 * 48 + 50 + 3 * (48 * 48 + 48 + 1)
    first = workload.loss_value()
    workload.step(lambda phase: None)
    assert first is not None and workload.loss_value() != first
    assert all(parameter.grad is None for parameter in workload.model.parameters())


def test_the_code_of_a_file_runs_once_in_a_process(
    own: Callable[..., RunSpec], folder: Path
) -> None:
    """What it registers, such as operators of torch.library, can be registered only once."""
    (folder / "registers.py").write_text(
        "import torch\n"
        'OPERATORS = torch.library.Library("of_a_user", "DEF")\n'
        "def make():\n    return torch.nn.Linear(4, 4)\n"
    )
    spec = own("make", file="registers.py", batch=0, context=0)
    assert import_factory(spec) is import_factory(spec)
    (folder / "fails.py").write_text("def make(): ...\nraise OSError('not today')\n")
    failing = own("make", file="fails.py")
    for _ in range(2):  # half of a module is none
        with pytest.raises(OSError, match="not today"):
            import_factory(failing)


def test_tensors_that_a_step_makes_without_a_device_are_dry_run(
    own: Callable[..., RunSpec],
) -> None:
    spec = own("of_the_default_device", context=50, batch=4)
    logits = 4 * 50 * 50 * 4
    assert exact_prediction(canonical_spec(spec)).peak_bytes > logits


def test_a_parameter_that_no_gradient_reaches_has_no_state(own: Callable[..., RunSpec]) -> None:
    """On CUDA the optimizer makes state in its first step, for parameters with a gradient."""

    def predicted(frozen: bool) -> tuple[int, AllocatorPeak]:
        spec = own("idle", **{"model.frozen": frozen}).changed(device="cuda:0")
        prediction = exact_prediction(canonical_spec(spec))
        assert prediction.requests is not None
        return prediction.peak_bytes, replay_requests(prediction.requests, 0)

    assert predicted(frozen=False) == predicted(frozen=True)


def test_a_batch_takes_the_sizes_it_names_and_no_other_is_ignored(
    own: Callable[..., RunSpec],
) -> None:
    with pytest.raises(SpecError, match="context = 8: write context=0: neither the factory nor"):
        make_workload(own("images"))
    workload, _ = stepped(own("images", context=0, precision="bf16-pure"))
    assert workload.facts["inputs"] == ["bfloat16 (2, 3, 8, 8)"]
    assert workload.loss_words == MEAN_SQUARE
    with pytest.raises(SpecError, match="leave it out; batch=… is a key of the spec"):
        make_workload(own("Trained", context=0, **{"model.batch": 3}))
    with pytest.raises(SpecError, match=r"batch = 0: an integer from 1: Trained\(\) needs it"):
        make_workload(own("Trained", context=0, batch=0, optimizer="custom"))
    with pytest.raises(SpecError, match=r"an argument of make\(\), which has: layers, width"):
        make_workload(own("make", **{"model.depth": 3}))


def test_a_loss_and_an_optimizer_of_its_own_are_used_and_have_to_be_said(
    own: Callable[..., RunSpec],
) -> None:
    workload, phases = stepped(own("Trained", context=0, optimizer="custom"))
    assert phases == ["forward", "backward", "optimizer", "zero-grad", ""]
    assert [type(one) for one in workload.optimizers] == [torch.optim.SGD]
    with pytest.raises(SpecError, match="custom: the model brings its own"):
        make_workload(own("Trained", context=0))
    with pytest.raises(SpecError, match="a name: it brings none"):
        make_workload(own("make", optimizer="custom"))


def test_hidden_states_with_fewer_columns_than_ids_are_no_logits(
    own: Callable[..., RunSpec],
) -> None:
    assert stepped(own("headless"))[0].loss_words == MEAN_SQUARE
    assert stepped(own("headless", **{"model.width": 50}))[0].loss_words == CROSS_ENTROPY


def test_a_whole_step_has_its_own_phases(own: Callable[..., RunSpec]) -> None:
    settings: dict[str, Any] = {"batch": 0, "context": 0, "optimizer": "custom"}
    _, phases = stepped(own("stepped", **settings))
    assert phases == ["start", "first half", "second half", ""]
    with pytest.raises(SpecError, match=r"clip = 1.0: 0.0: the step is the model's own"):
        make_workload(own("stepped", clip=1, **settings))


def test_blocks_compile_where_there_are_any(own: Callable[..., RunSpec]) -> None:
    eager = {"compile": "default", "compile_backend": "eager", "compile_scope": "block"}
    with pytest.raises(SpecError, match="no list of blocks"):
        make_workload(own("Wrong", **eager))


def test_all_passes_close_on_a_model_with_its_own_autograd_function(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec, events = own("make", batch=8, context=128, **{"model.width": 256}), list[AnyEvent]()
    trace.measure(Job(spec=spec, name="trace", folder=str(tmp_path)), events.append)
    memory.measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append)
    timing.measure(Job(spec=spec, name="timing", folder=str(tmp_path)), events.append)
    blocks = {event.block: event.data for event in events if isinstance(event, ResultReported)}
    kernels, ledger = (
        msgspec.convert(blocks["kernels"], Kernels),
        msgspec.convert(blocks["memory"], Memory),
    )
    rows = sum(row.exclusive_ns for row in kernels.rows) + sum(row.ns for row in kernels.idle)
    assert rows + kernels.unattributed_ns == pytest.approx(kernels.step_ms * 1e6, rel=1e-9)
    # By name, since a busy machine can stop any operator for longer than all others take.
    outside = [row for row in kernels.rows if not row.module and row.phase != "optimizer"]
    assert {row.name.removeprefix("aten::") for row in outside} <= GRADIENT_OF_LOSS
    assert sum(row.bytes for row in ledger.ledger) == ledger.peak_allocated_bytes
    assert {"parameters", "inputs", "optimizer state", "activations"} <= {
        row.name for row in ledger.ledger
    }
    assert ledger.predicted_peak_bytes == ledger.tensor_peak_bytes
    assert ledger.reconciliation[-1].error == 0
    assert blocks["timing"]["tokens_per_second"] > 0
    assert blocks["timing"]["model_flops"] is None
    reported = [event.facts for event in events if isinstance(event, DeviceDescribed)]
    facts = [facts["model"] for facts in reported if "model" in facts]
    assert facts[-1]["loss"] == CROSS_ENTROPY


@pytest.mark.parametrize(
    ("factory", "settings"),
    [
        ("encoder", {"context": 64, "precision": "bf16"}),
        ("pooled", {"context": 0, "precision": "bf16"}),
        ("normed", {"context": 0}),
        ("added", {"context": 0, "batch": 64}),
    ],
)
def test_modules_are_predicted_as_they_run(
    own: Callable[..., RunSpec], tmp_path: Path, factory: str, settings: dict[str, Any]
) -> None:
    spec, events = own(factory, **settings), list[AnyEvent]()
    memory.measure(Job(spec=spec, name="memory", folder=str(tmp_path)), events.append)
    (*_, data) = (event.data for event in events if isinstance(event, ResultReported))
    ledger = msgspec.convert(data, Memory)
    assert ledger.predicted_peak_bytes == ledger.tensor_peak_bytes
    if spec.has_backward:
        errors = {row.name: row.error for row in ledger.reconciliation}
        assert errors["activations"] == 0 == errors.get("autocast weight copies", 0)


@pytest.mark.parametrize(
    ("factory", "settings", "scores"),
    [
        ("encoder", {}, 0),
        ("encoder", {"model.dropout": 0.1, "precision": "bf16"}, 0),
        ("Grouped", {"precision": "bf16"}, 0),
        # The kernel for float32 takes no key heads fewer than query heads.
        ("Grouped", {}, 4),
    ],
)
def test_on_cuda_scores_are_kept_where_no_kernel_is_without(
    own: Callable[..., RunSpec], factory: str, settings: dict[str, Any], scores: int
) -> None:
    def saved_bytes(context: int) -> int:
        spec = own(factory, context=context, step="forward", **settings).changed(device="cuda:0")
        return exact_prediction(canonical_spec(spec)).saved_activation_bytes

    short, middle, long = map(saved_bytes, (16, 32, 48))
    squares = (48 * 48 + 16 * 16 - 2 * 32 * 32) * 2 * 4  # of two sequences, in float32
    assert (long + short - 2 * middle) // squares == scores


@pytest.mark.parametrize(
    ("factory", "place", "message"),
    [
        ("raises", 'in raises: sizes["b"]', "'b'"),
        ("exits", "in exits: sys.exit(3)", "exits() ended the process by exit(3)"),
        ("pair", "", "pair() returned a tuple: it has to return a torch.nn.Module"),
        ("needs_file", 'in needs_file: open("weights-not-there.bin")', "No such file"),
        ("Wrong", "in forward: self.table(ids) @ torch.zeros(3, 3)", "cannot be multiplied"),
        ("Ends", 'in forward: raise SystemExit("enough")', "ended the process by exit('enough')"),
        ("nothing", "", "mine.py has no function or class nothing; available: Scaled, Block, make"),
        ("no_table", "", "has no embedding"),
    ],
)
def test_an_error_of_the_user_s_code_is_told_as_theirs(
    own: Callable[..., RunSpec], tmp_path: Path, factory: str, place: str, message: str
) -> None:
    failure = failed(own(factory), tmp_path)
    code = place.partition(": ")[2]
    line = next(number for number, text in enumerate(CODE.splitlines(), 1) if code in text)
    assert failure.place == (f"mine.py:{line} {place}" if place else "")
    assert message in failure.message


def failed(spec: RunSpec, folder: Path) -> WorkerFailed:
    events = list[AnyEvent]()
    job = Job(spec=spec, name="timing", folder=str(folder))
    assert not run_pass(job, events.append, lambda: timing.measure)
    assert isinstance(events[-1], WorkerFailed)
    return events[-1]


def test_a_file_that_is_no_python_names_its_line(
    own: Callable[..., RunSpec], tmp_path: Path
) -> None:
    assert failed(own("make", "broken.py"), tmp_path).place == "broken.py:1: def make(:"


def test_code_that_changes_while_it_is_measured_ends_the_pass(
    own: Callable[..., RunSpec], folder: Path
) -> None:
    path = folder / "changing.py"
    path.write_text("def make(): ...\n")
    spec = own("make", "changing.py")
    path.write_text("def make(): return None\n")
    with pytest.raises(ModelError, match=r"changing\.py was changed since the run began"):
        make_workload(spec)
