"""Divided steps as `estimate --world` plays them, against as many processes on the CPU.

Run as ``python -m tests.validation.measure_world [WORD]``: a line for each rank of each cell (whose
text has the word) with the least peak of tensors among its steady steps, the played one, and the
difference. The ranks meet by gloo through a file; torch's profiler sees every request for memory.
gloo sends from memory of numpy's: its threads keep what it is given for a while.

With ``--cuda`` the ranks are cards that meet by NCCL, null ones too, and a line has what the
caching allocator held and reserved at most.
"""

# Process groups written in Python have no types in torch.
# mypy: disable-error-code="attr-defined,call-arg,name-defined"
# mypy: disable-error-code="no-any-return,no-untyped-call,override"
from __future__ import annotations

import gc
import json
import pickle
import sys
import tempfile
import warnings
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.distributed.pipelining import PipelineStage
from torch.multiprocessing.spawn import spawn
from torch.utils._pytree import tree_leaves, tree_map

from sysbench.core.errors import WorkerFailed
from sysbench.core.memory.profiled import HOST, ProfiledTrace
from sysbench.core.predict.dry_run_client import Estimator, TrainingVariant, canonical_spec
from sysbench.core.predict.requests import WARMUP_STEPS
from sysbench.core.spec.profiles import resolve
from sysbench.core.spec.spec import RunSpec, parse_spec
from sysbench.core.spec.world import World
from sysbench.core.worker.ranks.layout import (
    attend_in_ring,
    divided,
    divided_loss,
    make_experts_mesh,
    make_mesh,
    make_ring,
)
from sysbench.core.worker.ranks.pipeline import (
    cut_stages,
    make_schedule,
    stage_inputs,
    stage_loss,
)
from sysbench.core.worker.workloads.factory import FactoryParts
from sysbench.core.worker.workloads.model_workload import Workload, parts_of
from sysbench.core.worker.workloads.stepped_workload import EnterPhase

