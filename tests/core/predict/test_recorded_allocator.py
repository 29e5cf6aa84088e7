"""The model of CUDA's caching allocator against a recording of PyTorch's own, event by event.

``allocator_trace.json.gz`` has the allocator's history of two training runs of cs336-2025/small
(context 256, adamw-foreach: bf16 with sdpa, fp32 with naive attention) with PyTorch 2.12.0 (cu130)
on a device that computes nothing. An event is ``[bytes requested, address in granules, MiB newly
reserved]``, or ``~n`` for the return of the n-th.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sysbench.core.predict.allocator import GRANULE, CachedBlock, CachingAllocator
from sysbench.core.predict.allocator_settings import MIB, parse_settings

RECORDED = Path(__file__).parents[2] / "fixtures" / "allocator_trace.json.gz"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


@pytest.mark.parametrize("name", ["segments", "expandable"])
def test_every_request_gets_the_block_that_it_got(name: str, recorded: dict[str, Any]) -> None:
    allocator = CachingAllocator(parse_settings(recorded[name]["settings"]))
    blocks: list[CachedBlock] = []
    origins, reserved = set(), 0
    for event in recorded[name]["events"]:
        if isinstance(event, int):
            allocator.free(blocks[~event])
            continue
        requested, address, grown_mib = event
        blocks.append(allocator.allocate(requested))
        reserved += grown_mib * MIB
        assert allocator.reserved_bytes == reserved, len(blocks)
        origins.add((blocks[-1].bytes > MIB, blocks[-1].address - address * GRANULE))
    assert len(blocks) > 4000
    # One distance between the model's addresses and the device's: of each expandable segment.
    assert len({origin for _, origin in origins}) == (1 if name == "segments" else 2)
