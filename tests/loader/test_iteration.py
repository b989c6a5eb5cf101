"""Lazy iteration, early stop, epochs, resume, and batches that are kept or changed."""

import numpy as np
import pytest
import torch

from glt_lightning.base import OptionError, SamplerError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import Ranks
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


def make(partition, workers=0, **changes):
    context = Session(partition, SamplingOptions(num_workers=workers, concurrency=2), seed=5)
    spec = {"name": "train", "split": "train", "num_neighbors": [3, 2], "batch_size": 8, "shuffle": True}
    return context, context.make_loader(LoaderSpec(**spec | changes))


@WORKERS
def test_iterators_that_are_never_used_change_nothing(partition, workers):
    context, loader = make(partition, workers)
    with context:
        iter(loader), iter(loader)
        first = [contents(b) for b in loader]
        assert loader.state_dict()["epoch"] == 0
        assert len(first) == len(loader)


@WORKERS
def test_each_iteration_is_the_next_epoch_unless_told(partition, workers):
    context, loader = make(partition, workers)
    with context:
        free = [[contents(b) for b in loader] for _ in range(3)]
    context, loader = make(partition, workers)
    with context:
        for epoch in (2, 0, 1):
            loader.set_epoch(epoch)
            assert [contents(b) for b in loader] == free[epoch]
    assert len({d for epoch in free for d in epoch}) == 3 * len(free[0])


@WORKERS
def test_a_rank_without_seeds_evaluates_one_empty_batch(partition, workers, caplog):
    spec = LoaderSpec(name="val", seeds=np.array([5, 7]), num_neighbors=[3, 2], batch_size=8, exact=True)
    batches = []
    for rank in range(3):
        with Session(partition, SamplingOptions(num_workers=workers), ranks=Ranks(rank, 3)) as context:
            loader = context.make_loader(spec)
            assert len(loader) == 1
            batches += list(loader)
    assert [b.batch_size for b in batches] == [1, 1, 0]
    assert [b.n_id[: b.batch_size].tolist() for b in batches] == [[5], [7], []]
    assert batches[2].keys() == batches[0].keys()
    assert batches[2].x.shape == (0, 3)
    assert batches[2].edge_index.shape == (2, 0)
    warned = [r.getMessage() for r in caplog.records if "seeds for" in r.getMessage()]
    assert [text.partition(":")[0] for text in warned] == ["loader 'val'"]  # once, by the first rank


@WORKERS
@pytest.mark.parametrize("stop", [1, 5])
def test_early_stop_does_not_disturb_the_next_epoch(partition, workers, stop):
    context, loader = make(partition, workers)
    with context:
        loader.set_epoch(1)
        want = [contents(b) for b in loader]
        for _ in range(4):  # more abandoned prefetches than there are slots
            loader.set_epoch(0)
            for _, _batch in zip(range(stop), loader, strict=False):
                pass
        loader.set_epoch(1)
        assert [contents(b) for b in loader] == want
        assert loader.stats().fresh_slots == 0


@WORKERS
def test_evaluation_repeats_itself(partition, workers):
    context, loader = make(partition, workers, name="val", split="val", shuffle=False, exact=True)
    with context:
        first = [contents(b) for b in loader]
        assert [contents(b) for b in loader] == first
        seen = torch.cat([b.input_id for b in loader])
        assert seen.tolist() == list(range(partition.manifest.splits["val"].count))


@pytest.mark.diagonal
@WORKERS
@pytest.mark.parametrize("workers_after", [0, 1, 3])
@pytest.mark.parametrize("delivered", [0, 1, 7])
def test_resume(partition, workers, workers_after, delivered):
    context, loader = make(partition, workers)
    with context:
        loader.set_epoch(4)
        stream = iter(loader)
        for _ in range(delivered):
            next(stream)
        state = loader.state_dict()
        rest = [contents(b) for b in stream]
    context, loader = make(partition, workers_after)
    with context:
        loader.load_state_dict(state)
        iter(loader)
        loader.set_epoch(4)  # as Lightning does
        assert [contents(b) for b in loader] == rest
        assert len(loader) == len(rest) + delivered
        loader.set_epoch(5)
        assert len(list(loader)) == len(loader)