STEADY = 4
MARK = 12345
"""Elements of a tensor that no model here has."""
SIZE = {"vocab": 1024, "d_model": 256, "d_ff": 704, "heads": 4, "layers": 4}
FACTORY = Path(__file__).parents[2] / "examples" / "divided.py"
MODELS: dict[str, dict[str, Any]] = {
    "ours": {**SIZE, "batch": 4, "context": 128},
    "small": {**SIZE, "batch": 4, "context": 16},
    "sgd": {**SIZE, "batch": 4, "context": 128, "optimizer": "sgd"},
    "bf16": {**SIZE, "batch": 4, "context": 64, "precision": "bf16", "optimizer": "adamw-loop"},
    "fused": {**SIZE, "batch": 4, "context": 128, "attention": "sdpa"},
    "segments": {**SIZE, "batch": 4, "context": 128, "checkpoint": 1, "attention": "sdpa"},
    "pairs": {**SIZE, "batch": 4, "context": 128, "checkpoint": 2, "attention": "sdpa"},
    "llama": {"batch": 4, "context": 128},
    "llama-fused": {"batch": 4, "context": 128, "attention": "sdpa"},
    "llama-bf16": {"batch": 4, "context": 64, "precision": "bf16", "checkpoint": 1},
    "factory": {"model": f"{FACTORY}:Divided", "batch": 4, "context": 128},
    "takes-mesh": {"model": f"{FACTORY}:make", "batch": 4, "context": 128},
    "mixture": {"batch": 4, "context": 128},
    "mixture-bf16": {"batch": 4, "context": 64, "precision": "bf16-pure", "checkpoint": 1},
    "mixture-fused": {"batch": 4, "context": 128, "attention": "sdpa"},
    "mixture-clip": {"batch": 4, "context": 128, "clip": 1.0},
    "olmoe": {"batch": 4, "context": 128},
    "qwen3moe": {"batch": 4, "context": 128},
    "glm4moe": {"batch": 4, "context": 128},
}
LLAMA = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024},
    **{"hidden_size": 256, "intermediate_size": 352, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
}
MIXTURE = {
    **LLAMA,
    **{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]},
    **{"num_local_experts": 8, "num_experts_per_tok": 2},
}
OLMOE = {
    **LLAMA,
    **{"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"]},
    **{"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4},
}
QWEN = {
    **LLAMA,
    **{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 64},
    **{"moe_intermediate_size": 352, "num_experts": 8, "num_experts_per_tok": 2},
    **{"decoder_sparse_step": 2},
}
GLM = {
    **LLAMA,
    **{"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "head_dim": 64},
    **{"moe_intermediate_size": 352, "n_routed_experts": 8, "num_experts_per_tok": 2},
    **{"n_shared_experts": 1, "first_k_dense_replace": 1},
}
CONFIGURATIONS = {
    **{"llama": LLAMA, "mixture": MIXTURE},
    **{"olmoe": OLMOE, "qwen3moe": QWEN, "glm4moe": GLM},
}
"""Of transformers' models, by the first part of their name here."""
WORLDS = (
    "dp=2",
    "dp=3",
    "dp=4,data=hsdp,replicas=2",
    "dp=2,data=ddp",
    "tp=2",
    "tp=4,sequence=false",
    "tp=2,loss_parallel=true",
    "dp=2,tp=2,loss_parallel=true",
    "pp=2,tp=2,microbatches=4,loss_parallel=true",
    "dp=2,tp=2",
    "pp=2,microbatches=4",
    "pp=2,microbatches=4,schedule=gpipe",
    "pp=2,dp=2,microbatches=2",
    "pp=2,tp=2,microbatches=4",
    "pp=2,dp=2,tp=2,microbatches=2",
    "dp=2,params=bf16,reduce=fp32",
    "dp=2,reshard=false",
    "dp=2,params=bf16,reduce=fp32,selective=true",
    "dp=2,tp=2,selective=true",
    "pp=2,dp=2,microbatches=2,params=bf16,reduce=fp32,reshard=false,selective=true",
    "pp=2,microbatches=4,schedule=interleaved,stages=2",
    "pp=2,microbatches=4,schedule=zero-bubble,stages=2",
    "pp=2,dp=2,microbatches=2,schedule=interleaved,stages=2",
    "pp=2,tp=2,microbatches=4,schedule=interleaved,stages=2",
    "cp=2",
    "cp=4",
    "dp=2,cp=2",
    "cp=2,tp=2",
    "dp=2,ep=2",
    "dp=2,ep=2,skew=1.5",
    "dp=4,ep=2",
    "dp=4,ep=4,skew=2.5",
    "dp=4,ep=2,data=hsdp,replicas=2",
    "pp=2,cp=2,microbatches=4",
    "tp=2,ep=2",
    "dp=2,tp=2,ep=2",
    "dp=2,tp=2,ep=4",
    "dp=2,tp=2,ep=4,skew=2.5",
    "dp=2,tp=2,ep=2,sequence=false",
    "pp=2,ep=2,dp=2,microbatches=2",
    "pp=2,tp=2,ep=2,microbatches=2",
    "cp=2,ep=2",
)

COLUMNS = "model,world,rank,least_bytes,most_bytes,played_bytes,difference_percent"
CUDA_COLUMNS = "model,world,rank," + ",".join(
    f"{what}_{column}"
    for what in ("allocated", "reserved")
    for column in ("least_bytes", "most_bytes", "played_bytes", "difference_percent")
)
CUDA_MODELS: dict[str, dict[str, Any]] = {
    "small": {"model": "cs336-2025/small", "batch": 4, "context": 512, "precision": "bf16"},
    "fp32": {"model": "cs336-2025/small", "batch": 8, "context": 256, "optimizer": "adamw-fused"},
    "medium": {"model": "cs336-2025/medium", "batch": 2, "context": 1024, "precision": "bf16-pure"},
}
CUDA_CELLS = [
    ("small", "dp=2"),
    ("small", "dp=2,data=ddp"),
    ("small", "tp=2"),
    ("small", "tp=2,sequence=false"),
    ("fp32", "dp=2"),
    ("fp32", "dp=2,data=ddp"),
    ("fp32", "tp=2"),
    ("medium", "dp=2"),
    ("medium", "tp=2"),
    ("small", "pp=2,microbatches=4"),
    ("small", "pp=2,microbatches=4,schedule=gpipe"),
    ("small", "pp=2,microbatches=4,schedule=interleaved,stages=2"),
    ("fp32", "pp=2,microbatches=8"),
    ("fp32", "pp=2,microbatches=8,schedule=gpipe"),
    ("fp32", "pp=2,microbatches=8,schedule=interleaved,stages=2"),
    ("fp32", "pp=2,microbatches=8,schedule=zero-bubble,stages=2"),
    ("medium", "pp=2,microbatches=2"),
    ("small", "pp=2,dp=2,microbatches=4,reduce=fp32,reshard=false"),
    ("small", "pp=2,dp=2,data=ddp,microbatches=4"),
    ("small", "pp=2,tp=2,microbatches=4,schedule=interleaved,stages=2"),
]


class OutsideGroup(dist.ProcessGroup):
    """gloo between memory of numpy's: it keeps no tensor that the profiler has seen."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        """Name under which it is registered."""
        return "outside"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """Name in torch's registry."""
        return self._name

    def _run(self, name: str, results: list[Tensor], *inputs: Any, **options: Any) -> dist.Work:
        copies = {id(one): outside(one) for one in (*results, *_flat(inputs))}
        swapped = tree_map(lambda one: copies.get(id(one), one), inputs)
        getattr(self._gloo, name)(*swapped, **options).wait()
        for one in results:
            one.detach().copy_(copies[id(one)])
        return _done(results)

    def allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Sum."""
        return self._run("allreduce", tensors, tensors, opts=opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Copy of one rank's."""
        return self._run("broadcast", tensors, tensors, opts=opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        """All ranks' inputs."""
        return self._run("allgather", [*_flat(outputs)], outputs, inputs, opts=opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> dist.Work:
        """A part of one rank's."""
        return self._run("scatter", outputs, outputs, inputs, opts=opts)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any) -> dist.Work:
        """All ranks' inputs in one tensor; gloo's own allocates it twice more."""
        total = outside(output).zero_()
        total.view(self.size(), -1)[self.rank()].copy_(given.detach().flatten())
        self._gloo.allreduce([total]).wait()
        output.detach().copy_(total)
        return _done([output])

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any) -> dist.Work:
        """A part of the sum; gloo's own copies its input, and frees that in another thread."""
        total = outside(given)
        self._gloo.allreduce([total]).wait()
        output.detach().copy_(total.view(self.size(), -1)[self.rank()].view(output.shape))
        return _done([output])

    def alltoall_base(
        self,
        output: Tensor,
        given: Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any,
    ) -> dist.Work:
        """A part of each rank's."""
        return self._run("alltoall_base", [output], output, given, output_sizes, input_sizes)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Sums."""
        return [self._run("allreduce", [one], [one]) for one in tensors][-1]

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        """All ranks' inputs, one after another."""
        return [self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)][
            -1
        ]

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> dist.Work:
        """Parts of sums, one after another."""
        return [
            self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)
        ][-1]

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        """To a rank; gloo's transfer has the tensors, as NCCL's has."""
        return self._gloo.send(tensors, rank, tag)

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        """From a rank."""
        return self._run("recv", tensors, tensors, rank, tag)

    def barrier(self, opts: Any) -> dist.Work:
        """All arrived."""
        return self._run("barrier", [], opts=opts)


