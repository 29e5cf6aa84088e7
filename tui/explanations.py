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
    "kernels.roof": Explanation(
        title="Of the roof",
        formula="max(FLOPs / peak, bytes / bandwidth) / time; FLOPs of matrix products only",
        clock="the rows' own clock",
        source="shapes noted in one more step after the traced ones; the peak from the table of "
        "GPUs or --peak, the bandwidth from the device",
        included="bytes are every input and output of an operator once: what stays in a cache "
        "can be faster than the roof. Attention counts in full, its masked half too",
    ),
    "kernels.tree": Explanation(
        title="The tree",
        formula="a node is the sum of its rows; own leaves out the modules inside it; the leaves "
        "with idle and unattributed add up to the traced step",
        clock="the rows' own clock, time shared with another stream once",
        source="the trace pass's rows layer by layer (kernels.json); bytes from the memory pass",
        included="layers with the same modules and operators are one node with least, median "
        "and most of one layer; one farther than 10 % and five scaled deviations from the "
        "median stands alone",
    ),
    "trust.coverage": Explanation(
        title="Explained",
        formula="1 - (time of kernels whose launch was not recorded + unattributed) / step",
        clock="counts of launches and kernels over all traced steps",
        source="the trace pass",
        included="under 98 % a warning stands above the tables: shares are of what was seen",
    ),
    "compile.extent": Explanation(
        title="Compiled",
        formula="whole: every function became a graph, without breaks or refusals; in part: "
        "something between or beside the graphs ran eagerly; nothing: no graph was made",
        clock="a count, no measurement",
        source="dynamo's own records in the timing pass",
        included="graph breaks, the recompile limit, errors that were suppressed, variables that "
        "disable torch.compile",
    ),
    "compile.seconds": Explanation(
        title="Compile seconds",
        formula="sum over all compilations; each stage without those inside it",
        clock="the host clock, as dynamo keeps it",
        source="the timing pass; warm in a second, fresh process with the cache of the first",
        included="dynamo traces, aot makes the backward graph, inductor writes code, backend "
        "waits for the C++ compiler or Triton",
    ),
    "compile.break-even": Explanation(
        title="Break-even",
        formula="compile seconds / (eager median - compiled median), rounded up",
        clock="the timing passes of both runs",
        source="the newest run here of the same spec without torch.compile, same device and torch",
        included="n/a where the intervals of the two medians overlap",
    ),
    "compile.generated": Explanation(
        title="Generated kernels",
        formula="operators, modules and lines of each kernel as the compiler keeps them; bytes "
        "as its scheduler counts what is read and written",
        clock="times are the traced step's",
        source="the trace pass, which compiles with the compiler's provenance on",
        included="the module is the innermost one around all of the kernel's operators",
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
    "memory.stacks": Explanation(
        title="Stacks at the peak",
        formula="bytes as requested, of what is alive at the peak, by category, phase and stack",
        clock="the instant of the peak",
        source="the memory pass; frames of torch and of the recording are left out",
        included="every live allocation once; the smallest stacks are one row",
    ),
    "memory.resident": Explanation(
        title="What was resident",
        formula="P parameters, A saved for backward, C autocast's copies of the weights",
        clock="the instant of the peak",
        source="closed forms beside the measured peak; the one that the ledger bears out is named",
        included="published peaks of one cell differ because these differ",
    ),
    "memory.difference": Explanation(
        title="Against another run",
        formula="this run's bytes minus the other's: by row, by module, by stack",
        clock="each run's own peak",
        source="both memory passes",
        included="only what differs; a module's bytes include its children's",
    ),
    "telemetry.series": Explanation(
        title="Telemetry",
        formula="minimum, median and maximum over the measured part of the timing pass",
        clock="sampled about twice a second by the supervisor, not by the worker",
        source="NVML for devices, the operating system for the host",
        included="GPU busy is the share of time in which any kernel ran, not how full it was",
    ),
    "study.cell": Explanation(
        title="A cell of a study",
        formula="the value named above the grid, of the cell's own record; the median of repeats",
        clock="that of the pass that measured it: enter opens the run",
        source="one run for each cell, every pass in a fresh process",
        included="OOM and failures are values with their reason; a cell without a run stays empty",
    ),
    "study.left": Explanation(
        title="ETA of a study",
        formula="the forecasts of the cells without a value, added",
        clock="the host's, from the start of a run to its end",
        source="cells of the same kind that ran here: what starting took, and steps by operations",
        included="compiling, warm-up; at least: no step of some kind was timed here yet",
    ),
    "trust.perturbation": Explanation(
        title="Traced and memory-traced step",
        formula="the step in the instrumented pass over the bare step, minus one",
        clock="the clock of each pass",
        source="trace and memory passes beside the timing pass",
        included="above 10 % the instrument changed what it shows; a finding says so",
    ),
    "nsys.range": Explanation(
        title="Projected time of a range",
        formula="per instance, end of the last minus start of the first GPU work that the "
        "range's own thread launched in it; summed",
        clock="the GPU's clock, as nsys aligned it with the host's",
        source="the nsys export; equal to NVIDIA's nvtx_gpu_proj_sum",
        included="kernels, copies and fills, and the gaps between them; process kernels are "
        "those that any thread launched while the range was open",
    ),
}
