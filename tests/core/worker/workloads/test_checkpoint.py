"""Recomputed segments: the same step, with less kept."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from sysbench.core.spec.models import Dimensions
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.make_workload import make_workload
from sysbench.core.worker.workloads.transformer import Transformer

SIZE = Dimensions(vocab=32, d_model=16, d_ff=24, layers=5, heads=2)
BATCH, CONTEXT = 2, 9


def run_step(checkpoint: int, *, autocast: bool = False) -> tuple[Tensor, list[Tensor], int]:
    """Loss, gradients, and the bytes that forward saved."""
    torch.manual_seed(3)
    model = Transformer(SIZE, CONTEXT, "naive", checkpoint=checkpoint)
    tokens = torch.randint(SIZE.vocab, (BATCH, CONTEXT))
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        count = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    torch.autograd.backward(loss)
    gradients = [parameter.grad for parameter in model.parameters()]
    return loss, [gradient for gradient in gradients if gradient is not None], count


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("checkpoint", [1, 2, 5])
def test_loss_and_gradients_are_bit_for_bit_those_of_a_plain_step(
    checkpoint: int, autocast: bool
) -> None:
    loss, gradients, kept = run_step(checkpoint, autocast=autocast)
    plain_loss, plain_gradients, all_kept = run_step(0, autocast=autocast)
    assert torch.equal(loss, plain_loss)
    assert len(gradients) == len(plain_gradients)
    for one, other in zip(gradients, plain_gradients, strict=True):
        assert torch.equal(one, other)
    assert kept < all_kept / 2


def test_without_a_graph_there_is_nothing_to_recompute() -> None:
    torch.manual_seed(3)
    model = Transformer(SIZE, CONTEXT, "sdpa", checkpoint=2)
    tokens = torch.randint(SIZE.vocab, (BATCH, CONTEXT))
    with torch.inference_mode():
        logits = model(tokens)
    model.checkpoint = 0
    assert torch.equal(logits, model(tokens))


def test_blocks_are_recomputed_by_the_attention_kernel_that_was_asked_for() -> None:
    # Left to itself torch would choose another one on the CPU, which keeps other tensors.
    sizes = msgspec.structs.asdict(SIZE) | {"batch": BATCH, "context": CONTEXT}
    plain = RunSpec(**sizes, device="cpu", attention="sdpa-math", step="forward+backward")
    losses = []
    for spec in (plain, plain.changed(checkpoint=2)):
        torch.manual_seed(3)
        workload = make_workload(spec)
        workload.step(lambda phase: None)
        losses.append(workload.loss_value())
    assert losses[0] == losses[1]


def test_it_compiles_as_one_graph() -> None:
    # A segment of two blocks and one of the last alone: what is compiled takes time by its length.
    model = Transformer(msgspec.structs.replace(SIZE, layers=3), CONTEXT, "sdpa", checkpoint=2)
    tokens = torch.randint(SIZE.vocab, (BATCH, CONTEXT))
    expected = model(tokens)
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(tokens), expected)
