"""Compare prediction and measurement row by row, and find the closed form of the resident set.

Published peaks of one model differ by factors because different tensors were resident. The name of
the closed form distinguishes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sysbench.core.predict.closed_form import ROWS, Prediction, predict, why_not_predicted
from sysbench.core.predict.forward import COPIES, LOGITS, TEMPORARIES
from sysbench.core.record.memory import (
    LIBRARY_WORKSPACE,
    ClosedForm,
    ReconciledRow,
    prediction_error,
)
from sysbench.core.record.record import LedgerRow, Memory
from sysbench.core.spec.spec import RunSpec
from sysbench.core.trace.classify import LOSS

if TYPE_CHECKING:
    from sysbench.core.memory.allocations import AllocationHistory

MATCH_WITHIN = 0.25
"""Largest relative error of a match; beyond it temporaries and logits dominate the peak."""


class Form(NamedTuple):
    """A number of parameter sets and saved graphs, and the state of the step that has them."""

    parameters: int
    graphs: int
    meaning: str

    @property
    def has_forward(self) -> bool:
        """True for a forward or its graph, false for the optimizer's step."""
        return self.graphs > 0 or self.parameters in (1, 3)

    def name(self, has_copies: bool) -> str:
        """``3P + C + A``; C is for autocast's copies."""
        copies = int(has_copies and self.has_forward)
        terms = [(self.parameters, "P"), (copies, "C"), (self.graphs, "A")]
        return " + ".join(f"{count if count > 1 else ''}{what}" for count, what in terms if count)


FORMS = (
    Form(1, 0, "the weights alone: a forward without a graph"),
    Form(1, 1, "weights and one graph: a forward in grad mode"),
    Form(1, 2, "as P + A, with the graph of the forward before still alive"),
    Form(2, 0, "weights and gradients: a backward when it is over"),
    Form(2, 1, "weights, gradients that were not dropped, and one graph"),
    Form(3, 0, "weights and AdamW's two moments, no graph: a forward with a training state"),
    Form(3, 1, "weights, AdamW's two moments and one graph: a training step after its forward"),
    Form(4, 0, "weights, gradients and two moments: the optimizer's step"),
    Form(4, 1, "as 3P + A, with gradients that were not dropped"),
    Form(5, 0, "as 4P, with one more set temporarily: AdamW with foreach"),
)


class PredictedSizes(NamedTuple):
    """Bytes of one parameter set, of one saved graph, and of autocast's copies."""

    parameters: int
    graph: int
    copies: int

    def of(self, form: Form) -> int:
        """Bytes of a form; autocast's copies live as long as a forward or its graph."""
        copies = self.copies if form.has_forward else 0
        return form.parameters * self.parameters + form.graphs * self.graph + copies


def resident_set(memory: Memory, spec: RunSpec) -> tuple[list[ClosedForm], str | None]:
    """Every form in this run's sizes with its error, and the name of the form that matches.

    The match is within `MATCH_WITHIN` of the peak and has the parts that the ledger shows; None if
    no form has both. A is the bytes saved for backward, or the predicted ones of a step that saved
    nothing.
    """
    sizes, peak = _sizes(memory, spec), memory.peak_allocated_bytes
    if not sizes.parameters or not peak:
        return [], None
    possible = [form for form in FORMS if sizes.graph or not form.graphs]
    forms = {form: sizes.of(form) / peak - 1 for form in possible}
    match = _match(forms, _parts(memory, sizes))
    has_copies = sizes.copies > 0
    return [
        ClosedForm(form.name(has_copies), sizes.of(form), error, form.meaning)
        for form, error in forms.items()
    ], match and match.name(has_copies)


def _match(forms: Mapping[Form, float], parts: tuple[float, float]) -> Form | None:
    def distance(form: Form) -> float:
        return abs(form.parameters - parts[0]) + abs(form.graphs - parts[1])

    near = [
        form for form, error in forms.items() if abs(error) <= MATCH_WITHIN and distance(form) <= 1
    ]
    return min(near, key=lambda form: distance(form) + abs(forms[form]), default=None)


def _sizes(memory: Memory, spec: RunSpec) -> PredictedSizes:
    parameters = predicted_amount(memory.ledger, "parameters")
    copies = max(_column_amounts(memory, COPIES), default=0)
    graph = memory.modules[0].activation_bytes if memory.modules else 0
    if spec.accumulation > 1 or spec.optimizer == "custom":  # one graph of several in a step
        graph = min(graph, max(_column_amounts(memory, "activations"), default=0))
    if not graph and why_not_predicted(spec) is None:
        graph = predict(spec.changed(step="forward")).saved_activation_bytes
    return PredictedSizes(parameters, graph, copies)


