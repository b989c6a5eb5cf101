"""Transforms of PyG before partitioning: their result is stored, and they make the folder another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import transforms as T
from torch_geometric.data import Data

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import GraphSource, open_source, partition_dir, partition_graph
from glt_lightning.partition.sources.tables.encoding import encode_rows
from glt_lightning.partition.sources.transformed import TransformedSource
from tests.partition.sources.test_pyg import data, hetero

PYG = "torch_geometric.transforms"


def transformed(graph: Any, *transforms: Any, seed: int = 0) -> TransformedSource:
    return TransformedSource(open_source(graph, "."), list(transforms), seed)


def stored(source: GraphSource, folder: Path) -> Mapping[str, Any]:
    """Checksums of all that is stored of a graph."""
    return partition_graph(source, folder, PartitionOptions()).arrays


def test_same_as_transforming_the_object_oneself(tmp_path: Path) -> None:
    chain = [f"{PYG}.NormalizeFeatures", {"class_path": f"{PYG}.AddRandomWalkPE", "init_args": {"walk_length": 3}}]
    own = T.AddRandomWalkPE(walk_length=3)(T.NormalizeFeatures()(data()))
    source = transformed(data(), *chain)
    assert source.node_attrs(NODE)["random_walk_pe"].shape == (6, 3)
    assert stored(source, tmp_path / "a") == stored(open_source(own, tmp_path), tmp_path / "b")
    graph = hetero()
    undirected = transformed(graph, f"{PYG}.ToUndirected")
    expected = open_source(T.ToUndirected()(graph.clone()), tmp_path)
    assert stored(undirected, tmp_path / "c") == stored(expected, tmp_path / "d")
    assert graph.edge_types == hetero().edge_types  # what was given is left as it is


def test_part_of_the_folders_name_and_record(tmp_path: Path) -> None:
    plain, options = open_source(data(), tmp_path), PartitionOptions()
    sources = [plain, transformed(data(), f"{PYG}.NormalizeFeatures"), transformed(data(), f"{PYG}.ToUndirected")]
    sources.append(transformed(data(), {"class_path": f"{PYG}.ToUndirected", "init_args": {"reduce": "mean"}}))
    folders = {partition_dir(tmp_path, source, options, None, "none") for source in sources}
    assert len(folders) == 4
    manifest = partition_graph(sources[3], tmp_path / "p", options)
    assert manifest.made_by["transforms"] == [f'{PYG}.ToUndirected({{"reduce": "mean"}})']
    assert "transforms" not in partition_graph(plain, tmp_path / "q", options).made_by
    with pytest.raises(Exception, match="transforms: "):
        partition_graph(sources[2], tmp_path / "p", options)


def test_random_split_is_the_same_each_time() -> None:
    split = {"class_path": f"{PYG}.RandomNodeSplit", "init_args": {"num_val": 2, "num_test": 2}}
    bare = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=40, y=torch.zeros(40, dtype=torch.long))
    one, same, other = (transformed(bare, split, seed=seed).splits for seed in (0, 0, 1))
    assert set(one) == {"train", "val", "test"}
    assert {n: i.tolist() for n, (_, i) in one.items()} == {n: i.tolist() for n, (_, i) in same.items()}
    assert one["val"][1].tolist() != other["val"][1].tolist()


def test_nodes_that_go_leave_their_numbers_behind(tmp_path: Path) -> None:
    source = transformed(data(), f"{PYG}.LargestConnectedComponents")
    assert source.node_attrs(NODE)["source_id"][:].tolist() == [0, 1, 2]
    assert "source_id" not in transformed(data(), f"{PYG}.ToUndirected").node_attrs(NODE)
    (tmp_path / "n.csv").write_text("name,y\n" + "".join(f"n{i},{i % 2}\n" for i in range(4)))
    (tmp_path / "e.csv").write_text("a,b\nn0,n1\n")
    tables = {
        "nodes": {"path": str(tmp_path / "n.csv"), "id": "name", "label": "y"},
        "edges": {"path": str(tmp_path / "e.csv"), "source": "a", "destination": "b"},
    }
    inner = open_source(tables, tmp_path)
    assert TransformedSource(inner, [f"{PYG}.ToUndirected"], 0).edges(EDGE).num_edges == 2
    with pytest.raises(DataError, match="changed which nodes of type 'node' there are, but the ids of a table"):
        _ = TransformedSource(inner, [f"{PYG}.LargestConnectedComponents"], 0).num_nodes


def test_the_encoding_of_tables_stays(tmp_path: Path) -> None:
    rows = "".join(f"n{i},{i % 2},{('a', 'b', 'c')[i % 3]},{i}\n" for i in range(9))
    (tmp_path / "n.csv").write_text(f"name,y,word,number\n{rows}")
    (tmp_path / "e.csv").write_text("a,b\nn0,n1\n")
    nodes = {"path": str(tmp_path / "n.csv"), "id": "name", "label": "y", "features": ["word", "number"]}
    nodes["encode"] = {"word": "code", "number": "number"}
    tables = {"nodes": nodes, "edges": {"path": str(tmp_path / "e.csv"), "source": "a", "destination": "b"}}
    source = TransformedSource(open_source(tables, tmp_path), [f"{PYG}.ToUndirected"], 0)
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions())
    assert manifest.num_categories == {NODE: (5,)}
    again = encode_rows(tmp_path / "p", {"word": ["b", "new"], "number": [4, 4]})
    assert (again["x"].tolist(), again["x_codes"].tolist()) == ([[0], [0]], [[2], [0]])
    without = TransformedSource(
        open_source(tables, tmp_path), ["tests.partition.sources.test_transformed.DropCodes"], 0
    )
    assert without.num_categories == {}


class DropCodes(T.BaseTransform):
    def forward(self, graph: Any) -> Any:
        del graph.x_codes
        return graph


@pytest.mark.parametrize(
    ("transforms", "said"),
    [
        ([3], "transforms: expected a class path, or class_path and init_args; got 3"),
        ([T.NormalizeFeatures()], "expected a class path"),
        ([f"{PYG}.NormaliseFeatures"], "transforms: cannot import"),
        ([f"{PYG}.AddRandomWalkPE"], "AddRandomWalkPE needs walk_length. Give"),
        (
            [{"class_path": f"{PYG}.ToUndirected", "init_args": {"reduced": "mean"}}],
            "has no argument 'reduced'.*Did you mean",
        ),
        ([f"{PYG}.RandomLinkSplit"], "gives tuple; expected one Data or HeteroData"),
        ([f"{PYG}.ToSparseTensor"], "has no edge_index|failed"),
        ([f"{PYG}.Cartesian"], "Cartesian.* failed"),
    ],
)
def test_mistakes(transforms: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        _ = transformed(data(), *transforms).num_nodes


def test_a_split_with_repeated_nodes_is_refused() -> None:
    graph = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, train_idx=torch.tensor([2, 2]))
    with pytest.raises(DataError, match="splits: train: lists nodes several times, which transforms cannot keep"):
        _ = transformed(graph, f"{PYG}.ToUndirected").num_nodes


def test_bfloat16_stays(tmp_path: Path) -> None:
    graph = data()
    graph.x = graph.x.bfloat16()
    source = transformed(graph, f"{PYG}.ToUndirected")
    assert np.array_equal(source.node_attrs(NODE)["x"][:], open_source(graph, tmp_path).node_attrs(NODE)["x"][:])
