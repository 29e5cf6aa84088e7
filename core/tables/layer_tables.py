"""Tables of a model's layers: experts by router, and linear layers that were converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sysbench.core.record.environment import LinearLayers, linear_layers
from sysbench.core.record.record import Kernels, Record
from sysbench.core.record.steps import RouterLoad
from sysbench.core.spec.choices import Precision, precision_named
from sysbench.core.tables.table import Column, Table, tabulate
from sysbench.core.trace.attention_kernels import product_and_other_ns


def layer_tables(record: Record) -> Iterator[Table]:
    """Yield tables of the model's layers that have rows: experts, and converted ones."""
    if record.kernels and record.kernels.routers:
        yield experts_table(record.kernels.routers)
    if rows := linear_layers(record.environment):
        precision = precision_named(str(record.spec["precision"]))
        yield linear_layers_table(rows, precision, record.kernels)


def experts_table(routers: Sequence[RouterLoad]) -> Table:
    """One row per router of a mixture of experts, the most uneven first."""
    return tabulate(
        sorted(routers, key=lambda load: -load.imbalance),
        Column("name", "module", heading="router", is_flexible=True, about="path of the router"),
        Column("experts", lambda load: len(load.rows_by_expert), about="number of experts"),
        Column("top_k", priority=2, about="experts that each token goes to"),
        Column(
            "busiest", lambda load: max(load.rows_by_expert), about="rows of the busiest expert"
        ),
        Column("mean", format="{:.1f}", priority=1, about="mean rows of an expert"),
        Column(
            "least",
            lambda load: min(load.rows_by_expert),
            priority=4,
            about="rows of the idlest expert",
        ),
        Column(
            "idle",
            lambda load: load.rows_by_expert.count(0),
            priority=3,
            about="experts without a row",
        ),
        Column("imbalance", format="{:.2f}", about="rows of the busiest over the mean"),
        Column(
            "padding_share",
            heading="padding",
            about="padding, if each expert had as many rows as the busiest",
        ),
        name="experts",
        title="Rows of experts by router, most uneven first, in one step after the traced ones",
    )


def linear_layers_table(
    rows: Sequence[LinearLayers], precision: Precision, kernels: Kernels | None = None
) -> Table:
    """Linear layers of a converted model, with their times, and why others were not converted."""
    errors = {each.name: each for each in kernels.product_errors} if kernels else {}
    times = {
        row.name: None if kernels is None else product_and_other_ns(kernels, row.name)
        for row in rows
    }

    def time_of(part: int) -> Callable[[LinearLayers], float | None]:
        return lambda row: None if (pair := times[row.name]) is None else pair[part]

    def error_of(field: str) -> Callable[[LinearLayers], float | None]:
        return lambda row: getattr(errors.get(row.name), field, None)

    others = precision.autocast_only if precision.keeps_weights else "autocast"
    count = sum(row.layers for row in rows)
    converted = sum(row.layers for row in rows if not row.why_not)
    return tabulate(
        rows,
        Column("name", heading="layer", about="path of the module; * is the index of a block"),
        Column("layers", priority=4, about="number of such layers"),
        Column("in_features", heading="inputs", priority=3, about="width of the input"),
        Column("out_features", heading="outputs", priority=3, about="width of the output"),
        Column(
            "precision",
            lambda row: others if row.why_not else precision.format_name,
            about="format of its products; autocast where the layer was not converted",
        ),
        Column(
            "product_ns",
            time_of(0),
            heading="products ms",
            priority=2,
            is_optional=True,
            about="time of all its matrix products in a step",
        ),
        Column(
            "scaling_ns",
            time_of(1),
            heading="scaling ms",
            priority=2,
            is_optional=True,
            about="time of its other kernels in a step: scales, casts and copies of operands",
        ),
        Column(
            "autocast_ns",
            error_of("autocast_ns"),
            heading="autocast ms",
            priority=2,
            is_optional=True,
            about="time of the same products in the dtype of autocast, in a step of their own",
        ),
        *(
            Column(
                f"{name}_error",
                error_of(name),
                unit="share",
                priority=1,
                is_optional=True,
                about=f"relative error of forward products in {words} against float32",
            )
            for name, words in (("float8", "float8"), ("autocast", "the dtype of autocast"))
        ),
        Column("why_not", is_flexible=True, about="why the layer was not converted"),
        name="linear-layers",
        title=f"{converted} of {count} linear layers in {precision.format_name}",
    )
