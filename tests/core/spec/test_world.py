"""Worlds: their text, the positions of ranks, and what they cannot divide."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sysbench.core.errors import SpecError
from sysbench.core.spec.models import Dimensions
from sysbench.core.spec.world import World

SIZES = st.integers(1, 9)


@given(dp=SIZES, tp=SIZES, pp=SIZES, cp=SIZES)
def test_every_rank_has_a_position_of_its_own(dp: int, tp: int, pp: int, cp: int) -> None:
    world = World.parse(f"dp={dp}, tp={tp},pp={pp},cp={cp},schedule=gpipe")
    assert World.parse(world.words) == world
    positions = [tuple(world.coordinates(rank).values()) for rank in range(world.size)]
    assert len(set(positions)) == world.size == dp * tp * pp * cp
    assert positions == sorted(positions)
    assert max(positions) == (pp - 1, dp - 1, cp - 1, tp - 1)
    assert sum(world.kinds.values()) == world.size


FEW = st.integers(1, 4)


@given(dp=FEW, tp=FEW, pp=st.integers(1, 2), cp=FEW, data=st.data(), skew=st.sampled_from([1, 2]))
def test_ranks_of_a_kind_have_the_same_stage_tokens_and_load(
    dp: int, tp: int, pp: int, cp: int, data: st.DataObject, skew: int
) -> None:
    divisors = [ep for ep in range(skew, dp * cp * tp + 1) if dp * cp * tp % ep == 0]
    assume(divisors)
    ep = data.draw(st.sampled_from(divisors))
    world = World(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, skew=skew, schedule="gpipe")
    alike = defaultdict[object, list[int]](list)
    for rank in range(world.size):
        at = world.coordinates(rank)
        alike[at["pp"], at["cp"], world.is_light(rank)].append(rank)
    assert world.kinds == {ranks[0]: len(ranks) for ranks in alike.values()}
    heavy = [rank for rank in range(world.size) if not world.is_light(rank)]
    assert heavy == [*range(0, world.size, ep if skew > 1 else 1)]


@given(ep=SIZES, more=st.floats(0, 1), pairs=st.integers(0, 999))
def test_the_first_experts_get_the_skew_of_all_tokens(ep: int, more: float, pairs: int) -> None:
    world = World(dp=2 * ep, ep=ep, skew=1 + more * (ep - 1))
    loads = world.loads(pairs)
    assert len(loads) == ep and sum(loads) == pairs and max(loads) == loads[0]
    assert loads[0] - world.skew * pairs / ep < 1 and max(loads[1:], default=0) <= min(loads) + 1
    assert sum(world.kinds.values()) == world.size


@given(layers=st.integers(1, 200), pp=SIZES)
def test_stages_have_all_blocks_in_order(layers: int, pp: int) -> None:
    stages = [*World(pp=pp, schedule="gpipe").stage_blocks(layers)]
    assert [block for stage in stages for block in stage] == [*range(layers)]
    sizes = [len(stage) for stage in stages]
    assert len(sizes) == pp and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dp", "keys with a value each"),
        ("dp=2,dp=4", "keys with a value each"),
        ("dp=0", "1 or more"),
        ("dp=two", "dp"),
        ("zp=2", "with the keys dp, tp, pp, .*not zp"),
        ("data=hsdp,dp=4", "2 or more with data=hsdp"),
        ("dp=4,data=hsdp,replicas=3", "a divisor of dp=4"),
        ("dp=4,microbatches=2", "1 without pp"),
        ("pp=4,microbatches=2", "pp=4 or more, .* or schedule=gpipe"),
        ("dp=2,tp=2,data=ddp", "fsdp2 or hsdp with tp"),
        ("tp=2,params=bf16", "needs dp by fsdp2"),
        ("dp=2,data=ddp,reshard=false", "needs dp by fsdp2"),
        ("pp=2,microbatches=2,schedule=interleaved", "2 or more with schedule=interleaved"),
        ("pp=2,microbatches=2,stages=2", "2 or more with schedule=interleaved .*, else 1"),
        ("pp=2,microbatches=5,stages=2,schedule=zero-bubble", "a multiple of pp=2"),
        ("dp=3,ep=2", "a divisor of dp = 3"),
        ("dp=4,tp=2,cp=2,ep=16,data=hsdp,replicas=2", "a divisor of dp x cp x tp / replicas=2 = 8"),
        ("dp=2,ep=2,data=ddp", "1 with data=ddp"),
        ("dp=2,ep=2,skew=2.5", "1 to ep=2"),
        ("dp=2,ep=2,skew=high", "skew is a number"),
        ("dp=2,cp=2,data=ddp", "fsdp2 or hsdp with cp"),
    ],
)
def test_a_text_that_is_no_world_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        World.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp=3", "a divisor of heads=4"),
        ("tp=4,sequence=true", "a divisor of context=18"),
        ("cp=2", "a divisor of half of context=18"),
        ("tp=4,ep=2,sequence=false", "a divisor of context=18 with ep"),
        ("pp=4,schedule=gpipe", "at most the model's 3 layers"),
        ("pp=2,microbatches=4", "a divisor of batch=6"),
        ("pp=2,microbatches=2,stages=2,schedule=interleaved", "pp=2 times these, in the model's 3"),
    ],
)
def test_a_world_that_does_not_divide_the_model_is_refused(text: str, words: str) -> None:
    size = Dimensions(vocab=100, d_model=64, d_ff=128, layers=3, heads=4)
    with pytest.raises(SpecError, match=words):
        World.parse(text).check(size, 6, 18)
