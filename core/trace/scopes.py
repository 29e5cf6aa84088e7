"""Phase, module and operator of each instant of a host thread, and of the work of devices.

A launch in forward belongs to the module whose range encloses it. A backward node has the sequence
number of the forward operator that created it, and belongs to that operator's module. Gradient
accumulation has no such number: its module is `GRAD_ACCUMULATE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sysbench.core.trace.classify import GRAD_ACCUMULATE, LOSS, WHOLE_MODEL, is_communication
from sysbench.core.trace.intervals import Cover, Times, open_at
from sysbench.core.trace.kernel_names import is_migration
from sysbench.core.trace.markers import is_served_step
from sysbench.core.trace.trace_events import (
    MODULE_PREFIX,
    NONE,
    DeviceEvents,
    EventColumns,
    Flags,
    HostEvents,
    Index,
    Kind,
    Numbers,
    Trace,
    by_thread,
    follow_flow,
    names_fit,
    nearest,
    occurring,
    parents,
    self_times,
)

PART_RANGE = "part:"
"""Prefix of a range in generated code. A graph serves every layer, so its path starts at the
compiled module; the ranges around the call, or the forward node, give the rest."""


def with_parts(
    names: list[str], events: HostEvents, parent: Index, modules: list[str], module: Index
) -> Index:
    """Assign the module of a part's range to its events; appends to ``modules``."""
    is_part = np.array([name.startswith(PART_RANGE) for name in names], dtype=np.bool_)
    if not is_part.any():
        return module
    part = follow_flow(nearest(is_part[events.name], parent), events.name)
    inside = np.flatnonzero(part != NONE)
    # Paths are texts: join them once per pair of module and part, not once per event.
    pairs, which = np.unique(np.stack((module[inside], part[inside])), axis=1, return_inverse=True)
    number_of = {path: index for index, path in enumerate(modules)}
    numbers = []
    for outer, inner in pairs.T.tolist():
        around = modules[outer] if outer != NONE else WHOLE_MODEL
        part_path = names[inner].removeprefix(PART_RANGE)
        path = part_path if around == WHOLE_MODEL else f"{around}.{part_path}"
        numbers.append(number_of.setdefault(path, len(modules)))
        if numbers[-1] == len(modules):
            modules.append(path)
    result = module.copy()
    # The inverse has two axes in numpy 2.0 only.
    result[inside] = np.array(numbers, dtype=np.int64)[which.reshape(-1)]
    return result


MODULE_RANGE = "mod:"
PHASE_RANGE = "phase:"
STEPS_RANGE = "sysbench:steps:"
ENGINE = "autograd::engine::evaluate_function: "

NODE = re.compile(r".*\wBackwards?\d*|(torch::autograd::)?AccumulateGrad", re.DOTALL)
"""Class name of an autograd node, such as ``AddmmBackward0``."""

UNKNOWN_PHASE = "unknown"
OTHER_PHASE = "other"
DATA_LOADING = "data loading"
RANGE_PHASES = ("forward", "backward", "optimizer", "zero-grad", LOSS, DATA_LOADING)
"""Phases that user ranges may be named after."""
FORWARD = RANGE_PHASES.index("forward")
PHASE_WORD = re.compile(
    r"(?:#+ ?)?(?:(?:model|train|distributeddataparallel)[ _.])?"
    r"(forward|backward|optimizer|zero[_ ]grad|loss|data[_ ]?load(?:ing|er)?)"
    r"(?:[ _](?:pass|step))?(?: ?#+)?",
    re.IGNORECASE,
)
LOADS_DATA = "enumerate(DataLoader)"
"""Prefix of torch's data loader ranges around the next batch."""

