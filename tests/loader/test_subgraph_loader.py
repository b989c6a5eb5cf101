"""Batches as subgraphs: GraphLearn-for-PyTorch's own graphs, PyG's ShaDow, and pairs of nodes as SEAL takes them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.loader.transforms import DRNL, drnl
from glt_lightning.workers import Ranks
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.loader.test_subgraph_type import rows_graph
from tests.workers.test_group import open_rank

PLAIN = {"name": "s", "batch_size": 5}


def test_two_graphs_of_graphlearn(tmp_path):
    """S1 and S2, as GLT's own tests have them; a node that comes twice among the seeds is in the batch once."""
    graph = rows_graph([0, 1, 7], [1, 3, 6], [2, 4, 6], [5], [1, 3], [0, 5], [0, 4], [7])
    with Session(partitioned(graph, tmp_path / "one", 2)) as context:
        (batch,) = context.make_subgraph_loader(LoaderSpec(**PLAIN, seeds=np.array([0, 3, 7]), num_neighbors=[-1, -1]))
        assert batch.node.tolist() == [0, 1, 3, 5, 6, 7]
        assert batch.edge.tolist() == [0, 1, 2, 3, 4, 5, 9, 12, 13, 14, 16]
        assert batch.mapping.tolist() == [0, 2, 5]
        assert "num_sampled_nodes" not in batch
        assert "num_sampled_edges" not in batch
    graph = rows_graph([0, 1], [1, 3], [2, 4], [5], [], [])
    with Session(partitioned(graph, tmp_path / "two")) as context:
        (batch,) = context.make_subgraph_loader(LoaderSpec(**PLAIN, seeds=np.array([0, 2, 1, 2, 4]), num_neighbors=[]))
        assert (batch.node.tolist(), batch.num_nodes) == ([0, 1, 2, 4], 4)
        assert batch.mapping.tolist() == [0, 2, 1, 2, 3]
        assert batch.edge.tolist() == [0, 1, 2, 4, 5]
        assert batch.node[batch.edge_index].tolist() == [[0, 1, 1, 2, 4], [0, 0, 1, 2, 2]]


def test_one_subgraph_for_each_root(tmp_path):
    """S3, as PyG's own test has it."""
    graph = rows_graph([1, 2, 3], [0, 2], [0, 1, 4, 5], [0], [2, 5], [2, 4])
    graph.x = torch.arange(6.0)[:, None]
    with Session(partitioned(graph, tmp_path, 2)) as context:
        spec = LoaderSpec(**PLAIN, seeds=np.array([0, 1]), num_neighbors=[3], disjoint=True)
        (batch,) = context.make_subgraph_loader(spec)
        assert batch.ptr.tolist() == [0, 4, 7]
        assert batch.batch.tolist() == [0] * 4 + [1] * 3
        assert batch.n_id[batch.root_n_id].tolist() == [0, 1]
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        of = batch.batch[batch.edge_index[1]]
        assert [sorted(batch.n_id[a:b].tolist()) for a, b in ((0, 4), (4, 7))] == [[0, 1, 2, 3], [0, 1, 2]]
        assert [sorted(batch.e_id[of == tree].tolist()) for tree in (0, 1)] == [[*range(7), 9], [0, 1, 3, 4, 5, 6]]
        assert (of.diff() >= 0).all()


def test_ptr_is_an_option_of_loaders(tmp_path):
    spec = LoaderSpec(name="s", split="train", num_neighbors=[3], batch_size=20, disjoint=True)
    with Session(partitioned(small_graph(), tmp_path)) as context:
        expected = [contents(batch) for batch in context.make_subgraph_loader(spec)]
        loader = context.make_loader(replace(spec, subgraph_type="induced", ptr=True))
        assert [contents(batch) for batch in loader] == expected
    for changes in ({}, {"subgraph_type": "induced", "disjoint": False}):
        with pytest.raises(
            OptionError, match=r"ptr: tells where the subgraph of each seed begins\. Set disjoint: true"
        ):
            replace(spec, ptr=True, **changes)


@pytest.mark.parametrize("disjoint", [False, True])
def test_who_makes_the_batches_does_not_matter(tmp_path, disjoint):
    data = small_graph()
    whole, cut = partitioned(data, tmp_path), partitioned(data, tmp_path, 2)
    spec = LoaderSpec(name="s", split="train", num_neighbors=[3, 2], batch_size=20, shuffle=True, disjoint=disjoint)

    def found(context):
        return [contents(batch) for batch in context.make_subgraph_loader(spec)]

    with Session(whole, seed=3) as context:
        expected = found(context)
        for batch in context.make_subgraph_loader(spec):
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    with Session(cut, SamplingOptions(num_workers=1), seed=3) as context:
        assert found(context) == expected
    with open_farm("in process") as farm:
        assert found(farm.context(farm.serve(cut).address)) == expected

    def of_rank(rank, exchange):
        with open_rank(cut, rank, 2, exchange, SamplingOptions()) as context:
            made = found(context)
            exchange("all done")
            return made

    for rank, made in enumerate(run_ranks(2, of_rank)):
        with Session(whole, seed=3, ranks=Ranks(rank, 2)) as context:
            assert made == found(context)