@WORKERS
def test_state_is_loaded_into_a_loader_that_was_used(partition, workers):
    """It goes on where the state was taken, not an epoch later; whether its last iteration was ended or left."""
    context, loader = make(partition, workers)
    with context:
        for epoch, delivered in ((3, 2), (1, 0)):
            loader.set_epoch(epoch)
            stream = iter(loader)
            for _ in range(delivered):
                next(stream)
            state = loader.state_dict()
            rest = [contents(b) for b in stream]
            for used in (len(rest), 1):
                for _, _batch in zip(range(used), loader, strict=False):  # the next epoch
                    pass
                loader.load_state_dict(state)
                assert [contents(b) for b in loader] == rest
                assert loader.state_dict() == state | {"delivered": len(rest) + delivered}


@pytest.mark.parametrize(
    ("change", "named"),
    [({"batch_size": 4}, "batch_size"), ({"num_neighbors": [2, 2]}, "fanouts"), ({"split": "val"}, "seeds_hash")],
)
def test_resume_of_another_plan_is_refused_by_name(partition, change, named):
    context, loader = make(partition)
    state = loader.state_dict()
    context, loader = make(partition, **change)
    with context, pytest.raises(OptionError, match=named):
        loader.load_state_dict(state)


@WORKERS
def test_batches_may_be_kept(partition, workers):
    context, loader = make(partition, workers)
    with context:
        loader.set_epoch(0)
        want = [contents(b) for b in loader]
        loader.set_epoch(0)
        with pytest.warns(UserWarning, match="batch slots are in use"):
            kept = list(loader)
        assert [contents(b) for b in kept] == want
        assert loader.stats().fresh_slots > 0
    assert [contents(b) for b in kept] == want  # also after the context is closed


@WORKERS
def test_batches_may_be_changed_in_place(partition, workers):
    context, loader = make(partition, workers)
    with context:
        loader.set_epoch(0)
        want = [contents(b) for b in loader]
        for _ in range(2):
            loader.set_epoch(0)
            got = []
            for batch in loader:
                got.append(contents(batch))
                for value in batch.to_dict().values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()
            assert got == want


@WORKERS
def test_a_tensor_alone_keeps_its_memory(partition, workers):
    context, loader = make(partition, workers)
    with context:
        loader.set_epoch(0)
        want = [b.x.clone() for b in loader]
        loader.set_epoch(0)
        stream = iter(loader)
        kept = next(stream).x[1:]  # a view of one tensor of the batch
        for _ in stream:
            pass
        assert torch.equal(kept, want[0][1:])
        assert loader.stats().fresh_slots == 0


def test_two_loaders_share_the_sampler_processes(partition):
    context, train = make(partition, 2)
    with context:
        val = context.make_loader(LoaderSpec(name="val", split="val", num_neighbors=[2], batch_size=5, exact=True))
        train.set_epoch(0)
        want_train, want_val = [contents(b) for b in train], [contents(b) for b in val]
        train.set_epoch(0)
        got_train, got_val = [], []
        for i, batch in enumerate(train):
            got_train.append(contents(batch))
            if i in (2, 5):
                got_val.append([contents(b) for b in val])
        assert got_train == want_train
        assert got_val == [want_val, want_val]
        assert train.stats().fresh_slots == 0


@WORKERS
def test_a_closed_context_says_so(partition, workers):
    context, loader = make(partition, workers)
    stream = iter(loader)
    next(stream)
    context.close()
    context.close()
    with pytest.raises((OptionError, SamplerError), match="closed"):
        next(stream)
    with pytest.raises((OptionError, SamplerError), match="closed"):
        next(iter(loader))
    with pytest.raises(SamplerError, match="closed"):
        context.make_loader(LoaderSpec(name="x", split="val", num_neighbors=[1], batch_size=1))