MAX_PATH_LENGTH = 500
"""Characters of a module path; limit against hostile traces."""
RANGES = (MODULE_RANGE, PHASE_RANGE, STEPS_RANGE, PART_RANGE)
WRAPPERS = ("## Call CompiledFxGraph", "Torch-Compiled Region", "CompiledFunction")
"""Operators around a whole compiled graph; the inner operator is more specific."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRanges:
    """Phase ranges of the workload in time order; ``phase`` is an index of ``names``."""

    names: list[str]
    phase: Index
    start: Times
    end: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """Host events in `by_thread` order with phase, module and (outermost) operator.

    They are indices of ``phases``, ``modules`` and the trace's names, or -1.
    """

    events: HostEvents
    parent: Index
    names: Names
    ranges: PhaseRanges
    phases: list[str]
    phase: Index
    modules: list[str]
    module: Index
    operator: Index


class Names:
    def __init__(self, names: list[str]) -> None:
        nodes = {name.removeprefix(ENGINE) for name in names if name.startswith(ENGINE)}
        self.is_range = _flags(name.startswith(RANGES) for name in names)
        self.is_phase = _flags(name.startswith(PHASE_RANGE) for name in names)
        self.is_module = _flags(name.startswith((MODULE_RANGE, MODULE_PREFIX)) for name in names)
        self.is_wrapper = _flags(name.startswith(WRAPPERS) for name in names)
        self.is_engine = _flags(name.startswith(ENGINE) for name in names)
        # Before torch 1.10 the engine recorded no range around a node: the node is what there is.
        self.opens_backward = _flags(
            not name.startswith(ENGINE) and NODE.fullmatch(name) is not None for name in names
        )
        self.is_node = _flags(name in nodes for name in names) | self.opens_backward
        self.accumulates = _flags(
            (name.startswith(ENGINE) and name.endswith("AccumulateGrad"))
            or name.endswith("autograd::AccumulateGrad")
            for name in names
        )
        self.steps_optimizer = _flags(name.startswith("Optimizer.step") for name in names)
        self.is_graph_launch = _flags(name.endswith("GraphLaunch") for name in names)
        self.zeroes_grads = _flags(name.startswith("Optimizer.zero_grad") for name in names)
        self.is_served_step = _flags(is_served_step(name) for name in names)
        range_phases = [_phase_of_range(name) for name in names]
        self.names_phase = _flags(phase is not None for phase in range_phases)
        self.range_phase = np.array(
            [RANGE_PHASES.index(phase) if phase else 0 for phase in range_phases], dtype=np.int64
        )


def host_scopes(trace: Trace) -> Scopes:
    events = by_thread(trace.host)
    parent = parents(events)
    names = Names(trace.names)
    engine = _engine(events, parent, names)
    operator = _operators(events, parent, names)
    ranges = _phase_ranges(trace, names)
    if ranges.names:
        phases, phase = _phases_by_range(events, ranges)
    else:
        around = nearest(names.is_module[events.name], parent)
        phases, phase = _phases_by_scope(events, parent, names, engine, operator, around)
    modules, module = _modules(trace, events, parent, names)
    if LOSS in phases:
        modules.append(LOSS)
        in_loss = (phase == phases.index(LOSS)) & (module == NONE)
        module = np.where(in_loss, len(modules) - 1, module)
    module = _backward_modules(events, names, engine, modules, module)
    module = with_parts(trace.names, events, parent, modules, module)
    return Scopes(
        events=events,
        parent=parent,
        names=names,
        ranges=ranges,
        phases=phases,
        phase=phase,
        modules=modules,
        module=module,
        operator=operator,
    )


def _engine(events: HostEvents, parent: Index, names: Names) -> Index:
    """Return the autograd engine call around each event, or -1.

    An operator named like a backward node outside such calls is one itself.
    """
    is_engine = names.is_engine[events.name]
    engine = nearest(is_engine, parent)
    opens = names.opens_backward[events.name] & (events.kind == Kind.OPERATOR) & (engine == NONE)
    return nearest(is_engine | opens, parent) if opens.any() else engine


def _phase_ranges(trace: Trace, names: Names) -> PhaseRanges:
    events = trace.host.take(names.is_phase[trace.host.name])
    events = events.take(np.argsort(events.start, kind="stable"))
    used, phase = np.unique(events.name, return_inverse=True)
    return PhaseRanges(
        names=[trace.names[index].removeprefix(PHASE_RANGE) for index in used],
        phase=phase,
        start=events.start,
        end=events.end,
    )


def outermost_operators(events: HostEvents, parent: Index, names: Names) -> Index:
    """Return the index of the outermost operator around each event, or -1."""
    # Ranges, wrappers and nodes are recorded as operators but contain the operators that count.
    scaffold = names.is_range | names.is_wrapper | names.is_engine | names.is_node
    is_operator = (events.kind == Kind.OPERATOR) & ~scaffold[events.name]
    above = follow_flow(parent, nearest(is_operator, parent))
    return nearest(is_operator & (above == NONE), parent)


def _operators(events: HostEvents, parent: Index, names: Names) -> Index:
    outermost = follow_flow(outermost_operators(events, parent, names), events.name)
    node = follow_flow(nearest(names.is_node[events.name], parent), events.name)
    return np.where(outermost == NONE, node, outermost)


def _phases_by_range(events: HostEvents, ranges: PhaseRanges) -> tuple[list[str], Index]:
    """Return phases by time alone: threads of the autograd engine have no ranges."""
    index = open_at(ranges.start, ranges.end, events.start)  # phase ranges do not overlap
    phase = follow_flow(index, ranges.phase, len(ranges.names))
    return [*ranges.names, OTHER_PHASE, UNKNOWN_PHASE], phase


def _phases_by_scope(
    events: HostEvents, parent: Index, names: Names, engine: Index, operator: Index, module: Index
) -> tuple[list[str], Index]:
    """Return phases of an imported trace by the ranges and operators around an event.

    Work inside a module or a step of a serving engine is forward. An operator outside all modules
    has no phase, unless the file has no modules and no range named forward: then everything in no
    other phase is forward.
    """
    phases = ["forward", "backward", "optimizer", "zero-grad", OTHER_PHASE, UNKNOWN_PHASE]
    optimizer = _is_inside(names.steps_optimizer, events, parent)
    zeroing = _is_inside(names.zeroes_grads, events, parent)
    is_work = (operator >= 0) | names.is_graph_launch[events.name]
    served = (nearest(names.is_served_step[events.name], parent) >= 0) & is_work
    phase_range = nearest(names.names_phase[events.name], parent)
    range_phase = follow_flow(phase_range, names.range_phase[events.name], 0)
    in_range = phase_range != NONE
    has_places = bool((module != NONE).any() or (in_range & (range_phase == FORWARD)).any())
    by_operator = (operator >= 0) & (not has_places)
    # The first that holds decides: what the engine runs is backward, whatever range is around it.
    conditions = [engine >= 0, optimizer, zeroing, in_range, module >= 0, served, by_operator]
    phases += [name for name in RANGE_PHASES if name not in phases]
    numbers = np.array([phases.index(name) for name in RANGE_PHASES])
    choice = np.select(
        conditions, [1, 2, 3, numbers[range_phase], 0, 0, 0], phases.index(OTHER_PHASE)
    )
    # A phase that nothing is in must not make a module: `host_scopes` makes one for the loss.
    used = set(occurring(choice).tolist())
    return _without_unused(phases, choice.astype(np.int64), used)


def _is_inside(wanted: Flags, events: HostEvents, parent: Index) -> Flags:
    """Return whether a range of these names is open when an event begins.

    A step that begins at the end of an optimizer's range lies in it, but what the step runs later
    does not.
    """
    around = nearest(wanted[events.name], parent)
    inside: Flags = (around != NONE) & (events.end[around] > events.start)
    return inside


def _without_unused(phases: list[str], phase: Index, used: set[int]) -> tuple[list[str], Index]:
    if LOSS not in phases or phases.index(LOSS) in used:
        return phases, phase
    gone = phases.index(LOSS)
    return [name for name in phases if name != LOSS], np.where(phase > gone, phase - 1, phase)


def _modules(
    trace: Trace, events: HostEvents, parent: Index, names: Names
) -> tuple[list[str], Index]:
    """Return module paths, and the module around each event.

    Ranges of the trace pass contain the whole path. The profiler's contain class and number; their
    path is joined from all modules around them.
    """
    is_module = names.is_module[events.name]
    around = nearest(is_module, parent)
    outside = follow_flow(parent, around)
    path_at = np.full(len(events) + 1, NONE)  # index -1 reads the last
    numbers = Numbers()
    paths: list[str] = []
    for index in np.flatnonzero(is_module).tolist():  # an outer module before those inside it
        name = trace.names[events.name[index]]
        if name.startswith(MODULE_RANGE):
            path = name.removeprefix(MODULE_RANGE)
        else:
            above = path_at[outside[index]]
            prefix = f"{paths[above]}." if above >= 0 else ""
            path = (prefix + name.removeprefix(MODULE_PREFIX))[-MAX_PATH_LENGTH:]
        path_at[index] = numbers[path]
        if len(numbers) > len(paths):
            paths.append(path)
    return paths, path_at[around]


def _backward_modules(
    events: HostEvents, names: Names, engine: Index, modules: list[str], module: Index
) -> Index:
    """Assign events in a backward node to the module of the operator that created it."""
    forward = np.flatnonzero((events.sequence >= 0) & (engine == NONE))
    # The last operator with a number created the node: those before it recorded the number
    # that would come next, and created none. Reversed, unique's first is that last one.
    forward = forward[::-1]
    numbers, last = np.unique(events.sequence[forward], return_index=True)
    # For every event the place of its number among the forward's, if it is there at all.
    position = np.searchsorted(numbers, events.sequence)
    position[position == len(numbers)] = NONE  # beyond the largest number
    matches = follow_flow(position, numbers) == events.sequence
    module_of_node = np.where(
        matches, follow_flow(position, follow_flow(forward[last], module)), NONE
    )
    # A write to a part of a tensor makes a node, `CopySlices`, that no operator has recorded, and
    # that runs the operator's own node. Reversed, the first within a call is set last.
    within = np.flatnonzero((module_of_node != NONE) & (engine != NONE))[::-1]
    within = within[~matches[engine[within]]]
    module_of_node[engine[within]] = module_of_node[within]
    modules.append(GRAD_ACCUMULATE)
    module_of_node[names.accumulates[events.name]] = len(modules) - 1
    return np.where(module == NONE, follow_flow(engine, module_of_node), module)


def _phase_of_range(name: str) -> str | None:
    if name.startswith(LOADS_DATA):
        return DATA_LOADING
    match = PHASE_WORD.fullmatch(name)
    if match is None:
        return None
    word = match[1].lower()
    return DATA_LOADING if word.startswith("data") else word.replace("_", "-").replace(" ", "-")


def _flags(values: Iterable[bool]) -> NDArray[np.bool_]:
    return np.array(list(values), dtype=np.bool_)


def loads_data(name: str) -> bool:
    """Return whether a range is of torch's data loader, or named after loading data."""
    return _phase_of_range(name) == DATA_LOADING


