"""Partitions of other systems become ours: the same graph, parts and ids."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning import LocalPartition
from glt_lightning.errors import DataError, OptionError
from glt_lightning.partition.sources.others.convert import convert_partition, read_labels
from glt_lightning.partition.verify import verify_partition
from glt_lightning.progress import Progress
from glt_lightning.tensors.dist_graph import DistGraph
from tests.helpers.partitions import small_graph, small_hetero
from tests.partition.others.accuracy import accuracy, communities, require_same_accuracy
from tests.partition.others.writers import write_glt, write_pyg

WRITERS = {"glt": write_glt, "pyg": write_pyg}


def edges_of(graph: DistGraph, edge_type: tuple[str, str, str]) -> np.ndarray:
    """[2, E] in the user's ids, in the order of the user's columns."""
    rows = torch.arange(graph.num_nodes(edge_type[2]))
    found = graph.sample_neighbors(rows, -1, edge_type)
    ends = [graph.user_ids(end, t) for end, t in ((found.src, edge_type[0]), (found.dst, edge_type[2]))]
    return torch.stack(ends)[:, graph.user_ids(found.edge_row, edge_type).argsort()].numpy()


def require_same(
    folder: Path, data: Data | HeteroData, parts: dict, *, labels: bool = True, turned: bool = False
) -> None:
    verify_partition(folder, Progress(False))
    nodes = {store._key or "node": store for store in data.node_stores}
    edges = {store._key or ("node", "to", "node"): store for store in data.edge_stores}
    with DistGraph(folder) as graph:
        assert {*graph.node_types} == {*nodes}
        for t, store in nodes.items():
            rows = torch.arange(graph.num_nodes(t))
            ids = graph.user_ids(rows, t)
            assert torch.equal(torch.from_numpy(graph.space(t).parts_of(rows.numpy())), parts[t][ids])
            for name in ("x", "y") if labels else ("x",):
                if name in store:
                    assert torch.equal(graph.nodes[t].data[name][:], store[name][ids])
        for e, store in edges.items():
            stored = (e[2], f"rev_{e[1]}", e[0]) if turned and isinstance(data, HeteroData) else e
            expected = store.edge_index.flip(0) if turned else store.edge_index
            assert np.array_equal(edges_of(graph, stored), expected.numpy())


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("kind", WRITERS)
def test_the_same_graph_parts_and_ids(kind: str, make, tmp_path: Path) -> None:
    data = make()
    parts = WRITERS[kind](data, tmp_path / "theirs", 3)
    labels = {
        "paper" if isinstance(data, HeteroData) else "node": data["paper"].y if isinstance(data, HeteroData) else data.y
    }
    labels = {t: y.numpy() for t, y in labels.items()}
    manifest = convert_partition(kind, tmp_path / "theirs", tmp_path / "ours", labels=labels, progress=False)
    assert manifest.num_parts == 3
    require_same(tmp_path / "ours", data, parts)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_out_neighbours_and_weights_of_glt(make, tmp_path: Path) -> None:
    data = make()
    weights = torch.arange(data.edge_index.size(1)).float() if isinstance(data, Data) else None
    parts = write_glt(data, tmp_path / "theirs", 2, weights=weights)
    manifest = convert_partition("glt", tmp_path / "theirs", tmp_path / "ours", edge_dir="out", progress=False)
    require_same(tmp_path / "ours", data, parts, labels=False, turned=True)
    if weights is not None:
        assert "edge_weight" in manifest.edge_attrs(0)
        with DistGraph(tmp_path / "ours") as graph:
            assert len(graph.sample_neighbors([0], 1, prob="edge_weight").src) == 1


def test_edge_attributes_of_pyg_keep_their_edges(tmp_path: Path) -> None:
    data = small_graph()
    write_pyg(data, tmp_path / "theirs", 2)
    convert_partition("pyg", tmp_path / "theirs", tmp_path / "ours", progress=False)
    with DistGraph(tmp_path / "ours") as graph:
        columns = graph.user_ids(torch.arange(graph.num_edges()), ("node", "to", "node"))
        assert torch.equal(graph.edata["edge_attr"][:], data.edge_attr[columns])


class Runs:
    """What a hostile file would have a reader call."""

    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize("file", ["node_pb.pt", "part0/graph/rows.pt", "part0/node_feat/feats.pkl"])
def test_no_code_of_a_file_runs(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_glt(small_graph(), tmp_path / "theirs", 2)
    path = tmp_path / "theirs" / file
    if path.suffix == ".pt":
        torch.save(Runs(), path)
    else:
        path.write_bytes(pickle.dumps(Runs()))
    with pytest.raises(DataError, match=r"builtins\.print, which is not read|print"):
        convert_partition("glt", tmp_path / "theirs", tmp_path / "ours", progress=False)
    assert "this must not run" not in capsys.readouterr().out
    assert not (tmp_path / "ours").exists()


def test_damage_is_named(tmp_path: Path) -> None:
    folder, out = tmp_path / "theirs", tmp_path / "ours"
    write_glt(small_graph(), folder, 2)
    for kind, pattern in (("pyg", r"META\.json"), ("dgl", "--python: not given"), ("other", "--from")):
        with pytest.raises((DataError, OptionError), match=pattern):
            convert_partition(kind, folder, out)
    with pytest.raises(OptionError, match="is for DGL's partitions"):
        convert_partition("glt", folder, out, python="python")
    with pytest.raises(DataError, match="there is no node type 'paper'"):
        convert_partition("glt", folder, out, labels={"paper": np.zeros(3)})
    ids = torch.load(folder / "part0/graph/eids.pt")
    for wrong, message in ((ids[:3], r"edge_index: expected an id for each of"), (ids * 0, "id 0 is there")):
        torch.save(wrong, folder / "part0/graph/eids.pt")
        with pytest.raises(DataError, match=message):
            convert_partition("glt", folder, out)
    with pytest.raises(DataError, match="not found"):
        convert_partition("glt", tmp_path / "none", out)
    np.save(tmp_path / "y.npy", np.arange(5))
    assert read_labels([f"paper={tmp_path}/y.npy"])["paper"].tolist() == [0, 1, 2, 3, 4]
    assert [*read_labels([f"{tmp_path}/y.npy"])] == ["node"]
    assert not out.exists()
    with pytest.raises(OptionError, match="cannot run"):
        convert_partition("dgl", _dgl_config(tmp_path), out, python=str(tmp_path / "no-python"))


def _dgl_config(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    path.write_text('{"part-0": {}}')
    return path


def test_the_command_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from glt_lightning.lightning.cli.partition import run_partition

    data = small_graph()
    parts = write_glt(data, tmp_path / "theirs", 2)
    np.save(tmp_path / "y.npy", data.y.numpy())
    given = ["--from", "glt", tmp_path / "theirs", "--to", tmp_path / "ours", "--labels", tmp_path / "y.npy"]
    run_partition(list(map(str, given)), "partition")
    assert (
        f"converted {tmp_path}/theirs to {tmp_path}/ours: 2 parts, 300 nodes, 2,400 edges." in capsys.readouterr().out
    )
    require_same(tmp_path / "ours", data, parts)
    with pytest.raises(OptionError, match="expected one of glt, dgl, pyg"):
        run_partition(["--from", "euler", "x", "--to", "y"], "partition")
    LocalPartition.open(tmp_path / "ours").close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_it_trains_to_the_same_accuracy(kind: str, tmp_path: Path) -> None:
    data = communities()
    WRITERS[kind](data, tmp_path / "theirs", 2)
    convert_partition(
        kind, tmp_path / "theirs", tmp_path / "converted", labels={"node": data.y.numpy()}, progress=False
    )
    splits = {name: np.flatnonzero(data[f"{name}_mask"]) for name in ("train", "val", "test")}
    converted = accuracy(None, tmp_path / "converted", splits=splits)
    require_same_accuracy(accuracy(data, tmp_path / "own"), converted)
