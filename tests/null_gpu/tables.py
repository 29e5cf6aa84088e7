"""C made of data: the cards of cards.toml, and what CUPTI's headers call things."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from tests.null_gpu.needs import Unfit, Versions

MIB = 1 << 20
RECORDS = ("Kernel", "Memcpy", "Memset", "Synchronization")
# What CUDA 13 compiles a launch to: name in CUPTI's header, and its number where the header that
# came with a release does not have it yet.
LAUNCH_CALLS = {
    "PUSH_CONFIGURATION": ("__cudaPushCallConfiguration", 502),
    "POP_CONFIGURATION": ("__cudaPopCallConfiguration", 503),
    "GET_KERNEL": ("__cudaGetKernel", 504),
    "LAUNCH_KERNEL": ("__cudaLaunchKernel", 505),
    "LAUNCH_KERNEL_PTSZ": ("__cudaLaunchKernel_ptsz", 506),
}


def cards_source(path: Path, mark: str) -> str:
    """The table of cards; each name gets the mark of a null GPU."""
    with path.open("rb") as file:
        cards = tomllib.load(file)
    rows = [_card(key, card, mark) for key, card in cards.items()]
    body = ",\n".join(rows)
    return (
        f'#include "card.h"\n\nconst ng_card ng_cards[] = {{\n{body},\n}};\n'
        f"const size_t ng_card_count = {len(rows)};\n"
    )


def _card(key: str, card: dict[str, Any], mark: str) -> str:
    major, minor = card["capability"]
    code_major, code_minor = card["code"]
    same = (
        *("multiprocessors", "bus_bits", "clock_mhz", "memory_clock_mhz", "shared_block_optin"),
        *("shared_multiprocessor", "threads_multiprocessor", "blocks_multiprocessor"),
        *("bytes_per_second", "link_per_second"),
        *("fp32_per_second", "tf32_per_second", "bf16_per_second"),
    )
    fields = {
        "name": json.dumps(f"{card['name']} {mark}"),
        "aliases": _texts([key, *card["aliases"]]),
        "major": major,
        "minor": minor,
        "code": 10 * code_major + code_minor,
        "memory_bytes": f"{card['memory_mib'] * MIB}ull",
        "board_bytes": f"{card['board_mib'] * MIB}ull",
        "context_bytes": f"{card['context_mib'] * MIB}ull",
        "l2_bytes": card["l2_mib"] * MIB,
        "has_ecc": int(card["ecc"]),
        "has_peer": int(card["peer"]),
        **{name: card[name] for name in same},
        **{f"gemm_{name}": _texts(_by_layout(text)) for name, text in card["gemm"].items()},
        "attention": json.dumps(card["attention"]),
    }
    return "    {" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def _by_layout(pattern: str) -> list[str]:
    """A kernel's name for operands nn, nt, tn and tt."""
    return [
        pattern.replace("{ab}", layout).replace("{AB}", layout.upper())
        for layout in ("nn", "nt", "tn", "tt")
    ]


def _texts(texts: list[str]) -> str:
    return "{" + ", ".join(map(json.dumps, texts)) + "}"


def installed_source(headers: Path, versions: Versions) -> str:
    """Versions, record types and numbers of calls, of the CUDA that torch was built for."""
    numbers = callback_numbers(headers / "cupti_runtime_cbid.h")
    lines = ["#pragma once"]
    for name in ("cudnn", "nccl", "cublas"):
        lines.append(f"#define NG_{name.upper()}_VERSION {getattr(versions, name)}")
    text = (headers / "cupti_activity.h").read_text("utf-8", "replace")
    for record in RECORDS:
        found = [int(number) for number in re.findall(rf"CUpti_Activity{record}(\d+);", text)]
        if not found:
            raise Unfit(f"the headers of CUPTI have no record CUpti_Activity{record}")
        lines.append(f"#define NG_{record.upper()}_RECORD CUpti_Activity{record}{max(found)}")
    for constant, (name, number) in LAUNCH_CALLS.items():
        known = (key for key in numbers if re.fullmatch(rf"{name}_v\d+", key))
        number = next((numbers[key] for key in known), number)
        lines.append(f"#define NG_CBID_{constant} {number}")
    return "\n".join(lines) + "\n"


def names_source(headers: Path) -> str:
    """Names of the runtime's and the driver's calls by number, as CUPTI tells them."""
    parts = ["#pragma once\n"]
    for api in ("runtime", "driver"):
        numbers = callback_numbers(headers / f"cupti_{api}_cbid.h")
        if api == "runtime":
            known = set(numbers.values())
            numbers |= {n: i for n, i in LAUNCH_CALLS.values() if i not in known}
        rows = "\n".join(f'    [{number}] = "{name}",' for name, number in numbers.items())
        size = max(numbers.values()) + 1
        parts.append(f"#define NG_{api.upper()}_NAMES {size}\n")
        parts.append(f"static const char *const ng_{api}_names[{size}] = {{\n{rows}\n}};\n")
    return "".join(parts)


def callback_numbers(header: Path) -> dict[str, int]:
    """Number of each call by its name with version, from a header of CUPTI."""
    text = header.read_text("utf-8", "replace")
    rows = re.findall(r"CUPTI_(?:RUNTIME|DRIVER)_TRACE_CBID_(\w+)\s*=\s*(\d+)", text)
    return {name: int(n) for name, n in rows if name not in ("INVALID", "SIZE", "FORCE_INT")}
