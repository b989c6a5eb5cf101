"""What excluding edges does to small graphs that one can see through."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch_geometric.data import Data

from glt_lightning.base import DataError
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import ExcludedEdges
from glt_lightning.sampling import SamplerConfig, k_hop, neighbor_source
from tests.helpers.graphs import HETERO, TypedGraph, excluded_edges, random_data, random_excluded, random_seeds
from tests.helpers.owners import split_up
from tests.helpers.partitions import gids_of, partitioned


def of_edges(folder, nodes: int, *edges: tuple[int, int], parts: int = 1) -> LocalPartition:
    """edges: (source, destination)"""
    edge_index = torch.tensor(edges, dtype=torch.int64).T.contiguous()
    return partitioned(Data(num_nodes=nodes, edge_index=edge_index), folder, parts)


class Sampled:
    """One-hop batches of the user's nodes without some of the user's edges, as (source, destination) with repetition."""

    def __init__(self, whole: LocalPartition, fanout: int, **options: bool) -> None:
        self._gid = gids_of(whole)[0]
        self._uid = np.argsort(self._gid)
        self._source = neighbor_source(whole, SamplerConfig(0, ((fanout,),), **options))

    def edges(self, seeds: list[int], *without: tuple[int, int], key: int = 0) -> list[tuple[int, int]]:
        src, dst = self._gid[np.array(without, dtype=np.int64).reshape(-1, 2).T]
        found = k_hop(self._source, {0: self._gid[seeds]}, key, ExcludedEdges.of({0: (dst, src)}))
        ends = (self._uid[found.gid[0][lids]].tolist() for lids in (found.src[0], found.dst[0]))
        return sorted(zip(*ends, strict=True))


@pytest.mark.parametrize("parts", [1, 2])
def test_no_message_over_a_target_edge(tmp_path, parts):
    """The undirected path 0 - 1 - 2 with the target (0, 1). Oracle O5 of the study of loaders: what DGL's `exclude` has to give
    before the draw, not after it (dgl#3408, #5527)."""
    path = Sampled(of_edges(tmp_path, 3, (0, 1), (1, 0), (1, 2), (2, 1), parts=parts), -1)
    assert path.edges([0, 1]) == [(0, 1), (1, 0), (2, 1)]
    assert path.edges([0, 1], (0, 1)) == [(1, 0), (2, 1)]
    assert path.edges([0, 1], (0, 1), (1, 0)) == [(2, 1)]
    assert path.edges([0, 1], (0, 2)) == [(0, 1), (1, 0), (2, 1)]  # no edge


def test_the_fan_out_is_filled_from_what_is_left(tmp_path):
    """O5: with a fan-out of 1, and both directions excluded, 2 -> 1 is always found (in DGL half of the time nothing)."""
    path = Sampled(of_edges(tmp_path, 3, (0, 1), (1, 0), (1, 2), (2, 1)), 1)
    assert all(path.edges([0, 1], (0, 1), (1, 0), key=key) == [(2, 1)] for key in range(50))


def test_all_parallel_copies_go(tmp_path):
    """O5: two edges 0 -> 1 are both gone, also with edges of another source between them in no order."""
    whole = of_edges(tmp_path, 3, (0, 1), (2, 1), (0, 1))
    for replace in (False, True):
        assert Sampled(whole, 3, replace=replace).edges([1], (0, 1)) == [(2, 1)] * (3 if replace else 1)
    assert Sampled(whole, 2).edges([1], (0, 1), (2, 1)) == []


@pytest.mark.parametrize("replace", [False, True])
def test_the_rest_is_drawn_uniformly(tmp_path, replace):
    """O6, found there by enumeration: of a row of six without {1, 4}, two picks are each of the six pairs of {0, 2, 3, 5} with
    probability 1/6; with replacement each of the ten multisets as often as its orders say."""
    star = Sampled(of_edges(tmp_path, 7, *((i, 6) for i in range(6))), 2, replace=replace)
    found = Counter(tuple(src for src, _ in star.edges([6], (1, 6), (4, 6), key=key)) for key in range(4000))
    rest = (0, 2, 3, 5)
    expected = {(a, b): 1 if not replace or a == b else 2 for a in rest for b in rest if a < b or (a == b and replace)}
    assert set(found) == set(expected)
    counts = np.array([[found[pair], weight] for pair, weight in expected.items()]).T
    assert chisquare(counts[0], counts[1] * 4000 / counts[1].sum()).pvalue > 1e-4


@pytest.mark.diagonal
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_no_excluded_edge_is_in_a_batch_and_other_rows_do_not_change(tmp_path, seed, parts):
    """O7. That all sources agree is in test_typed_seeds.py."""
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO)
    whole = partitioned(random_data(rng, graph), tmp_path, parts)
    here, remote = split_up(whole, [[p] for p in range(parts)])
    gid_of, seeds, excluded = gids_of(whole), random_seeds(graph, rng), random_excluded(graph, rng)
    uid_of = [np.argsort(gids - gids.min()) for gids in gid_of]
    gids = {t: gid_of[t][ids] for t, ids in seeds.items()}
    source = neighbor_source(here, SamplerConfig(0, ((4, 4, 4), (2, 2, 2)), with_edge=True), remote=remote)

    def rows(without: ExcludedEdges | None) -> dict[tuple[int, int], set[int]]:
        """(edge type, destination) -> edge rows, of the first hop, where the same nodes are expanded."""
        found, result = k_hop(source, gids, seed, without), {}
        for r, (src_type, dst_type) in enumerate(zip(source.view.src_types, source.view.dst_types, strict=True)):
            src, dst = (
                uid_of[t][found.gid[t][lids] - gid_of[t].min()]
                for t, lids in ((src_type, found.src[r]), (dst_type, found.dst[r]))
            )
            if without is not None:
                assert not set(zip(dst.tolist(), src.tolist(), strict=True)) & excluded.get(r, set())
            first = slice(int(found.edges_per_hop[r, 0]))
            for uid, edge_row in zip(dst[first].tolist(), found.edge_row[r][first].tolist(), strict=True):
                result.setdefault((r, uid), set()).add(edge_row)
        return result

    plain, changed = rows(None), rows(excluded_edges(graph, excluded, gid_of))
    hit = {(r, dst) for r, pairs in excluded.items() for dst, _ in pairs}
    for row in plain.keys() | changed.keys():
        assert row in hit or plain[row] == changed[row]


def test_what_is_no_list_of_edges_is_refused(tmp_path):
    ids = np.arange(3)
    with pytest.raises(DataError, match=r"excluded: edge type 0: expected two arrays \[X\] of gids, ascending"):
        ExcludedEdges({0: (ids[::-1], ids)})
    for bad in (ids[:2], ids.astype(np.float32), ids.reshape(1, 3)):
        with pytest.raises(DataError, match="excluded: edge type 0"):
            ExcludedEdges.of({0: (ids, bad)})
    whole = of_edges(tmp_path, 3, (0, 1), parts=2)
    here, remote = split_up(whole, [[0], [1]])
    for source in (
        neighbor_source(whole, SamplerConfig(0, ((1,),))),
        neighbor_source(here, SamplerConfig(0, ((1,),)), remote=remote),
    ):
        with pytest.raises(DataError, match="excluded: dst: gid 3 at position 0 is no node of type 0"):
            k_hop(source, {0: ids}, 0, ExcludedEdges.of({0: (ids + 3, ids)}))
        with pytest.raises(DataError, match="excluded: expected the index of an edge type, 0 to 0, got 1"):
            k_hop(source, {0: ids}, 0, ExcludedEdges.of({1: (ids, ids)}))
