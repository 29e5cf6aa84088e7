"""The model of CUDA's caching allocator: its rules, and what holds after any requests."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.core.errors import SpecError
from sysbench.core.predict.allocator import (
    AllocationRefused,
    CachedBlock,
    CachingAllocator,
    round_size,
)
from sysbench.core.predict.allocator_settings import (
    MIB,
    AllocatorSettings,
    parse_allocator_settings,
    parse_settings,
)

KIB = 1024
EXPANDABLE = AllocatorSettings(expandable_segments=True)


@pytest.mark.parametrize(
    ("requests", "allocated", "reserved"),
    [
        ([1], 512, 2 * MIB),
        ([512, 513], 512 + 1024, 2 * MIB),
        ([MIB, MIB, 512], 2 * MIB + 512, 4 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        ([5 * MIB, 5 * MIB, 9 * MIB], 20 * MIB, 20 * MIB),  # a rest of 1 MiB is not split off
        ([10 * MIB], 10 * MIB, 10 * MIB),
        ([10 * MIB + 1], 10 * MIB + 512, 12 * MIB),
        ([11 * MIB], 12 * MIB, 12 * MIB),
        ([32 * MIB, 33 * MIB], 66 * MIB, 66 * MIB),
    ],
)
def test_requests_get_blocks_and_segments_of_the_sizes_that_torch_gives_them(
    requests: list[int], allocated: int, reserved: int
) -> None:
    allocator = CachingAllocator()
    for request in requests:
        allocator.allocate(request)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_the_smallest_free_block_is_taken_the_one_made_first_among_equal_ones() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (30, 20, 40, 20)]
    addresses = [block.address for block in blocks]
    for block in reversed(blocks):
        allocator.free(block)
    assert allocator.allocate(20 * MIB).address == addresses[1]
    assert allocator.allocate(20 * MIB).address == addresses[3]
    assert allocator.allocate(21 * MIB).address == addresses[0]
    assert allocator.reserved_bytes == 110 * MIB


def test_a_block_merges_with_free_blocks_of_its_segment_only() -> None:
    allocator = CachingAllocator()
    first, second, third = (allocator.allocate(6 * MIB) for _ in range(3))
    other = allocator.allocate(20 * MIB)
    for block in (first, third, second, other):
        allocator.free(block)
    assert allocator.allocate(20 * MIB).bytes == 20 * MIB
    assert allocator.reserved_bytes == 40 * MIB


def test_streams_share_no_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(MIB, stream=0))
    allocator.allocate(MIB, stream=1)
    assert allocator.reserved_bytes == 4 * MIB


def test_whole_segments_are_given_back_before_a_request_is_refused() -> None:
    allocator = CachingAllocator(capacity_bytes=64 * MIB)
    for block in [allocator.allocate(20 * MIB) for _ in range(3)]:
        allocator.free(block)
    assert allocator.allocate(40 * MIB).bytes == 40 * MIB
    assert allocator.reserved_bytes == 40 * MIB
    with pytest.raises(AllocationRefused) as caught:
        allocator.allocate(30 * MIB)
    assert caught.value.requested_bytes == 30 * MIB
    assert (caught.value.allocated_bytes, caught.value.reserved_bytes) == (40 * MIB, 40 * MIB)


def test_a_part_in_use_keeps_its_segment() -> None:
    allocator = CachingAllocator(capacity_bytes=40 * MIB)
    held, dropped = allocator.allocate(2 * MIB), allocator.allocate(8 * MIB)
    allocator.free(dropped)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(held)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_expandable_segments_grow_by_pages_and_lose_none_to_fragments() -> None:
    sizes = [30 * MIB, 50 * MIB, 70 * MIB]
    plain, expandable = CachingAllocator(), CachingAllocator(EXPANDABLE)
    for allocator in (plain, expandable):
        for block in [allocator.allocate(size) for size in sizes]:
            allocator.free(block)
        allocator.allocate(150 * MIB)
    assert plain.reserved_bytes == 300 * MIB
    assert expandable.reserved_bytes == 160 * MIB  # whole pages of 20 MiB


def test_expandable_pages_are_given_back_from_the_middle() -> None:
    allocator = CachingAllocator(EXPANDABLE, capacity_bytes=200 * MIB)
    low, middle, _ = (allocator.allocate(size * MIB) for size in (10, 130, 40))
    allocator.free(middle)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 60 * MIB  # pages 1 to 6 are whole
    allocator.free(low)
    assert allocator.allocate(130 * MIB).bytes == 130 * MIB


def test_blocks_above_the_largest_that_may_be_split_stay_whole() -> None:
    settings = parse_settings("max_split_size_mb:64")
    allocator = CachingAllocator(settings, capacity_bytes=160 * MIB)
    allocator.free(allocator.allocate(100 * MIB))
    assert allocator.allocate(90 * MIB).bytes == 100 * MIB  # within 20 MiB: taken as it is
    small = allocator.allocate(30 * MIB)
    assert (small.bytes, allocator.reserved_bytes) == (30 * MIB, 130 * MIB)


def test_a_block_too_large_to_split_is_given_back_alone() -> None:
    settings = parse_settings("max_split_size_mb:64")
    allocator = CachingAllocator(settings, capacity_bytes=200 * MIB)
    for block in [allocator.allocate(size * MIB) for size in (50, 70, 80)]:
        allocator.free(block)
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == (50 + 60 + 80) * MIB


def test_long_unused_segments_are_collected_under_a_limit() -> None:
    settings = parse_settings("garbage_collection_threshold:0.5")
    reserved = []
    for is_limited in (False, True):
        allocator = CachingAllocator(settings, 100 * MIB, is_limited=is_limited)
        for block in [allocator.allocate(30 * MIB), allocator.allocate(28 * MIB)]:
            allocator.free(block)
        allocator.allocate(40 * MIB)
        reserved.append(allocator.reserved_bytes)
    assert reserved[0] == 98 * MIB
    assert reserved[1] < reserved[0]


@pytest.mark.parametrize(
    ("text", "request_bytes", "block_bytes"),
    [
        ("roundup_power2_divisions:4", 1200 * MIB, 1280 * MIB),
        ("roundup_power2_divisions:4", 1024 * MIB, 1024 * MIB),
        ("roundup_power2_divisions:4", 1000, 1024),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 200 * MIB + 1, 200 * MIB + 512),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 600 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 2100 * MIB, 2304 * MIB),
        ("expandable_segments:True, max_split_size_mb:128", 700, 1024),
    ],
)
def test_requests_are_rounded_as_the_settings_say(
    text: str, request_bytes: int, block_bytes: int
) -> None:
    assert round_size(request_bytes, parse_settings(text)) == block_bytes


def test_the_environment_gives_the_settings_and_its_mistakes_are_named() -> None:
    assert parse_allocator_settings({}) == AllocatorSettings()
    old, new = "expandable_segments:False", "expandable_segments:True"
    both = {"PYTORCH_CUDA_ALLOC_CONF": old, "PYTORCH_ALLOC_CONF": new}
    assert parse_allocator_settings(both).expandable_segments
    for wrong in ("max_split_size_mb:20", "roundup_power2_divisions:3", "expandable_segments:yes"):
        with pytest.raises(SpecError, match="PYTORCH_ALLOC_CONF"):
            parse_allocator_settings({"PYTORCH_ALLOC_CONF": wrong})


def test_no_block_is_returned_twice_and_none_is_empty() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)
    with pytest.raises(ValueError, match="0 bytes"):
        allocator.allocate(0)


SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(MIB - 2, MIB + 2),
    st.integers(MIB, 12 * MIB),
    st.sampled_from([20 * MIB, 32 * MIB, 47 * MIB, 100 * MIB]),
)
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        EXPANDABLE,
        AllocatorSettings(max_split_bytes=40 * MIB),
        AllocatorSettings(roundup_divisions=(4,) * 16),
        AllocatorSettings(collect_above=0.3),
    ]
)


@given(
    SETTINGS,
    st.sampled_from([None, 150 * MIB]),
    st.lists(st.tuples(SIZES, st.integers(0, 99), st.booleans()), max_size=60),
)
def test_blocks_never_overlap_and_everything_can_be_given_back(
    settings: AllocatorSettings,
    capacity: int | None,
    moves: list[tuple[int, int, bool]],
) -> None:
    allocator = CachingAllocator(settings, capacity, is_limited=capacity is not None)
    live: list[CachedBlock] = []
    for size, which, is_return in moves:
        if is_return and live:
            allocator.free(live.pop(which % len(live)))
            continue
        try:
            live.append(allocator.allocate(size, stream=which % 2))
        except AllocationRefused:
            assert capacity is not None
        assert_consistent(allocator, live, capacity)
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def assert_consistent(
    allocator: CachingAllocator, live: list[CachedBlock], capacity: int | None
) -> None:
    assert allocator.allocated_bytes == sum(block.bytes for block in live)
    free = allocator.blocks()
    assert allocator.reserved_bytes == allocator.allocated_bytes + sum(b.bytes for b in free)
    assert capacity is None or allocator.reserved_bytes <= capacity
    assert allocator.peak_reserved_bytes >= allocator.reserved_bytes
    ordered = sorted([*live, *free], key=lambda block: block.address)
    for low, high in pairwise(ordered):
        assert low.address + low.bytes <= high.address
        if low.after is high:
            assert not (low.is_free and high.is_free), "adjacent free blocks are merged"


def test_requests_at_the_peak_are_of_the_moment_when_most_is_allocated() -> None:
    allocator = CachingAllocator()
    small = [allocator.allocate(4) for _ in range(100)]
    for block in small:
        allocator.free(block)
    large = allocator.allocate(40_000)
    assert allocator.peak_allocated_bytes == 100 * 512
    assert allocator.requested_at_peak_bytes == 100 * 4
    allocator.free(large)
    allocator.reset_peaks()
    assert allocator.requested_at_peak_bytes == 0