def _done(results: list[Tensor]) -> dist.Work:
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(results)
    return torch._C._distributed_c10d._create_work_from_future(done)


def _flat(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def outside(tensor: Tensor) -> Tensor:
    """A copy in memory of numpy's, with the values of a tensor of any type."""
    size = tensor.numel() * tensor.element_size()
    copy = torch.from_numpy(np.empty(size, np.uint8)).view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor.detach())


class DescribedStage(PipelineStage):
    """A stage whose descriptions of tensors go through the store: a null GPU carries no values."""

    def _send_meta(self, meta: Any, dst_stage: int) -> None:
        to = self._resolve_peer_global_rank(dst_stage)
        name = f"{dist.get_rank()} {to} {self.stage_index} {dst_stage}"
        self._store.set(name, pickle.dumps(meta))

    def _recv_meta(self, src_stage: int) -> Any:
        sender = self._resolve_peer_global_rank(src_stage)
        name = f"{sender} {dist.get_rank()} {src_stage} {self.stage_index}"
        return pickle.loads(self._store.get(name))

    @property
    def _store(self) -> dist.Store:
        return dist.distributed_c10d._get_default_store()

    def _warmup_forward_vote(self, *arguments: Any, **options: Any) -> Tensor:
        return torch.zeros(1)  # the tensors of stages are found by a run

    def _warmup_backward_result(self, received_result: Tensor) -> Tensor:
        return received_result


