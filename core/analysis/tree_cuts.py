"""Parts of a tree: so deep, so large, only what matches. What is cut is summed, not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import fsum

import msgspec

from .kernels.tree import STILL, TreeNode, known_sum


def walk(node: TreeNode, depth: int = 0) -> Iterator[tuple[int, TreeNode]]:
    """Every node with its depth, parents before children."""
    yield depth, node
    for child in node.children:
        yield from walk(child, depth + 1)


def to_depth(node: TreeNode, depth: int) -> TreeNode:
    """Only so many levels below the node."""
    below = [to_depth(child, depth - 1) for child in node.children] if depth > 0 else []
    return msgspec.structs.replace(node, children=below)


def from_share(node: TreeNode, least: float) -> TreeNode:
    """Children under this share of the step as one row; what did not run always stays."""
    children = [from_share(child, least) for child in node.children]
    ran = [child for child in children if child.kind not in STILL]
    still = [child for child in children if child.kind in STILL]
    large = [child for child in ran if child.share >= least]
    small = [child for child in ran if child.share < least]
    rest = [_rest(node, small)] if len(small) > 1 else small
    return msgspec.structs.replace(node, children=[*large, *rest, *still])


def matching(node: TreeNode, fits: Callable[[str], object]) -> TreeNode | None:
    """The nodes whose path fits, whole, and those above them; None if there is none.

    Those above keep their own figures: they are more than the sum of what is left below.
    """
    if fits(node.path):
        return node
    below = [kept for child in node.children if (kept := matching(child, fits)) is not None]
    return msgspec.structs.replace(node, children=below) if below else None


def _rest(parent: TreeNode, small: Sequence[TreeNode]) -> TreeNode:
    ns = fsum(child.inclusive_ns for child in small)
    phases = dict.fromkeys(phase for child in small for phase in child.phases_ns)
    return TreeNode(
        kind="rest",
        name=f"({len(small)} more)",
        path=f"{parent.path}/({len(small)} more)",
        inclusive_ns=ns,
        exclusive_ns=ns,
        share=fsum(child.share for child in small),
        calls=fsum(child.calls or 0.0 for child in small),
        flops=known_sum(child.flops for child in small),
        moved_bytes=known_sum(child.moved_bytes for child in small),
        phases_ns={
            phase: fsum(child.phases_ns.get(phase, 0.0) for child in small) for phase in phases
        },
    )
