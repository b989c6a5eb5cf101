"""`node_split` and `edge_split`: every selected row once, evenly, and near its rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning import DistGraph, DistTensor, edge_split, node_split
from glt_lightning.base import DataError, OptionError
from glt_lightning.tensors import RowSpace
from glt_lightning.tensors.space import Homes, local_share, split_rows
from tests.helpers.partitions import partitioned, small_graph


def _homes(hosts: int, ranks: int, parts: int) -> Homes:
    return Homes(0, tuple(r // ranks for r in range(hosts * ranks)), tuple(p % hosts for p in range(parts)))


def _space(rng: np.random.Generator, rows: int, parts: int) -> RowSpace:
    cuts = np.sort(rng.integers(0, rows + 1, parts - 1))
    return RowSpace("node", "node", 0, np.array([0, *cuts, rows], dtype=np.int64))


def _split(selected: np.ndarray, space: RowSpace, homes: Homes, force_even: bool = True) -> list[np.ndarray]:
    ranks = range(len(homes.host_of_rank))
    return [split_rows(selected, space, homes, r, homes.host_of_rank[r], force_even=force_even) for r in ranks]


@pytest.mark.parametrize(("hosts", "ranks"), [(h, r) for h in range(1, 5) for r in range(1, 5)])
def test_each_row_once_and_evenly(hosts: int, ranks: int) -> None:
    rng = np.random.default_rng(hosts * 10 + ranks)
    for parts in range(1, 8):
        homes = _homes(hosts, ranks, parts)
        for n in range(0, 51, 5):
            space = _space(rng, max(n, 1) * 2, parts)
            selected = np.sort(rng.choice(space.num_rows, n, replace=False))
            shares = _split(selected, space, homes)
            assert np.array_equal(np.sort(np.concatenate(shares)), selected)
            sizes = [len(share) for share in shares]
            assert max(sizes) - min(sizes) <= 1
            assert all((np.diff(share) > 0).all() for share in shares)
            own = np.array([p % hosts for p in range(parts)])[space.parts_of(selected)]
            in_order = np.concatenate([selected[own == h] for h in range(hosts)])
            for host, piece in enumerate(np.array_split(in_order, hosts)):
                of_host = np.concatenate(shares[host * ranks : (host + 1) * ranks])
                assert np.array_equal(np.sort(of_host), np.sort(piece))
            local = [local_share(share, space, homes, r) for r, share in enumerate(shares)]
            brute = [
                np.mean([own[selected == row] == r // ranks for row in s]) if len(s) else 1
                for r, s in enumerate(shares)
            ]
            assert local == pytest.approx(brute)


@pytest.mark.parametrize("world", [1, 2, 5])
def test_with_as_many_parts_as_ranks_it_is_dgls_answer(world: int) -> None:
    rng = np.random.default_rng(world)
    space, homes = _space(rng, 100, world), _homes(world, 1, world)
    selected = np.flatnonzero(rng.random(100) < 0.4)
    for share, expected in zip(_split(selected, space, homes), np.array_split(selected, world), strict=True):
        assert np.array_equal(share, expected)


def test_uneven_gives_each_host_its_own_rows() -> None:
    rng = np.random.default_rng(0)
    space, homes = _space(rng, 100, 5), _homes(2, 2, 5)
    selected = np.flatnonzero(rng.random(100) < 0.4)
    shares = _split(selected, space, homes, force_even=False)
    assert np.array_equal(np.sort(np.concatenate(shares)), selected)
    for rank, share in enumerate(shares):
        assert (space.parts_of(share) % 2 == rank // 2).all()
    for host in range(2):
        assert abs(len(shares[2 * host]) - len(shares[2 * host + 1])) <= 1


def test_uneven_hosts_cannot_be_split_evenly() -> None:
    homes = Homes(0, (0, 0, 1), (0,))
    with pytest.raises(OptionError, match=r"hosts have 2, 1 ranks\. Run as many on each host"):
        split_rows(np.arange(3), RowSpace("node", "node", 0, np.array([0, 3])), homes, 0, 0, force_even=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    partitioned(small_graph(), folder, 3).close()
    return folder / "parts3"


def test_masks_tensors_and_rows_give_the_same(folder: Path) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    with DistGraph(folder) as graph:
        stored = graph.ndata["train_mask"]
        mask = DistTensor((300,), torch.bool, "mask")
        mask[:] = stored[:]
        rows = stored[:].nonzero()[:, 0]
        found = [node_split(given) for given in (stored, mask, stored[:], rows, rows.flip(0), rows.tolist())]
        assert all(torch.equal(each, rows) for each in found)  # there is one rank
        assert torch.equal(node_split([]), torch.empty(0, dtype=torch.int64))
        edges = torch.arange(0, graph.num_edges(), 5)
        assert torch.equal(edge_split(edges), edges)
    assert (torch.rand(1), np.random.rand()) == expected  # the global generators are left alone


def test_mistakes(folder: Path) -> None:
    with DistGraph(folder) as graph:
        with pytest.raises(DataError, match="rows: 300 at position 1 is no row"):
            node_split([3, 300])
        with pytest.raises(
            DataError, match=r"node_split: expected a mask of bool \[300\] of 'node', got DistTensor\('x'"
        ):
            node_split(graph.ndata["x"])
        with pytest.raises(DataError, match="type: expected one of 'node__to__node'; got 'node'"):
            edge_split(graph.ndata["train_mask"])
        with pytest.raises(OptionError, match="rank: expected 0 to 0, got 1"):
            node_split([3], rank=1)
