"""Where each number on the screens comes from: one entry a number, one place for all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A number's origin.

    Attributes:
        title: The number as the screens call it.
        formula: How it is computed.
        clock: Whose time or whose count it is.
        source: The pass or file that it comes from.
        included: What counts and what does not.
    """

    title: str
    formula: str
    clock: str
    source: str
    included: str


EXPLANATIONS: dict[str, Explanation] = {
    "prediction.parameters": Explanation(
        title="Parameters",
        formula="N = L(4d² + 3d·f + 2d) + d + 2V·d, exact",
        clock="a count, no measurement",
        source="the five dimensions of the spec",
        included="embedding, blocks, final norm and the untied head; no buffers",
    ),
    "prediction.flops": Explanation(
        title="FLOPs of a step",
        formula="2 per multiply-add of every matrix product; backward counts twice forward",
        clock="a count, no measurement",
        source="closed form over the spec",
        included="projections, attention scores and values, feed-forward, head; "
        "elementwise work and norms are left out",
    ),
    "prediction.peak": Explanation(
        title="Predicted peak memory",
        formula="the largest sum of what is resident over the phases of a steady step",
        clock="no clock: a sum of tensor sizes",
        source="closed form over the spec, no torch",
        included="tensors only; the CUDA context, libraries and allocator slack are not in it",
    ),
    "timing.step": Explanation(
        title="Step time",
        formula="median of the steady samples; the interval holds the true median in 95 % of runs",
        clock="CUDA events at the boundaries of the step, or the host clock on the CPU",
        source="the timing pass: no profiler, one synchronisation per batch of steps",
        included="everything from the first forward kernel to the end of the optimizer; "
        "warm-up and the first step are not in it",
    ),
    "timing.phases": Explanation(
        title="Phases",
        formula="median of each phase over the same steady steps; medians need not add up exactly",
        clock="the same clock as the step, read at the phase boundaries",
        source="the timing pass",
        included="forward with the loss, backward, optimizer with clipping and zeroing",
    ),
    "timing.first": Explanation(
        title="First step",
        formula="one sample",
        clock="the same clock as the step",
        source="the timing pass, before warm-up",
        included="whatever is paid once: allocation, kernel loading, autotuning, compilation",
    ),
    "timing.throughput": Explanation(
        title="tokens/s, TFLOP/s, MFU",
        formula="batch·context / step; closed-form FLOPs / step; that over the device's peak",
        clock="the median step",
        source="the timing pass and the GPU table",
        included="model FLOPs only; recomputation does not count. "
        "MFU is n/a when the device's peak at this precision is not known",
    ),
    "kernels.row": Explanation(
        title="A kernel row",
        formula="sum over the traced steps divided by their number; share is of the traced step",
        clock="time on the device (operators on the CPU: time on the host)",
        source="the trace pass: torch.profiler around a few steady steps",
        included="time shared with another stream counts once. The traced step is slower than "
        "the bare one; take times from Timing, proportions from here",
    ),
    "kernels.sum": Explanation(
        title="The sum that adds up",
        formula="categories + idle + unattributed = the traced step",
        clock="device time; idle is the time in which nothing ran",
        source="the trace pass",
        included="unattributed is what the trace shows as busy without saying with what",
    ),
    "memory.peak": Explanation(
        title="Peak allocated",
        formula="the highest sum of live bytes in a steady step",
        clock="every allocation and free, in order",
        source="the memory pass: allocator history on CUDA, profiler events on the CPU",
        included="what tensors asked for, rounded by the allocator; reserved adds cached blocks, "
        "driver-used adds the context and libraries",
    ),
    "memory.ledger": Explanation(
        title="Memory ledger",
        formula="rows sum to the peak allocated bytes; the card's rows sum to driver-used",
        clock="the instant of the peak, and the instants named over the columns",
        source="the memory pass",
        included="each live allocation once, by what it was made for",
    ),
    "telemetry.series": Explanation(
        title="Telemetry",
        formula="minimum, median and maximum over the measured part of the timing pass",
        clock="sampled about twice a second by the supervisor, not by the worker",
        source="NVML for devices, the operating system for the host",
        included="GPU busy is the share of time in which any kernel ran, not how full it was",
    ),
    "trust.perturbation": Explanation(
        title="Traced and memory-traced step",
        formula="the step in the instrumented pass over the bare step, minus one",
        clock="the clock of each pass",
        source="trace and memory passes beside the timing pass",
        included="above 10 % the instrument changed what it shows; a finding says so",
    ),
}