def test_what_subgraphs_cannot_be_of(tmp_path):
    with Session(partitioned(small_graph(), tmp_path / "one")) as context:
        for changes, message in (
            ({"edge_format": "edge_index"}, "edge_format: expected tensor"),
            ({"subgraph_type": "bidirectional"}, "subgraph_type: expected induced"),
        ):
            with pytest.raises(OptionError, match=message):
                context.make_subgraph_loader(LoaderSpec(**PLAIN, num_neighbors=[2], **changes))
    several, error = partitioned(small_hetero(), tmp_path / "two"), "expected a graph with one node type"
    with Session(several) as context, pytest.raises(OptionError, match=error):
        context.make_subgraph_loader(LoaderSpec(**PLAIN, node_type="paper", num_neighbors=[2]))


def undirected(pairs):
    edges = torch.tensor(pairs).T
    return torch.cat([edges, edges.flip(0)], dim=1)


def test_labels_of_drnl():
    """S5: the table, on ways of given lengths between two ends that have no edge; and what only one end reaches."""
    table = {
        (1, 1): 2,
        (1, 2): 3,
        (1, 3): 4,
        (2, 2): 5,
        (1, 4): 6,
        (2, 3): 7,
        (2, 4): 9,
        (3, 3): 10,
        (3, 4): 13,
        (4, 4): 17,
    }
    for (a, b), z in table.items():
        way = [0, *range(2, 1 + a + b), 1]  # nodes at 1, 2, ... from the first end
        found = drnl(undirected(list(pairwise(way))), torch.tensor([[0], [1]]), 2 + a + b)
        assert found[way[a]] == z, (a, b)
        assert found[way[b]] == z
        assert found[:2].tolist() == [1, 1]
        assert found[-1] == 0  # without an edge
    found = drnl(undirected([(0, 2), (2, 1), (1, 3), (0, 4), (4, 2)]), torch.tensor([[0], [1]]), 5)
    assert found.tolist() == [1, 1, 2, 0, 3]  # 3 reaches the first end through the second alone


def pairs_spec(**changes):
    edges = small_graph().edge_index[:, :40].numpy()
    loader = {"name": "seal", "edge_label_index": edges, "num_neighbors": [3, 2], "batch_size": 16}
    return LinkSpec(
        **loader
        | {"neg_sampling": "binary", "disjoint": True, "tree": "example", "subgraph_type": "induced"}
        | {"exclude_target_edges": "reverse"}
        | changes
    )


def test_both_ends_are_in_one_tree(tmp_path):
    data = small_graph()
    pairs = set(zip(*data.edge_index.tolist(), strict=True))
    with Session(partitioned(data, tmp_path, 2), seed=3) as context:
        for batch in context.make_loader(pairs_spec(transform=DRNL())):
            count, ends = len(batch.input_id), batch.edge_label_index
            assert ends.size(1) == 2 * count
            column = torch.arange(2 * count)
            assert torch.equal(batch.batch[ends], torch.stack([column, column]))
            assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
            users = batch.n_id[ends].T.tolist()
            gone = {(u, v) for u, v in users[:count]} | {(v, u) for u, v in users[:count]}
            for tree in range(2 * count):
                (mine,) = torch.nonzero(batch.batch == tree, as_tuple=True)
                nodes = set(batch.n_id[mine].tolist())
                edges = batch.edge_index[:, batch.batch[batch.edge_index[1]] == tree]
                found = set(map(tuple, batch.n_id[edges].T.tolist()))
                assert found == {(u, v) for u, v in pairs - gone if u in nodes and v in nodes}
                alone = drnl(edges, ends[:, tree : tree + 1], batch.num_nodes).clamp(max=20)
                assert torch.equal(batch.z[mine], alone[mine])
        with open_farm("in process") as farm:
            theirs = farm.context(farm.serve(partitioned(data, tmp_path, 2)).address)
            each = [[contents(b) for b in c.make_loader(pairs_spec())] for c in (context, theirs)]
            assert each[0] == each[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tree": "both"}, "tree: expected end, example; got 'both'"),
        ({"disjoint": False}, "tree: example needs disjoint: true"),
        ({"neg_sampling": ("triplet", 2)}, "tree: example needs negatives that are pairs"),
    ],
)
def test_trees_that_pairs_cannot_have(changes, message):
    with pytest.raises(OptionError, match=message):
        pairs_spec(**changes)


def test_drnl_of_other_batches(tmp_path):
    with Session(partitioned(small_graph(), tmp_path), seed=3) as context:
        with pytest.raises(DataError, match=r"DRNL: the two ends of a pair are in different trees. Set tree: example"):
            next(iter(context.make_loader(pairs_spec(tree="end", transform=DRNL()))))
        with pytest.raises(DataError, match="DRNL labels batches of edges in which the two ends"):
            next(iter(context.make_loader(LoaderSpec(**PLAIN, num_neighbors=[2], transform=DRNL()))))
        wide = next(iter(context.make_loader(pairs_spec(transform=DRNL(max_z=4, to="x")))))
        assert wide.x.shape == (wide.num_nodes, 3 + 5)
        assert (wide.x[:, 3:].sum(1) == 1).all()
    for arguments, message in (({"max_z": 0}, "max_z: expected an integer >= 1"), ({"to": "y"}, "to: expected x or z")):
        with pytest.raises(OptionError, match=message):
            DRNL(**arguments)