def loader_cover(trace: Trace) -> Cover:
    """Return the time in which a range that loads data is open."""
    host = trace.host
    is_loader = names_fit(trace.names, host.name, loads_data) & (host.kind != Kind.RUNTIME)
    return Cover(host.start[is_loader], host.end[is_loader])


ENGINE_NAME = "autograd engine"
COMPUTE, COMMUNICATION, MEMORY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities(EventColumns):
    """Pieces of work as columns of equal length, unordered.

    ``name``, ``operator``, ``phase`` and ``module`` are indices. ``rank`` decides which of several
    concurrent pieces an instant counts for: computation, then communication, then copies. ``call``
    numbers the call that contains a piece. ``launched`` and ``returned`` are the begin and end of
    the launch call on the host, -1 if not recorded. ``in_graph`` marks pieces launched by a CUDA
    graph. ``collective`` and ``bytes`` are as in `DeviceEvents`. ``lane`` is the stream of the
    device (-1 if unknown) or the thread of the host.
    """

    name: Index
    rank: Index
    call: Index
    phase: Index
    module: Index
    operator: Index
    launched: Times
    returned: Times
    in_graph: NDArray[np.bool_]
    collective: Index
    bytes: Index
    lane: Index

    @property
    def linked(self) -> NDArray[np.bool_]:
        return np.asarray(self.launched != NONE)

    def clipped(self, low: int, high: int) -> Activities:
        start, end = np.clip(self.start, low, high), np.clip(self.end, low, high)
        # A piece without length covers no time but is a call: it stays unless clipping moved it.
        inside = np.flatnonzero((end > start) | ((self.start == self.end) & (start == self.start)))
        return replace(self.take(inside), start=start[inside], end=end[inside])


