"""Plans that divide the tensors of each layer, by torch's styles."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from sysbench.core.errors import ModelError
from sysbench.core.spec.world import World
from sysbench.core.worker.workloads.transformer import Transformer

Plan = dict[str, ParallelStyle]
TOKENS = Shard(1)
"""Residuals of shape (batch, context, d_model), divided by tokens."""


class Parts(NamedTuple):
    """Names of a model's modules: its list of blocks, and what only the first and last stage run.

    A stage runs the model's own forward, in which an absent part returns what it gets.
    """

    blocks: str
    first: tuple[str, ...]
    last: tuple[str, ...]


BUILT_IN = Parts("blocks", ("embedding",), ("norm", "head"))
LLAMA = Parts("model.layers", ("model.embed_tokens",), ("model.norm", "lm_head"))
LLAMA_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
"""Modules of a layer of Llama, Mistral, Qwen 2 and 3, and others."""


def parts_to_cut(model: nn.Module) -> Parts | None:
    """Names of the parts of a built-in model, or of one like Llama in transformers; else None."""
    if isinstance(model, Transformer):
        return BUILT_IN
    layers = getattr(getattr(model, "model", None), "layers", ())
    alike = [{*dict(layer.named_children())} == LLAMA_LAYER for layer in layers]
    return LLAMA if alike and all(alike) and hasattr(model, "lm_head") else None


def named_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a model that can be cut, by name."""
    names = parts_to_cut(model)
    if names is None:
        return {}
    blocks = model.get_submodule(names.blocks).named_children()
    return {f"{names.blocks}.{key}": block for key, block in blocks}


def check_router_loss(model: nn.Module) -> None:
    """Refuse a model whose loss has a part of each router.

    Raises:
        ModelError: With the argument that leaves this part out.
    """
    if getattr(getattr(model, "config", None), "output_router_logits", False):
        raise ModelError(
            "routers' losses are not divided over pp and tp: set output_router_logits=false"
        )


DISPATCH = "ep_dispatch_experts"
"""Style of transformers' plans for modules that take tokens, indices of experts, and weights."""


