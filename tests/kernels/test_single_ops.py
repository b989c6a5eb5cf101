"""sample_rows, relabel and gather against the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError
from glt_lightning.kernels import Shards, relabel
from tests.helpers.examples import examples
from tests.helpers.graphs import HETERO, TypedGraph, cut
from tests.helpers.rows import sample_rows
from tests.reference import ops as reference


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    fanout=st.sampled_from([-1, 1, 3, 50]),
    replace=st.booleans(),
    parts=st.sampled_from([1, 4]),
    threads=st.sampled_from([1, 3]),
    key=st.integers(0, 2**64 - 1),
    hop=st.integers(0, 5),
)
def test_sample_rows(seed, fanout, replace, parts, threads, key, hop):
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO).weigh(rng)
    pieces = cut(graph, parts, rng)
    for r, edge_type in enumerate(graph.reference()):
        rows = rng.integers(0, graph.num_nodes[edge_type.destination], int(rng.integers(0, 90)))
        counts, neighbors, edge_rows = sample_rows(
            pieces.view,
            r,
            pieces.gid_of[edge_type.destination][rows],
            fanout,
            batch_key=key,
            hop=hop,
            replace=replace,
            with_edge=True,
            threads=threads,
        )
        users = torch.from_numpy(rows)
        want_counts, at = reference.sample_rows(
            edge_type.indptr,
            users,
            users,
            fanout,
            batch_key=key,
            hop=hop,
            edge_type_key=edge_type.key,
            replace=replace,
            sums=edge_type.sums,
        )
        assert counts.tolist() == want_counts.tolist()
        assert neighbors.tolist() == pieces.gid_of[edge_type.source][edge_type.neighbors[at].numpy()].tolist()
        assert pieces.edge_ids[r][edge_rows].tolist() == edge_type.edge_ids[at].tolist()


def test_sample_rows_refuses_other_types():
    rng = np.random.default_rng(1)
    graph = TypedGraph.random(rng, HETERO)
    pieces = cut(graph, 1, rng)
    other = 1 - int(pieces.view.dst_types[0])
    with pytest.raises(DataError, match="position 0"):
        sample_rows(pieces.view, 0, pieces.gid_of[other][:1], 2, batch_key=0, hop=0)


@settings(max_examples=examples(100), deadline=None)
@given(
    ids=st.lists(st.integers(0, 60), max_size=200),
    known=st.lists(st.integers(0, 60), max_size=20),
    wide=st.booleans(),
    offset=st.sampled_from([0, 2**31 - 30, 2**32 - 70]),
)
def test_relabel(ids, known, wide, offset):
    ids, known = (np.array(v, dtype=np.int64) + offset for v in (ids, known))
    unique, lids = relabel(ids, known, wide=wide)
    want_unique, want_lids = reference.relabel(torch.from_numpy(ids), torch.from_numpy(known))
    assert unique.tolist() == want_unique.tolist()
    assert lids.tolist() == want_lids.tolist()


def test_relabel_beyond_32_bits():
    ids = np.array([2**40, 5, 2**40, 2**62], dtype=np.int64)
    unique, lids = relabel(ids)
    assert unique.tolist() == [2**40, 5, 2**62]
    assert lids.tolist() == [0, 1, 0, 2]


def test_relabel_refuses_negative_ids():
    with pytest.raises(DataError, match="id -3 at position 1"):
        relabel(np.array([1, -3]))


@settings(max_examples=examples(100), deadline=None)
@given(
    dtype=st.sampled_from([np.float32, np.float16, np.int64, np.int8, np.bool_, np.float64]),
    row_shape=st.sampled_from([(), (1,), (3,), (17,), (100,), (2, 5)]),
    parts=st.integers(1, 12),
    threads=st.sampled_from([1, 3]),
    start=st.sampled_from([0, 2**31 - 3]),
    seed=st.integers(0, 2**32),
)
def test_gather(dtype, row_shape, parts, threads, start, seed):
    rng = np.random.default_rng(seed)
    shards = [rng.integers(0, 2, (int(rng.integers(0, 9)), *row_shape)).astype(dtype) for _ in range(parts)]
    if seed % 2:  # some lie one behind the other in memory, as new nodes of an overlay do
        cuts = np.sort(rng.integers(0, parts + 1, 2))
        some = shards[slice(*cuts)]
        shards[slice(*cuts)] = np.split(np.concatenate(some), np.cumsum([*map(len, some)])[:-1]) if some else []
    total = sum(map(len, shards))
    rows = rng.integers(0, total, int(rng.integers(0, 700))) if total else np.empty(0, dtype=np.int64)
    got = Shards(shards, start=start).gather(rows + start, threads=threads)
    want = reference.gather([torch.from_numpy(s) for s in shards], torch.from_numpy(rows))
    assert got.dtype == dtype
    assert np.array_equal(got, want.numpy())


@pytest.mark.parametrize("bad", [4, 11, -1])
def test_gather_refuses_ids_outside(bad):
    shards = Shards([np.zeros((3, 2)), np.zeros((3, 2))], start=5)
    with pytest.raises(DataError, match=f"id {bad} at position 2"):
        shards.gather(np.array([5, 10, bad]))


def test_gather_refuses_shards_that_differ():
    with pytest.raises(DataError, match="float64 rows of shape"):
        Shards([np.zeros((3, 2)), np.zeros((3, 3))])


def test_gather_takes_ids_of_any_integers_and_strides():
    rows = np.arange(12.0).reshape(6, 2)
    ids = np.array([5, 9, 0, 9, 3, 9])[::2]
    for asked in (ids, ids.astype(np.int32)):
        assert np.array_equal(Shards([rows]).gather(asked), rows[[5, 0, 3]])