@pytest.mark.parametrize(("room", "most"), [(0, 2), (1, 2), (3, 3), (100, 8)])
def test_bytes_limit_what_is_in_flight(partition, monkeypatch, caplog, room, most):
    """It begins with two batches, whose size is then known, and grows to what has room; the batches stay the same."""
    size = 1 << 20
    spec = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=8, shuffle=True)
    with Session(partition, seed=5) as context:
        loader = context.make_loader(spec)
        expected = [contents(batch) for _ in range(2) for batch in loader]
    options = SamplingOptions(num_workers=2, concurrency=4, channel_size=max(1, room * size))
    with Session(partition, options, seed=5) as context, caplog.at_level("INFO"):
        producer = context._producer
        monkeypatch.setattr(producer, "_sizes", _AllOf(size))
        allowed, counts, found = [], [], []
        ask = producer._in_flight.allowed
        monkeypatch.setattr(producer._in_flight, "allowed", lambda *given: allowed.append(ask(*given)) or allowed[-1])
        loader = context.make_loader(spec)
        for batch in (batch for _ in range(2) for batch in loader):
            found.append(contents(batch))
            counts += [len(run.tasks) for run in producer._runs.values()]
            del batch
    assert found == expected
    assert max(counts) == max(allowed) == most
    assert allowed[:2] == [2, most]  # also where the second epoch begins, which knows the size
    assert allowed.count(2) == (1 if most > 2 else len(allowed))
    (line,) = [r.getMessage() for r in caplog.records if "in flight" in r.getMessage()]
    assert f"up to {most} of 8 (num_workers 2 x concurrency 4), 1.05 MB each" in line


class _AllOf(dict):
    """Sizes of batches that are all the same, once one is known."""

    def __init__(self, size):
        self._size = size

    def __setitem__(self, key, value):
        super().__setitem__(key, self._size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_neighbors": [3, 0]}, r"\[3, 0\]. Drop the hop"),
        ({"num_neighbors": [-2]}, "one integer per hop"),
        ({"num_neighbors": {"a__b__c": [1]}}, "unknown"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, got 0"),
        ({"split": "tset"}, "no such split. It has: test, train, val"),
        ({"split": None, "seeds": torch.tensor([0, 300]).numpy()}, "300 at position 1 is not a node"),
        ({"split": None, "seeds": torch.tensor([0.5]).numpy()}, "one-dimensional array of node ids"),
        ({"split": None, "node_type": "paper"}, "expected one of node"),
    ],
)
def test_bad_input_is_one_clear_error(partition, change, message):
    with pytest.raises(ValueError, match=message):
        make(partition, **change)


def test_more_ranks_than_seeds(partition):
    with (
        Session(partition, ranks=Ranks(0, 4)) as context,
        pytest.raises(OptionError, match="there are 3 for world size 4"),
    ):
        context.make_loader(LoaderSpec(name="t", seeds=torch.arange(3).numpy(), num_neighbors=[1], batch_size=1))


def test_seeds_of_one_rank(partition):
    """Ranks with seeds of their own agree on the steps: shorter ones start over in training, stop in evaluation."""
    own = [torch.arange(20).numpy(), torch.arange(50, 57).numpy()]
    states = []
    for exact, lengths in ((False, [5, 5]), (True, [5, 2])):
        for rank in (0, 1):
            context = Session(partition, seed=5, ranks=Ranks(rank, 2, gather_counts=lambda _: [5, 2]))
            with context:
                spec = LoaderSpec(
                    name="t", seeds=own[rank], per_rank=True, num_neighbors=[2], batch_size=4, exact=exact
                )
                loader = context.make_loader(spec)
                batches = [(b.n_id[: b.batch_size].tolist(), contents(b)) for b in loader]
                assert len(batches) == len(loader) == lengths[rank]
                assert {n for ids, _ in batches for n in ids} == set(own[rank].tolist())
                assert len({d for _, d in batches}) == len(batches)  # started over, but with new draws
                states.append(loader.state_dict())
    assert states[0] == states[1]


def test_seeds_of_one_rank_need_all_of_them(partition):
    spec = LoaderSpec(name="t", seeds=torch.arange(3).numpy(), per_rank=True, num_neighbors=[2], batch_size=4)
    with Session(partition, ranks=Ranks(world_size=2)) as context, pytest.raises(OptionError, match="gather_counts"):
        context.make_loader(spec)
    with (
        Session(partition, ranks=Ranks(world_size=2, gather_counts=lambda _: [1, 0])) as context,
        pytest.raises(OptionError, match="rank 1 has no seeds"),
    ):
        context.make_loader(spec)
    with pytest.raises(OptionError, match="per_rank needs seeds"):
        LoaderSpec(name="t", split="train", per_rank=True, num_neighbors=[2], batch_size=4)