def named_experts(model: nn.Module) -> dict[str, Any]:
    """The modules to which a model's plan sends tokens, by name."""
    plan: dict[str, str] = getattr(model, "ep_plan", None) or {}
    patterns = [pattern for pattern, style in plan.items() if style == DISPATCH]
    return {
        name: module
        for name, module in model.named_modules()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def use_local(module: nn.Module, gradient: Placement | None = None) -> None:
    """Let a module compute with this rank's part of its parameters, until `use_own`.

    Args:
        gradient: How the ranks' gradients of a part are related; None as parts are.
    """
    for name, one in module.named_parameters(recurse=False):
        given = None if gradient is None else [gradient]
        vars(module)[name] = one.to_local(grad_placements=given)  # type: ignore[attr-defined]


def use_own(module: nn.Module) -> None:
    """Let a module have its own parameters again."""
    for name, _ in module.named_parameters(recurse=False):
        del vars(module)[name]


class LocalParameters(ParallelStyle):
    """Parameters of a module that computes on local tensors.

    Args:
        gradient: `Partial` if each rank computes a part of whole parameters' gradients.
        placements: Of parameters that are divided, by name.
    """

    def __init__(
        self, gradient: Placement | None = None, placements: Mapping[str, Placement] | None = None
    ) -> None:
        super().__init__()
        self._gradient, self._placements = gradient, placements or {}

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, one in [*module.named_parameters(recurse=False)]:
            placed = [self._placements.get(name, Replicate())]
            whole = distribute_tensor(one.detach(), device_mesh, placed, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(whole, one.requires_grad))
        module.register_forward_pre_hook(lambda one, _: use_local(one, self._gradient))
        module.register_forward_hook(lambda one, *_: use_own(one))
        return module


class RoutedTokens(ParallelStyle):
    """A layer of experts, which computes on local tensors.

    Args:
        residual: Layout of what enters and leaves the layer.
        seen: Layout of what the layer sees.
        part: Layout of what it returns, and of the gradient of what it sees.
    """

    def __init__(self, residual: Placement, seen: Placement, part: Placement) -> None:
        super().__init__()
        self._residual, self._seen, self._part = residual, seen, part

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden, *rest = inputs
            if not isinstance(hidden, DTensor):
                hidden = DTensor.from_local(hidden, device_mesh, [self._residual], run_check=False)
            seen = hidden.redistribute(placements=[self._seen])
            return seen.to_local(grad_placements=[self._part]), *rest

        def leave(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
            part = DTensor.from_local(output, device_mesh, [self._part], run_check=False)
            residual = part.redistribute(placements=[self._residual])
            return residual if self._residual == TOKENS else residual.to_local()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


HEAD = "colwise_gather_output"
STYLES: dict[str, ParallelStyle] = {
    "colwise": ColwiseParallel(),
    "rowwise": RowwiseParallel(),
    HEAD: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    "replicated_with_grad_allreduce": LocalParameters(Partial()),
}
"""Styles of transformers' plans that torch has, too."""
PLACEMENTS: Mapping[str, Any] = {
    "packed_colwise": _StridedShard(1, split_factor=2),
    "rowwise": Shard(2),
}
"""Of experts' tensors, by their style in these plans: of shape (experts, outputs, inputs)."""
SHARED_PLACEMENTS = {"colwise": Shard(0), "rowwise": Shard(1)}
"""Of matrices of an expert that all tokens share: of shape (outputs, inputs)."""


def divide_layers(model: nn.Module, world: World, mesh: DeviceMesh) -> None:
    """Divide the tensors of a model's layers over ``tp``, in place.

    Raises:
        ModelError: The model has no plan for it, or one that cannot be played.
    """
    built_in = isinstance(model, Transformer)
    plan = _built_in_plan(world) if built_in else _own_plan(model, world)
    named = {
        name: style
        for pattern, style in plan.items()
        for name, module in model.named_modules()
        if fnmatchcase(name, pattern)
        # An absent part of a stage has nothing to divide, but what it gets may be prepared.
        and (isinstance(style, PrepareModuleInput) or not isinstance(module, nn.Identity))
    }
    if not named:
        names = [name for name, _ in model.named_modules() if name]
        raise ModelError(
            f"the model's tensor-parallel plan names none of its modules: {next(iter(plan))!r} and "
            f"others must match names such as {names[-1]!r}"
        )
    if parts_to_cut(model) is not None:  # optimizers take no mixture with undivided tensors
        experts = named_experts(model)
        named |= {
            name: LocalParameters()
            for name, module in model.named_modules()
            if name not in named and name not in experts and [*module.parameters(recurse=False)]
        }
    parallelize_module(model, mesh["tp"], named)


def _built_in_plan(world: World) -> Plan:
    """Columns of the first matrices and rows of the second, as Megatron-LM (arXiv:1909.08053).

    With ``sequence`` norms see a part of the tokens each (arXiv:2205.05198).
    """
    plan: Plan = {f"blocks.*.{name}": ColwiseParallel() for name in COLUMNS}
    residual: Any = TOKENS if world.sequence else Replicate()
    plan |= {f"blocks.*.{name}": RowwiseParallel(output_layouts=residual) for name in ROWS}
    plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)
    plan["head"] = _head(world, residual)
    if world.sequence:
        plan |= {name: SequenceParallel() for name in ("norm", "blocks.*.*_norm")}
        plan["blocks.*.ffn"] = _gathered(1)
        plan["blocks.*.attention"] = _gathered(4)
    return plan


def _head(world: World, layout: Any = None) -> ParallelStyle:
    if world.loss_parallel:
        return ColwiseParallel(input_layouts=layout, use_local_output=False)
    return ColwiseParallel(input_layouts=layout, output_layouts=Replicate())


COLUMNS = ("attention.q", "attention.k", "attention.v", "ffn.w1", "ffn.w3")
ROWS = ("attention.out", "ffn.w2")


def _gathered(arguments: int) -> ParallelStyle:
    """The first of these arguments with all tokens."""
    rest = (None,) * (arguments - 1)
    return PrepareModuleInput(
        input_layouts=(TOKENS, *rest), desired_input_layouts=(Replicate(), *rest)
    )


def _own_plan(model: nn.Module, world: World) -> Plan:
    """The plan that a model of transformers has."""
    styles: dict[str, str] = getattr(model, "tp_plan", None) or {}
    routed: dict[str, str] = getattr(model, "ep_plan", None) or {}
    is_llama = parts_to_cut(model) is LLAMA
    if not styles:
        raise ModelError(
            "the model has no tensor-parallel plan: set tp=1, or give it an attribute tp_plan with "
            "a style for each pattern of module names"
        )
    if world.ep > 1 and not is_llama:
        raise ModelError(
            f"world.ep = {world.ep}: 1 with tp and this model, whose layers are not Llama's"
        )
    if is_llama:
        styles = {pattern: style for pattern, style in styles.items() if pattern not in routed}
    unknown = sorted({*styles.values()} - STYLES.keys())
    if unknown:
        raise ModelError(
            f"the model's tp_plan has styles that are not played: {', '.join(unknown)}; set tp=1, "
            f"or use {', '.join(STYLES)}"
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(getattr(model, "config", None), name, None)
        if heads and heads % world.tp:
            raise ModelError(f"world.tp = {world.tp}: a divisor of {name}={heads}")
    gathered = [pattern for pattern, style in styles.items() if style == HEAD]
    head = [one for one in gathered if one == LLAMA.last[-1]] if is_llama else gathered
    if world.loss_parallel and not head:
        raise ModelError(f"world.loss_parallel: the model's tp_plan divides no head, by {HEAD!r}")
    plan = {pattern: STYLES[style] for pattern, style in styles.items()}
    plan |= {pattern: _head(world) for pattern in head}
    if is_llama and world.sequence:
        plan |= _llama_tokens(model, world, styles)
    return plan | (_routed_tokens(model, world) if is_llama else {})


def _routed_tokens(model: nn.Module, world: World) -> Plan:
    """Styles of layers of experts, as torchtitan's.

    With ``ep`` routers and experts see this rank's part of the tokens; without, all tokens, and
    each rank has a part of each expert.

    Raises:
        ModelError: The model has other modules beside experts, or tensors that are not played.
    """
    residual: Placement = TOKENS if world.sequence else Replicate()
    seen, part = (TOKENS, TOKENS) if world.ep > 1 else (Replicate(), Partial())
    plan: Plan = {}
    for name, experts in named_experts(model).items():
        check_router_loss(model)
        layer = name.rpartition(".")[0]
        plan[layer] = RoutedTokens(residual, seen, part)
        if world.ep == 1:
            plan[name] = LocalParameters(placements=_placements(model, world, name, experts))
        for key, module in model.get_submodule(layer).named_children():
            path = f"{layer}.{key}"
            if path != name:
                plan |= _shared_by_tokens(model, world, path, module)
    return plan


def _shared_by_tokens(model: Any, world: World, path: str, module: nn.Module) -> Plan:
    """Styles of a router, or of an expert that all tokens share, whose parts each rank adds up."""
    leaves = {
        key: [style for one, style in model.tp_plan.items() if fnmatchcase(key, one)]
        for key, one in module.named_modules(prefix=path)
        if [*one.parameters(recurse=False)]
    }
    if not any(leaves.values()) and (world.ep > 1 or path in leaves):
        return {key: LocalParameters(Partial()) for key in leaves}
    for key, styles in leaves.items():
        names = [name for name, _ in model.get_submodule(key).named_parameters(recurse=False)]
        if not {*styles} & SHARED_PLACEMENTS.keys() or names != ["weight"]:
            how = "1 without ep" if world.ep == 1 else "1"
            raise ModelError(
                f"world.tp = {world.tp}: {how}, since the model's {key} has a bias, or is not in "
                "its tp_plan"
            )
    plan: Plan = {
        key: LocalParameters(placements={"weight": SHARED_PLACEMENTS[styles[0]]})
        for key, styles in leaves.items()
    }
    if world.ep > 1:
        plan[path] = RoutedTokens(Shard(-2), Replicate(), Partial())
    return plan


def _placements(model: Any, world: World, name: str, experts: nn.Module) -> Mapping[str, Placement]:
    """Those of experts' tensors over ``tp``, by the model's plan."""
    placements = dict[str, Placement]()
    for key, one in experts.named_parameters(recurse=False):
        path = f"{name}.{key}"
        styles = [style for one, style in model.tp_plan.items() if fnmatchcase(path, one)]
        if not styles or styles[0] not in PLACEMENTS:
            how = f"has the style {styles[0]}" if styles else "is not in its tp_plan"
            raise ModelError(f"world.tp = {world.tp}: 1 without ep, since the model's {path} {how}")
        placements[key] = placed = PLACEMENTS[styles[0]]
        whole = one.shape[placed.dim] // getattr(placed, "split_factor", 1)
        if whole % world.tp:
            raise ModelError(f"world.tp = {world.tp}: a divisor of {path}'s {whole}, or use ep")
    return placements


def _llama_tokens(model: nn.Module, world: World, styles: Mapping[str, str]) -> Plan:
    """Styles that divide the residuals of a language model like Llama by tokens, as torchtitan's.

    Embeddings are divided, too. They stay DTensors, since the model takes the number of its tokens
    from their shape.
    """
    out = "model.layers.*.self_attn.o_proj"
    whole = Replicate() if styles.get(out) == "rowwise_split_input" else None
    embedding: ParallelStyle = RowwiseParallel(
        input_layouts=Replicate(), output_layouts=TOKENS, use_local_output=False
    )
    if isinstance(model.get_submodule(LLAMA.first[0]), nn.Identity):  # it returns what it gets
        embedding = PrepareModuleInput(
            input_layouts=TOKENS, desired_input_layouts=TOKENS, use_local_output=False
        )
    return {
        "model.embed_tokens": embedding,
        "model.layers.*.self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": TOKENS},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        out: RowwiseParallel(input_layouts=whole, output_layouts=TOKENS, use_local_output=False),
        "model.layers.*.mlp": _gathered(1),
        "model.layers.*.mlp.down_proj": RowwiseParallel(
            output_layouts=TOKENS, use_local_output=False
        ),
        "model.layers.*_layernorm": SequenceParallel(),
        "model.norm": SequenceParallel(),
        "lm_head": _head(world, TOKENS),
    }
