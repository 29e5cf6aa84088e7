"""What the tests of time ledgers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sysbench.core.record.record import Kernels
from sysbench.core.trace.time_ledger import TimeLedger, Window, time_ledger
from sysbench.core.trace.trace_reader import read_trace

AssertClosed = Callable[[TimeLedger], Kernels]
GEMM, NCCL = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def ledger_of(writer: Any, window: Window | None = None) -> TimeLedger:
    """The ledger of the trace so far, read from its file."""
    return time_ledger(read_trace(writer.write()), window)
