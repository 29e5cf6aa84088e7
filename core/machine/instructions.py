"""The instruction set that oneDNN takes for its products on this CPU, found without torch.

Two sets are at work under torch on a CPU: that of torch's own kernels, which it tells itself, and
that of oneDNN, which torch does not tell. oneDNN takes the most that the CPU has, or less where
``ONEDNN_MAX_CPU_ISA`` says so, and its kernels differ in what they need for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

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
"""oneDNN's names, the least first, and the flags of ``/proc/cpuinfo`` that each wants."""

NAMES = tuple(name for name, _ in LADDER)
OTHER_NAMES = {
    "AVX10_1_512": "AVX512_CORE_FP16",
    "AVX10_1_512_AMX": "AVX512_CORE_AMX",
    "AVX10_1_512_AMX_FP16": "AVX512_CORE_AMX_FP16",
}
"""What oneDNN has called the same sets since AVX10."""

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that limit it, the first that is set; read when torch loads."""

LEAST = {"bfloat16": "AVX512_CORE", "float16": "AVX512_CORE_FP16"}
"""From where on oneDNN computes products of a dtype; below, and of others, torch does."""


def onednn_instructions(flags: Collection[str], environ: Mapping[str, str]) -> str | None:
    """What oneDNN uses on a CPU with those flags; None where these are of no x86."""
    limit = next((environ[name].upper() for name in LIMITS if name in environ), "")
    limit = OTHER_NAMES.get(limit, limit)
    allowed = LADDER[: NAMES.index(limit) + 1] if limit in NAMES else LADDER
    usable = [name for name, needs in allowed if needs <= set(flags)]
    return usable[-1] if usable else None


def cpu_flags() -> frozenset[str]:
    """What the kernel says that the CPU can do; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    match = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def has_own_products(instructions: str | None, dtype: str) -> bool:
    """Whether oneDNN computes products of that dtype with these instructions."""
    if instructions not in NAMES or dtype not in LEAST:
        return False
    return NAMES.index(instructions) >= NAMES.index(LEAST[dtype])
