"""The instruction set of oneDNN's products on this CPU, found without torch.

Torch on a CPU uses two sets: that of torch's kernels, which torch reports, and that of oneDNN,
which it does not report. oneDNN takes the largest set of the CPU, or the limit in
``ONEDNN_MAX_CPU_ISA``, and its kernels differ in the workspace that they need.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from sysbench.core.storage import text_of

LADDER: tuple[tuple[str, frozenset[str]], ...] = (
    ("SSE41", frozenset({"sse4_1"})),
    ("AVX", frozenset({"avx"})),
    ("AVX2", frozenset({"avx2"})),
    ("AVX2_VNNI", frozenset({"avx_vnni"})),
    ("AVX2_VNNI_2", frozenset({"avx_vnni", "avx_vnni_int8", "avx_ne_convert"})),
    ("AVX512_CORE", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})),
    ("AVX512_CORE_VNNI", frozenset({"avx512f", "avx512_vnni"})),
    ("AVX512_CORE_BF16", frozenset({"avx512f", "avx512_bf16"})),
    ("AVX512_CORE_FP16", frozenset({"avx512f", "avx512_fp16"})),
    ("AVX512_CORE_AMX", frozenset({"avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"})),
    ("AVX512_CORE_AMX_FP16", frozenset({"avx512_fp16", "amx_tile", "amx_fp16"})),
)
"""oneDNN's names, smallest set first, and the flags of ``/proc/cpuinfo`` that each requires."""

NAMES = tuple(name for name, _ in LADDER)
OTHER_NAMES = {
    "AVX10_1_512": "AVX512_CORE_FP16",
    "AVX10_1_512_AMX": "AVX512_CORE_AMX",
    "AVX10_1_512_AMX_FP16": "AVX512_CORE_AMX_FP16",
}
"""oneDNN's names of the same sets since AVX10."""

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that limit the set; the first one that is set counts. Torch reads them when it loads.
"""

MIN_INSTRUCTIONS = {"bfloat16": "AVX512_CORE", "float16": "AVX512_CORE_FP16"}
"""Smallest set with which oneDNN computes products of a dtype; otherwise torch computes them."""


def onednn_instructions(flags: Collection[str], environ: Mapping[str, str]) -> str | None:
    """Return oneDNN's instruction set on a CPU with those flags; None if it is not an x86."""
    limit = next((environ[name].upper() for name in LIMITS if name in environ), "")
    limit = OTHER_NAMES.get(limit, limit)
    allowed = LADDER[: NAMES.index(limit) + 1] if limit in NAMES else LADDER
    usable = [name for name, needs in allowed if needs <= set(flags)]
    return usable[-1] if usable else None


def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags from ``/proc/cpuinfo``; empty if it has none."""
    match = re.search(r"^flags\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def has_own_products(instructions: str | None, dtype: str) -> bool:
    if instructions not in NAMES or dtype not in MIN_INSTRUCTIONS:
        return False
    return NAMES.index(instructions) >= NAMES.index(MIN_INSTRUCTIONS[dtype])
