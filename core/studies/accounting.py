"""What attention keeps in memory, by arithmetic: the account of the smallest cell that went OOM.

Letters: B batch, S context, d d_model, w bytes of one number. Every (B, S, S) matrix that is
written out counts whole, masked half included.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..record.record import Record
from ..spec.spec import RunSpec
from ..tables.table import Row, Table

MATRICES_AT_ONCE = 2
"""Of B S S in forward, at the least: softmax reads one and writes another."""

_WRITTEN_OUT = ("naive", "sdpa-math")


def number_bytes(spec: RunSpec) -> int:
    """Bytes of one number of the scores."""
    return 2 if spec.precision in ("bf16", "fp16", "bf16-pure") else 4


def score_bytes(spec: RunSpec) -> int:
    """One matrix of scores: B x heads x S x S x w."""
    return spec.batch * spec.heads * spec.context**2 * number_bytes(spec)


def score_matrices_bytes(spec: RunSpec) -> int:
    """The least that one attention step holds at its worst moment."""
    tensors = 4 * spec.tokens_per_step * spec.d_model * number_bytes(spec)
    written_out = spec.attention in _WRITTEN_OUT
    return tensors + (MATRICES_AT_ONCE * score_bytes(spec) if written_out else 0)


def accounting_table(record: Record, others: Sequence[Record] = ()) -> Table:
    """One cell's tensors by name, formula and bytes; without rows for one that fitted."""
    rows: list[Row] = []
    failed = next((one for one in record.passes if one.oom), None)
    if failed is not None and failed.oom is not None:
        spec = RunSpec(**record.spec)
        width = number_bytes(spec)
        shape = f"{spec.batch} × {spec.context} × {spec.d_model} × {width}"
        tensor = spec.tokens_per_step * spec.d_model * width
        scores = f"{spec.batch * spec.heads} × {spec.context}² × {width}"
        rows = [
            ("q, k, v and the output, each", f"B S d w = {shape}", tensor),
            ("one matrix of scores", f"B h S² w = {scores}", score_bytes(spec)),
            ("asked for when it failed", failed.oom.phase, failed.oom.requested_bytes),
            ("allocated then", "", failed.oom.allocated_bytes),
            ("free then", "", failed.oom.free_bytes),
        ]
    return Table(
        name="accounting",
        title="Account of a cell that ran out of memory",
        columns=("what", "formula", "bytes"),
        rows=tuple(rows),
    )