def device_activities(trace: Trace, scopes: Scopes, device: int) -> Activities:
    """Return the work of one device; phase, module and operator are those of the launching call."""
    events = trace.device
    events = events.take(events.device == device)
    launch = launches_of(events, scopes.events)
    # An access to a page starts its migration, not a call: it is its own launch.
    own = (launch == NONE) & names_fit(trace.names, events.name, is_migration)
    unknown = scopes.phases.index(UNKNOWN_PHASE)
    is_graph_launch = scopes.names.is_graph_launch[scopes.events.name]
    return Activities(
        name=events.name,
        start=events.start,
        end=events.end,
        rank=_ranks(trace, events),
        call=np.arange(len(events)),
        phase=follow_flow(launch, scopes.phase, unknown),
        module=follow_flow(launch, scopes.module),
        operator=follow_flow(launch, scopes.operator),
        launched=np.where(own, events.start, follow_flow(launch, scopes.events.start)),
        returned=np.where(own, events.start, follow_flow(launch, scopes.events.end)),
        in_graph=follow_flow(launch, is_graph_launch.astype(np.int64), 0) == 1,
        collective=events.collective,
        bytes=events.bytes,
        lane=events.stream,
    )


def launches_of(events: DeviceEvents, host: HostEvents) -> Index:
    """Return the index of each event's runtime call by correlation id, or -1."""
    # Id 0 links nothing, like -1.
    calls = np.flatnonzero((host.kind == Kind.RUNTIME) & (host.correlation > 0))
    ids, first = np.unique(host.correlation[calls], return_index=True)
    if not len(ids):
        return np.full(len(events), NONE)
    # An id beyond the largest would be found past the end; the comparison rejects it.
    position = np.minimum(np.searchsorted(ids, events.correlation), len(ids) - 1)
    return np.where(ids[position] == events.correlation, calls[first[position]], NONE)