def _column_amounts(memory: Memory, name: str) -> list[int]:
    return [predicted_amount(rows, name) for rows in memory.columns.values()]


def _parts(memory: Memory, sizes: PredictedSizes) -> tuple[float, float]:
    sets = ("parameters", "gradients", "optimizer state", "temporaries (optimizer)")
    set_bytes = sum(predicted_amount(memory.ledger, name) for name in sets)
    saved = predicted_amount(memory.ledger, "activations")
    return set_bytes / sizes.parameters, saved / sizes.graph if sizes.graph else 0.0


def predicted_amount(rows: Iterable[LedgerRow], name: str) -> int:
    return sum(row.bytes for row in rows if row.name == name)


ADDED = f"added by {LIBRARY_WORKSPACE}"
NOT_PREDICTED = "not predicted"
NOT_MODELLED = "the workspace of libraries within a product depends on the CPU and is not predicted"
NO_MATCH = "no closed form matches: temporaries or logits dominate the peak, see the ledger"


def reconcile(memory: Memory, spec: RunSpec, prediction: Prediction) -> Memory:
    """Add the prediction, the error of every row, and the matching closed form.

    Runs that the prediction does not cover, such as compiled code, get the reason in ``missing``.
    """
    forms, matched = resident_set(memory, spec)
    missing = dict(memory.missing)
    if matched is None:
        missing["resident_set"] = NO_MATCH
    if spec.needs_dry_run or spec.ranks > 1:  # the worker did the dry run, if it is supported
        return msgspec.structs.replace(
            memory, closed_forms=forms, resident_set=matched, missing=missing
        )
    reason = why_not_predicted(spec)
    if reason is not None:
        missing |= dict.fromkeys(("predicted_peak_bytes", "reconciliation"), reason)
    elif memory.library_workspace_bytes:
        missing[f"reconciliation.{ADDED}"] = NOT_MODELLED
    return msgspec.structs.replace(
        memory,
        closed_forms=forms,
        resident_set=matched,
        predicted_peak_bytes=None if reason else prediction.peak_bytes,
        reconciliation=[] if reason else row_by_row(memory, prediction),
        missing=missing,
    )


def row_by_row(memory: Memory, prediction: Prediction) -> list[ReconciledRow]:
    """Every row of the prediction or the measurement, then the peak.

    Predictions cover tensors, so the rows are of the instant with the most bytes of tensors.
    Library workspace can move the peak to an instant with other tensors alive; the bytes it adds to
    the peak are a separate row.
    """
    predicted = {row.name: row.bytes for row in prediction.ledger}
    measured = {row.name: row.bytes for row in memory.peak_as_predicted}
    rows = [
        _row(name, predicted.get(name, 0), measured.get(name, 0))
        for name in (*ROWS, NOT_PREDICTED)
        if name in predicted or name in measured
    ]
    if memory.library_workspace_bytes:
        rows.append(_row(ADDED, 0, memory.library_workspace_bytes))
    if not measured:  # the record is older than this table
        rows = []
    return [*rows, _row("peak", prediction.peak_bytes, memory.peak_allocated_bytes)]


def _row(name: str, predicted: int, measured: int) -> ReconciledRow:
    return ReconciledRow(name, predicted, measured, prediction_error(predicted, measured))


def rows_as_predicted(allocations: AllocationHistory, instant: int, total: int) -> list[LedgerRow]:
    """The live bytes of an instant by the rows of a prediction, without library workspace.

    Bytes outside these rows, such as workspaces kept between steps or rounding, form the last row,
    so that all rows sum to ``total``.
    """
    amounts: Counter[str] = Counter()
    for index in allocations.alive_at(instant).tolist():
        if allocations.category[index] != LIBRARY_WORKSPACE:
            name = _predicted_row(allocations.category[index], allocations.module[index])
            amounts[name] += int(allocations.bytes[index])
    amounts[NOT_PREDICTED] += total - amounts.total()
    return [LedgerRow(name, amounts[name]) for name in (*ROWS, NOT_PREDICTED) if amounts[name]]


def _predicted_row(category: str, module: str) -> str:
    is_passing = category.startswith(TEMPORARIES) or category == "activations"
    if category == "outputs" or (is_passing and module == LOSS):
        return LOGITS
    if category.startswith(TEMPORARIES):
        return TEMPORARIES
    return category if category in ROWS else NOT_PREDICTED
