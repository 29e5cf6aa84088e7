"""The blocks of a model: its own unit of sharding."""

from __future__ import annotations

from torch import nn

LEAST_LIKE = 2
"""Children of one class from which on they are blocks."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's own blocks: children of a list that have a class and parameters in common.

    The outermost ones; a child without modules inside, such as a linear layer, is none.
    """
    blocks: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            blocks += _alike(child)
        else:
            blocks += blocks_of(child)
    if isinstance(model, nn.Sequential) and not blocks:
        blocks = _alike(model)
    return blocks


def _alike(container: nn.Module) -> list[nn.Module]:
    children = list(container.children())
    classes = [type(child) for child in children]
    alike = [
        child
        for child in children
        if classes.count(type(child)) >= LEAST_LIKE
        and next(child.children(), None) is not None
        and next(child.parameters(), None) is not None
    ]
    return alike or [block for child in children for block in blocks_of(child)]
