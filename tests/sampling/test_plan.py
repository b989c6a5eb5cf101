"""The epoch plan: every seed once, equal steps, and the same batches however they are shared."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.base import OptionError
from glt_lightning.sampling import EpochPlan, batch_key, permutation, plan as plan_module
from glt_lightning.sampling.plan import draws_by_weight
from tests.helpers.examples import examples

SIZES = {"n": st.integers(1, 200), "batch": st.integers(1, 40), "world": st.integers(1, 7)}


def plans(n, batch, world, **changes):
    seeds = np.arange(n, dtype=np.int64) * 3 + 1
    return [
        EpochPlan(seeds=seeds, batch_size=batch, seed=4, loader="train", rank=r, world_size=world, **changes)
        for r in range(world)
    ]


@settings(max_examples=examples(200), deadline=None)
@given(**SIZES, shuffle=st.booleans(), owned=st.booleans(), epoch=st.integers(0, 3))
def test_training_plan(n, batch, world, shuffle, owned, epoch):
    if n < world:
        return
    owner = np.random.default_rng(n).integers(0, world, n) if owned else None
    ranks = plans(n, batch, world, shuffle=shuffle, owner=owner)
    requests = [list(p.requests(epoch)) for p in ranks]
    assert len({len(r) for r in requests}) == 1  # equal steps
    assert all(len(r) == len(p) for r, p in zip(requests, ranks, strict=True))
    everything = np.concatenate([b.input_id for r in requests for b in r])
    assert sorted(everything.tolist()) == list(range(n))  # every seed once
    keys = [b.key for r in requests for b in r]
    assert len(set(keys)) == len(keys)
    for r in requests:
        for b in r:
            assert len(b.seeds) > 0
            assert b.seeds.tolist() == (b.input_id * 3 + 1).tolist()
    sizes = [[len(b.seeds) for b in r] for r in requests]
    assert all(s == batch for r in sizes for s in r[:-1])
    last = [r[-1] for r in sizes]
    assert max(last) - min(last) <= 1
    assert max(last) <= batch + 1
    if not owned and not shuffle:  # the ranks' batches of one step are one stretch of the order
        for step in zip(*requests, strict=True):
            joined = np.concatenate([b.input_id for b in step])
            assert joined.tolist() == list(range(joined[0], joined[0] + len(joined)))


@settings(max_examples=examples(200), deadline=None)
@given(**SIZES, owned=st.booleans())
def test_evaluation_plan(n, batch, world, owned):
    owner = np.random.default_rng(n).integers(0, world, n) if owned else None
    ranks = plans(n, batch, world, exact=True, owner=owner)
    requests = [list(p.requests(7)) for p in ranks]
    everything = np.concatenate([b.input_id for r in requests for b in r])
    assert sorted(everything.tolist()) == list(range(n))
    counts = [len(r) for r in requests]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1  # also of a rank without seeds, whose hooks must run
    if n >= world:
        assert all(len(b.seeds) for r in requests for b in r)
    assert [len(p) for p in ranks] == counts
    assert [b.key for b in requests[0]] == [b.key for b in ranks[0].requests(0)]


@settings(max_examples=examples(100), deadline=None)
@given(**SIZES, start=st.integers(0, 30))
def test_a_plan_continues_anywhere(n, batch, world, start):
    plan = plans(n, batch, world, exact=True)[0]
    rest = list(plan.requests(0))[start:]
    again = list(plan.requests(0, start))
    assert [(b.number, b.key, b.seeds.tolist()) for b in again] == [(b.number, b.key, b.seeds.tolist()) for b in rest]


@settings(max_examples=examples(100), deadline=None)
@given(n=st.integers(4, 200), world=st.integers(1, 4), seed=st.integers(0, 99))
def test_owners_keep_their_seeds(n, world, seed):
    owner = np.random.default_rng(seed).integers(0, world, n)
    for rank, plan in enumerate(plans(n, 8, world, shuffle=True, owner=owner)):
        mine = np.concatenate([b.input_id for b in plan.requests(1)])
        kept = int((owner[mine] == rank).sum())
        assert kept == min(len(mine), int((owner == rank).sum()))


def test_placement_by_owner_is_fixed_for_ever():
    """Resuming a checkpoint of an older release depends on these numbers. Ranks 0 and 2 have more than their share of 3;
    what is over goes, in the order of the epoch, to rank 1 and then to rank 3."""
    owner = np.array([0, 2, 0, 2, 0, 2, 0, 2, 0, 1, 3, 3])
    in_order = [next(p.requests(0)).input_id.tolist() for p in plans(12, 3, 4, owner=owner)]
    assert in_order == [[0, 2, 4], [9, 6, 7], [1, 3, 5], [10, 11, 8]]
    shuffled = [next(p.requests(1)).input_id.tolist() for p in plans(12, 3, 4, owner=owner, shuffle=True)]
    assert shuffled == [[8, 4, 0], [9, 2, 6], [3, 5, 7], [11, 10, 1]]


def test_a_rank_with_fewer_seeds_starts_over_with_new_draws():
    """The keys, too, are those of older releases."""
    plan = plans(5, 2, 1, steps=7)[0]
    requests = list(plan.requests(0))
    assert [b.input_id.tolist() for b in requests] == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4], [0, 1]]
    assert [b.number for b in requests] == list(range(7))
    assert [b.key for b in requests] == [batch_key(4, "train", 0, at) for at in (0, 2, 4, 5, 7, 9, 10)]
    assert [b.key for b in plan.requests(0, 4)] == [b.key for b in requests[4:]]


def test_keys_are_fixed_for_ever():
    assert batch_key(4, "train", 2, 7) == 6740042406080651727


def test_epochs_loaders_and_seeds_shuffle_differently():
    def order(**changes):
        given = {"seeds": np.arange(50), "batch_size": 50, "seed": 0, "loader": "a", "shuffle": True}
        epoch = changes.pop("epoch", 0)
        return next(EpochPlan(**given | changes).requests(epoch)).input_id.tolist()

    orders = [order(), order(epoch=1), order(seed=1), order(loader="b"), order(shuffle=False)]
    assert len({tuple(o) for o in orders}) == 5
    assert order() == orders[0]


@settings(max_examples=examples(100), deadline=None)
@given(**SIZES, shuffle=st.booleans(), owned=st.booleans(), start=st.integers(0, 9))
def test_weighted_plan_has_the_steps_of_the_plain_one(n, batch, world, shuffle, owned, start):
    if n < world:
        return
    rng = np.random.default_rng(n)
    owner = rng.integers(0, world, n) if owned else None
    weights = rng.random(n) * (rng.random(n) < 0.5)
    weights[0] = 1.0
    plain = plans(n, batch, world, shuffle=shuffle, owner=owner)
    ranks = plans(n, batch, world, shuffle=shuffle, owner=owner, weights=weights)
    requests = [list(p.requests(2)) for p in ranks]
    sizes = [[len(b.seeds) for b in r] for r in requests]
    assert sizes == [[len(b.seeds) for b in p.requests(2)] for p in plain]
    drawn = np.concatenate([b.input_id for r in requests for b in r])
    assert (weights[drawn] > 0).all()
    one = plans(n, batch, 1, shuffle=shuffle, weights=weights)[0]
    alone = np.concatenate([b.input_id for b in one.requests(2)])
    assert sorted(drawn.tolist()) == sorted(alone.tolist())  # the same draws, however many ranks share them
    rest = list(ranks[0].requests(2, start))
    assert [(b.key, b.seeds.tolist()) for b in rest] == [(b.key, b.seeds.tolist()) for b in requests[0][start:]]


def test_seeds_are_drawn_as_often_as_their_weight_says():
    weights = np.array([1.0, 0.0, 2.0, 5.0] * 500)

    def shares(epoch, **changes):
        (plan,) = plans(2000, 64, 1, weights=weights, **{"shuffle": True} | changes)
        drawn = np.concatenate([b.input_id for b in plan.requests(epoch)])
        return drawn.tolist(), np.bincount(drawn % 4, minlength=4) / 2000

    drawn, found = shares(0)
    np.testing.assert_allclose(found, [1 / 8, 0, 2 / 8, 5 / 8], atol=0.03)
    assert shares(1)[0] != drawn
    assert shares(0, shuffle=False)[0] == shares(5, shuffle=False)[0]


def test_weighted_draws_are_fixed_for_ever():
    """Resuming a checkpoint of an older release depends on these numbers."""
    assert draws_by_weight(np.arange(8.0), 12345).tolist() == [3, 3, 3, 3, 5, 4, 3, 5]


def test_the_lowest_draw_takes_no_seed_of_weight_zero(monkeypatch):
    """2^-53 of the draws are exactly 0, where the first seed's share begins and, at weight 0, ends."""
    monkeypatch.setattr(plan_module, "keyed", lambda key, numbers: np.zeros(len(numbers), np.uint64))
    assert draws_by_weight(np.array([0.0, 0.0, 1.0]), 7).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("weights", "changes", "message"),
    [
        (np.ones(3), {}, r"expected one for each of the 4 seeds, got \[3\]"),
        (np.array([1, -1, 1, 1.0]), {}, "got -1.0 for the seed at position 1"),
        (np.array([1, np.nan, 1, 1.0]), {}, "got nan for the seed at position 1"),
        (np.zeros(4), {}, "expected a finite sum above zero, got 0.0"),
        (np.ones(4), {"exact": True}, "an evaluation visits every seed exactly once"),
    ],
)
def test_bad_weights(weights, changes, message):
    with pytest.raises(OptionError, match=message):
        plans(4, 2, 1, weights=weights, **changes)


def test_permutation_is_fixed_for_ever():
    """Resuming a checkpoint of an older release depends on these numbers."""
    assert permutation(8, 12345).tolist() == [2, 6, 0, 3, 1, 5, 7, 4]


def test_permutation_is_uniform():
    counts = np.zeros((6, 6))
    for key in range(3000):
        counts[np.arange(6), permutation(6, key)] += 1
    assert abs(counts / 3000 - 1 / 6).max() < 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "got 0"),
        ({"batch_size": 1.5}, "got 1.5"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"seeds": np.arange(0)}, r"there are 0 for world size 1\. Its split is empty\."),
        ({"world_size": 9}, "each rank needs a seed; there are 4 for world size 9"),
    ],
)
def test_bad_plans(change, message):
    given = {"seeds": np.arange(4), "batch_size": 2, "seed": 0, "loader": "train"}
    with pytest.raises(OptionError, match=message):
        EpochPlan(**given | change)