def host_activities(trace: Trace, scopes: Scopes) -> tuple[list[str], Activities]:
    """Return the operators of all host threads as pieces of work, without inner operators.

    A call that consists of inner operators only is a piece of length 0, so that it is counted. The
    names are the trace's, and one for the work of the autograd engine around each node.
    """
    names = scopes.names
    owner, start, end = self_times(scopes.events, scopes.parent)
    is_operator = (scopes.events.kind == Kind.OPERATOR) & ~names.is_range[scopes.events.name]
    owned = is_operator[owner]
    covered = is_operator.copy()
    covered[owner] = False
    inner = np.flatnonzero(covered)
    begin = scopes.events.start[inner]
    owner = np.r_[owner[owned], inner]
    start, end = np.r_[start[owned], begin], np.r_[end[owned], begin]
    name = scopes.events.name[owner]
    return [*trace.names, ENGINE_NAME], Activities(
        # The engine's events are named by their node: one added name stands for all of them.
        name=np.where(names.is_engine[name], len(trace.names), name),
        start=start,
        end=end,
        rank=np.zeros(len(owner), dtype=np.int64),
        call=owner,
        phase=scopes.phase[owner],
        module=scopes.module[owner],
        operator=scopes.operator[owner],
        launched=start,  # an operator is its own launch, so every piece is linked
        returned=end,
        in_graph=np.zeros(len(owner), dtype=bool),
        collective=np.full(len(owner), NONE),
        bytes=np.full(len(owner), NONE),
        lane=scopes.events.thread[owner],
    )


def _ranks(trace: Trace, events: DeviceEvents) -> Index:
    communicates = names_fit(trace.names, events.name, is_communication)
    kernel_rank = np.where(communicates, COMMUNICATION, COMPUTE)
    return np.where(events.kind == Kind.KERNEL, kernel_rank, MEMORY)
