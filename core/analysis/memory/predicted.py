"""The prediction beside the measurement: row by row, and as closed forms of the resident set.

The write-ups' peaks of one and the same model differ by factors because each had something
else resident. Named so, they can be told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from ...estimate.closed_form import ROWS, Prediction, predict, why_not_predicted
from ...record.memory import LIBRARY_WORKSPACE, ClosedForm, ReconciledRow, prediction_error
from ...record.record import LedgerRow, Memory
from ...spec.spec import RunSpec
from ..trace.scopes import LOSS
from .residents import Residents

MATCH_WITHIN = 0.25
"""Beyond it temporaries and logits make more of the peak than these forms can speak of."""

COPIES = "autocast weight copies"


class Form(NamedTuple):
    """So many parameter sets and saved graphs, and what it means when they are resident."""

    parameters: int
    graphs: int
    meaning: str

    @property
    def has_forward(self) -> bool:
        """Whether it is of a forward or its graph, not of the optimizer's step."""
        return self.graphs > 0 or self.parameters in (1, 3)

    def name(self, has_copies: bool) -> str:
        """``3P + C + A``: C where copies exist."""
        copies = int(has_copies and self.has_forward)
        terms = [(self.parameters, "P"), (copies, "C"), (self.graphs, "A")]
        return " + ".join(f"{count if count > 1 else ''}{what}" for count, what in terms if count)


FORMS = (
    Form(1, 0, "the weights alone: a forward without a graph"),
    Form(1, 1, "weights and one graph: a forward in grad mode"),
    Form(1, 2, "as P + A, with the graph of the forward before still alive"),
    Form(2, 0, "weights and gradients: a backward when it is over"),
    Form(2, 1, "weights, gradients that were not dropped, and one graph"),
    Form(3, 0, "weights and AdamW's two moments, no graph: a forward beside a training state"),
    Form(3, 1, "weights, AdamW's two moments and one graph: a training step after its forward"),
    Form(4, 0, "weights, gradients and two moments: the optimizer's step"),
    Form(4, 1, "as 3P + A, with gradients that were not dropped"),
    Form(5, 0, "as 4P, with one more set for an instant: AdamW with foreach"),
)


class Sizes(NamedTuple):
    """Bytes of one parameter set, of what one graph saves, and of autocast's copies."""

    parameters: int
    graph: int
    copies: int

    def of(self, form: Form) -> int:
        """A form's bytes; the copies are there as long as a forward or its graph is."""
        copies = self.copies if form.has_forward else 0
        return form.parameters * self.parameters + form.graphs * self.graph + copies


def resident_set(memory: Memory, spec: RunSpec) -> tuple[list[ClosedForm], str | None]:
    """Every form in this run's own sizes beside its peak, and the name of the one it is made of.

    That one is, of the forms within `MATCH_WITHIN` of the peak, the one whose parts the ledger
    shows; None where no form is both. A is what the step saved for backward; where it saved
    nothing, what it would in grad mode.
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
    """The form that the peak is, by the errors of all and by what the ledger shows."""

    def distance(form: Form) -> float:
        return abs(form.parameters - parts[0]) + abs(form.graphs - parts[1])

    near = [
        form for form, error in forms.items() if abs(error) <= MATCH_WITHIN and distance(form) <= 1
    ]
    return min(near, key=lambda form: distance(form) + abs(forms[form]), default=None)


def _sizes(memory: Memory, spec: RunSpec) -> Sizes:
    parameters = amount(memory.ledger, "parameters")
    copies = max((amount(rows, COPIES) for rows in memory.columns.values()), default=0)
    graph = memory.modules[0].activation_bytes if memory.modules else 0
    if not graph and why_not_predicted(spec) is None:
        graph = predict(spec.changed(step="forward")).saved_activation_bytes
    return Sizes(parameters, graph, copies)


def _parts(memory: Memory, sizes: Sizes) -> tuple[float, float]:
    """Parameter sets and graphs that the ledger shows at the peak."""
    sets = ("parameters", "gradients", "optimizer state", "temporaries (optimizer)")
    set_bytes = sum(amount(memory.ledger, name) for name in sets)
    saved = amount(memory.ledger, "activations")
    return set_bytes / sizes.parameters, saved / sizes.graph if sizes.graph else 0.0


def amount(rows: Iterable[LedgerRow], name: str) -> int:
    """Bytes of the row of that name; 0 without one."""
    return sum(row.bytes for row in rows if row.name == name)


ADDED = f"added by {LIBRARY_WORKSPACE}"
NOT_PREDICTED = "not predicted"
NOT_MODELLED = "what libraries take within a product goes by the CPU, and no prediction has it"
NO_MATCH = "no closed form comes close: temporaries or logits weigh more here, see the ledger"


def reconciled(memory: Memory, spec: RunSpec, prediction: Prediction) -> Memory:
    """The block with its prediction, the error of every row, and the closed form it matches.

    What the prediction is not of, such as compiled code, gets none, and ``missing`` says why.
    """
    forms, matched = resident_set(memory, spec)
    missing = dict(memory.missing)
    if matched is None:
        missing["resident_set"] = NO_MATCH
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
        reconciliation=[] if reason else _row_by_row(memory, prediction),
        missing=missing,
    )


def _row_by_row(memory: Memory, prediction: Prediction) -> list[ReconciledRow]:
    """Every row that either side has, then the peak.

    A prediction is of tensors, so the rows are of the instant of the most bytes of tensors. What
    libraries take within a product can move the peak to where other tensors are alive, and no
    row would then stand beside its like. By how much it raises the peak is a row of its own.
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
    if not measured:  # of a record that is older than this table
        rows = []
    return [*rows, _row("peak", prediction.peak_bytes, memory.peak_allocated_bytes)]


def _row(name: str, predicted: int, measured: int) -> ReconciledRow:
    return ReconciledRow(name, predicted, measured, prediction_error(predicted, measured))


LOGITS, TEMPORARIES = "logits and loss", "temporaries"


def rows_as_predicted(residents: Residents, instant: int, total: int) -> list[LedgerRow]:
    """What was alive at an instant, in the rows of a prediction, library workspace left out.

    What is in none of them, such as a workspace kept between steps or the rounding of blocks,
    is a last row, so that all sum to ``total``.
    """
    allocations, attribution = residents.allocations, residents.attribution
    amounts: Counter[str] = Counter()
    for index in np.flatnonzero(allocations.alive_at(instant - 1)).tolist():
        if attribution.category[index] != LIBRARY_WORKSPACE:
            name = _predicted_row(attribution.category[index], attribution.module[index])
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