class RankWorkload(Workload):
    """The workload of one rank, with torch's own schedules."""

    def __init__(self, spec: RunSpec, world: World, rank: int) -> None:
        self.world, self.rank = world, world.coordinates(rank)["pp"]
        self.is_selective = world.selective
        super().__init__(spec.changed(context=spec.context // world.cp))

    def _parts(self) -> FactoryParts:
        with torch.device("cpu"):
            mesh = make_mesh(self.world, self.device.type)
        return parts_of(self.spec, mesh)

    def _prepare(self, model: nn.Module) -> nn.Module:
        world, mesh = self.world, make_mesh(self.world, self.device.type)
        model = super()._prepare(model)
        if (ring := make_ring(world, self.device.type)) is not None:
            attend_in_ring(model, ring, on_cuda=self.device.type == "cuda")
        experts = make_experts_mesh(world, self.device.type)
        if experts is not None:
            route(model, world)
        is_by_shards = self.device.type == "cuda" and world.data != "ddp"
        if is_by_shards:
            model = model.to("meta")
            gc.collect()
            torch.cuda.empty_cache()  # a rank allocates its shards only
        if world.pp == 1:
            whole = divided(model, world, mesh, experts=experts, parallelize=self.parts.parallelize)
            return whole.to_empty(device=self.device) if is_by_shards else whole
        group, stages = mesh["pp"].get_group(), []
        for index, part in cut_stages(model, world, self.rank).items():
            runs = divided(part, world, mesh, experts=experts)
            runs = runs.to_empty(device=self.device) if is_by_shards else runs
            make = DescribedStage if self.device.type == "cuda" else PipelineStage
            stages.append(make(runs, index, world.all_stages, self.device, group=group))
        self.ends = stages[0].is_first, stages[-1].is_last
        self.schedule = make_schedule(stages, world, self._stage_loss)
        return nn.ModuleList(stage.submod for stage in stages)

    def _stage_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return stage_loss(self.parts.model, output, targets, self.ids)

    def _pass_through(self, enter: EnterPhase) -> None:
        with divided_loss(self.world):
            if self.world.pp == 1:
                super()._pass_through(enter)
                return
            is_first, is_last = self.ends
            ids, targets = stage_inputs(self.batch, self.targets)
            given = (ids,) if is_first else ()
            with self._casting():
                self.schedule.step(
                    *given, target=targets if is_last else None, return_outputs=False
                )


def route(model: nn.Module, world: World) -> None:
    """Have each token's experts chosen so that their ranks get the loads of the world."""
    chosen = dict[int, Tensor]()  # of numpy's memory, which the profiler does not see

    def choose(experts: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        index = inputs[1]
        pairs, each = index.numel(), cast(int, experts.num_experts)
        loads = enumerate(world.loads(pairs))
        ids = [rank * each + one % each for rank, load in loads for one in range(load)]
        if pairs not in chosen:
            chosen[pairs] = torch.from_numpy(np.array(ids).reshape(index.shape))
        index.data.copy_(chosen[pairs])

    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(choose)


def spec_of(name: str, folder: Path, **changes: Any) -> RunSpec:
    """Spec of a model; the configuration of one of transformers is written to the folder."""
    settings = {"device": "cpu", **MODELS[name]}
    configuration = CONFIGURATIONS.get(name.partition("-")[0])
    if "model" in settings:
        return canonical_spec(resolve(parse_spec(settings)))
    if configuration is None:
        return canonical_spec(RunSpec(model="", **settings))
    path = folder / f"{name}.json"
    path.write_text(json.dumps(configuration | changes))
    return canonical_spec(resolve(parse_spec({"model": f"hf:{path}", **settings})))


def measure(rank: int, place: str, spec: RunSpec, world: World) -> None:
    """Leave the least peak of this rank's steady steps in the folder."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.disable()  # a collection within a step would free what other steps keep
    folder = Path(place)
    dist.Backend.register_backend("outside", OutsideGroup, devices=["cpu"])
    dist.init_process_group(
        "outside", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world.size
    )
    with profile(use_kineto=True, profile_memory=True) as recording:
        workload = RankWorkload(spec, world, rank)
        for _ in range(1 + STEADY):
            workload.step(lambda phase: None)
            gc.collect()
            mark = torch.empty(MARK)  # says in the recording where a step ended
            del mark
    trace = folder / f"{rank}.json"
    recording.export_chrome_trace(str(trace))
    changes = ProfiledTrace(trace.read_bytes()).history(HOST)[0].change
    ends = np.flatnonzero(changes == 4 * MARK)
    steps = np.split(np.cumsum(changes), ends)[1:-1]
    peaks = [int(step[2:].max()) for step in steps]
    (folder / f"{rank}.peaks").write_text(" ".join(map(str, peaks)))
    dist.barrier()
    dist.destroy_process_group()


def measure_on_cuda(rank: int, place: str, spec: RunSpec, world: World) -> None:
    """Leave what the caching allocator held and reserved at most in each steady step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.disable()
    folder, device = Path(place), torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=world.size,
        device_id=device,
    )
    workload = RankWorkload(spec.changed(device=str(device)), world, rank)
    gc.collect()
    torch.cuda.empty_cache()  # as if the model had been built by shards
    lines = []
    for step in range(WARMUP_STEPS + STEADY):
        torch.cuda.reset_peak_memory_stats()
        workload.step(lambda phase: None)
        torch.cuda.synchronize()
        if step >= WARMUP_STEPS:
            lines.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        gc.collect()
    (folder / f"{rank}.peaks").write_text("\n".join(f"{a} {b}" for a, b in lines))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Print a line for each rank."""
    warnings.simplefilter("ignore")
    on_cuda = "--cuda" in sys.argv
    word = next((one for one in sys.argv[1:] if one != "--cuda"), "")
    print(CUDA_COLUMNS if on_cuda else COLUMNS)
    with Estimator() as exact:
        for name, text in CUDA_CELLS if on_cuda else product(MODELS, WORLDS):
            if word not in f"{name} {text}":
                continue
            try:
                (_compare_on_cuda if on_cuda else _compare)(exact, name, text)
            except WorkerFailed as error:  # such as a factory's model in stages
                print(f'{name},"{text}",,,,,,{error}', flush=True)
    return 0


def _compare_on_cuda(exact: Estimator, name: str, text: str) -> None:
    spec, world = RunSpec(device="cuda:0", **CUDA_MODELS[name]), World.parse(text)
    with tempfile.TemporaryDirectory() as place:
        spawn(measure_on_cuda, (place, spec, world), world.size)
        for rank in range(world.size):
            lines = (Path(place) / f"{rank}.peaks").read_text().splitlines()
            allocated, reserved = zip(*(map(int, line.split()) for line in lines), strict=True)
            capability = ".".join(map(str, torch.cuda.get_device_capability(rank)))
            held = exact.predict(spec, capability, TrainingVariant(world=world, rank=rank)).held
            assert held is not None
            row: list[object] = [name, f'"{text}"', rank]
            for measured, played in (
                (allocated, held.allocated_bytes),
                (reserved, held.reserved_bytes),
            ):
                off = 100 * (played / max(measured) - 1)
                row += [min(measured), max(measured), played, f"{off:.3f}"]
            print(*row, sep=",", flush=True)


def _compare(exact: Estimator, name: str, text: str) -> None:
    world = World.parse(text)
    with tempfile.TemporaryDirectory() as place:
        spec = spec_of(name, Path(place))
        ranks = range(world.size)
        played = [
            exact.predict(spec, variant=TrainingVariant(world=world, rank=rank)).peak_bytes
            for rank in ranks
        ]
        spawn(measure, (place, spec, world), world.size)
        for rank in ranks:
            peaks = [*map(int, (Path(place) / f"{rank}.peaks").read_text().split())]
            least, most = min(peaks), max(peaks)
            off = 100 * (played[rank] / least - 1)
            print(f'{name},"{text}",{rank},{least},{most},{played[rank]},{off:.3f}', flush=True)


if __name__ == "__main__":
    sys.exit(main())
