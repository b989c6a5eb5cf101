"""Batches that are asked for one by one, and one batch of several: each keeps its nodes, edges and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.loader import AskedSample, LinkSpec, LoaderSpec, Session
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero

COUNTS = {"num_sampled_nodes", "num_sampled_edges"}


def stores(batch: Any) -> dict[Any, Any]:
    if isinstance(batch, Data):
        return {"node": batch, ("node", "to", "node"): batch}
    return {**dict(batch.node_items()), **dict(batch.edge_items())}


def split(joined: Any, parts: list[Any]) -> list[dict[str, torch.Tensor]]:
    """The arrays of each sample in a joined batch, hop by hop by the numbers of the samples: a second, slower way."""
    found: list[dict[str, Any]] = [{} for _ in parts]
    each = [stores(part) for part in parts]
    lids: list[dict[str, dict[int, int]]] = [{} for _ in parts]
    for of, store in stores(joined).items():
        counts = "num_sampled_nodes" if isinstance(of, str) else "num_sampled_edges"
        where = 0
        mine: list[list[int]] = [[] for _ in parts]
        for hop in range(len(store[counts])):
            for number, part in enumerate(each):
                mine[number] += range(where, where + part[of][counts][hop])
                where += part[of][counts][hop]
        for number in range(len(parts)):
            if isinstance(of, str):
                lids[number][of] = {place: lid for lid, place in enumerate(mine[number])}
            for name in ("n_id", "x", "e_id", "edge_attr"):
                if name in each[number][of] and name.startswith("e") != isinstance(of, str):
                    found[number][f"{of}/{name}"] = store[name][mine[number]]
            if not isinstance(of, str):
                ends = store.edge_index[:, mine[number]].tolist()
                rows = [[lids[number][t][lid] for lid in row] for t, row in zip((of[0], of[2]), ends, strict=True)]
                found[number][f"{of}/edge_index"] = torch.tensor(rows, dtype=torch.int64).view(2, -1)
    return found


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("disjoint", [False, True])
def test_joined_samples_are_those_of_each(tmp_path, make, disjoint) -> None:
    graph = partitioned(make(), tmp_path, 2)
    node_type = None if make is small_graph else "paper"
    with Session(graph, SamplingOptions(with_edge=True), seed=3) as session:
        asked = []
        for key, seeds in enumerate(([4, 9], [9], [1, 2, 3])):
            spec = LoaderSpec(
                name="own",
                seeds=np.array(seeds),
                node_type=node_type,
                num_neighbors=[4, 3],
                batch_size=9,
                disjoint=disjoint,
            )
            asked.append(session.ask(spec, key))
        again = session.ask(spec, 2)
        parts, joined = [AskedSample.join([each]) for each in asked], AskedSample.join(asked)
        assert contents(again.sample) == contents(asked[-1].sample)
        assert again.digest == asked[-1].digest
        assert session.ask(spec, 3).digest != again.digest
    store = joined if node_type is None else joined[node_type]
    assert store.batch_size == 6
    assert store.n_id[:6].tolist() == [4, 9, 9, 1, 2, 3]
    if disjoint:
        assert store.batch[:6].tolist() == [*range(6)]
    for found, part in zip(split(joined, parts), parts, strict=True):
        for name, values in found.items():
            of, _, field = name.rpartition("/")
            expected = next(store for key, store in stores(part).items() if str(key) == of)[field]
            assert torch.equal(values, torch.as_tensor(expected)), name
    for key, store in stores(joined).items():  # layers rely on it
        if not isinstance(key, str):
            assert (store.edge_index[1].diff() >= 0).all()


def test_joined_pairs_keep_their_ends(tmp_path) -> None:
    with Session(partitioned(small_graph(), tmp_path, 2), SamplingOptions(), seed=3) as session:
        edges = [np.array([[4, 9], [9, 4]]), np.array([[9], [9]]), np.array([[1, 1, 2], [2, 3, 1]])]
        specs = [LinkSpec(name="own", edge_label_index=e, num_neighbors=[3], batch_size=9) for e in edges]
        joined = AskedSample.join([session.ask(spec, 7) for spec in specs])
        assert joined.n_id[joined.edge_label_index].tolist() == np.concatenate(edges, axis=1).tolist()
        assert len(joined.input_id) == 6
        triplets = LinkSpec(
            name="own", edge_label_index=edges[0], num_neighbors=[3], batch_size=9, neg_sampling=("triplet", 2)
        )
        with pytest.raises(DataError, match="cannot be joined"):
            AskedSample.join([session.ask(triplets, 7)] * 2)
        other = LinkSpec(name="own", edge_label_index=edges[0], num_neighbors=[2], batch_size=9)
        with pytest.raises(OptionError, match="one configuration"):
            AskedSample.join([session.ask(specs[0], 7), session.ask(other, 7)])
        with pytest.raises(DataError, match="at most 100 "):
            session.ask(specs[0], 7, most_bytes=100)


def test_a_few_seeds_have_the_gids_of_all(tmp_path) -> None:
    graph = partitioned(small_graph(), tmp_path, 3)
    whole = graph.seeds(0).gids
    ids = np.array([7, 299, 0, 7])
    for _ in range(2):  # the first look compares all ids
        assert graph.seeds(0, ids).gids.tolist() == whole[ids].tolist()
    with pytest.raises(DataError, match="300 at position 0 is not a node"):
        graph.seeds(0, np.array([300]))
