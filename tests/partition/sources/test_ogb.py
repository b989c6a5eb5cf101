"""OGB data sets through OGB's own loader, from generated files: no network, no question, no trust in pickles."""

from __future__ import annotations

import builtins
import gzip
import http.server
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from glt_lightning.partition.sources.files import fetch_zip
from glt_lightning.partition.sources.ogb.layout import nan_to_unlabelled
from tests.helpers.ogb_layout import RawGraph, lay_out, lay_out_mag, lay_out_papers, write_table
from tests.helpers.partition_truth import edges_of, read_folder


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: object) -> str:
        raise AssertionError(f"asked on stdin: {args}")

    monkeypatch.setattr(builtins, "input", asked)
    monkeypatch.setenv("OUTDATED_IGNORE", "1")  # importing ogb sets it


@pytest.fixture
def graph() -> RawGraph:
    return RawGraph.random(np.random.default_rng(0))


def test_products(tmp_path: Path, graph: RawGraph) -> None:
    lay_out(tmp_path, "ogbn-products", graph)
    source = open_source("ogbn-products", tmp_path)
    assert source.num_features == {NODE: 7}
    assert source.num_classes == 47  # OGB's table, whatever labels occur
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    both = np.repeat(graph.edges, 2, axis=1)
    both[:, 1::2] = both[::-1, 1::2]
    edges = [(u, v, k) for k, (u, v) in enumerate(both.T.tolist())]
    assert edges_of(tmp_path / "p")[EDGE] == sorted(edges)
    attrs = source.node_attrs(NODE)
    np.testing.assert_allclose(attrs["x"][:], graph.x, rtol=1e-6)
    assert attrs["y"][:].tolist() == graph.y[:, 0].tolist()
    assert {name: ids.tolist() for name, (_, ids) in source.splits.items()} == {
        "train": graph.splits["train"].tolist(),
        "val": graph.splits["valid"].tolist(),
        "test": graph.splits["test"].tolist(),
    }


def test_loads_again_without_a_global_switch(tmp_path: Path, graph: RawGraph) -> None:
    lay_out(tmp_path, "ogbn-arxiv", graph)
    torch.serialization.add_safe_globals([Data])  # as PyG does when it is imported
    before = set(torch.serialization.get_safe_globals())
    for _ in range(2):  # the second reads what the first processed
        source = open_source("ogbn-arxiv", tmp_path)
        assert source.edges(EDGE).num_edges == graph.edges.shape[1]
        assert sorted(source.node_attrs(NODE)) == ["node_year", "x", "y"]
    assert set(torch.serialization.get_safe_globals()) == before
    assert not (tmp_path / "ogbn_arxiv" / ".processed.lock").exists()


def test_multi_task_with_edge_features(tmp_path: Path) -> None:
    graph = RawGraph.random(np.random.default_rng(1), tasks=112)
    lay_out(tmp_path, "ogbn-proteins", graph)
    source = open_source("ogbn-proteins", tmp_path)
    assert source.num_features == {NODE: None}
    assert source.num_classes == 112
    assert source.node_attrs(NODE)["y"].shape == (60, 112)
    assert source.edge_attrs(EDGE)["edge_attr"].shape == (400, 1)


def test_heterogeneous(tmp_path: Path, graph: RawGraph) -> None:
    lay_out_mag(tmp_path, graph)
    source = open_source("ogbn-mag", tmp_path)
    assert source.num_features == {"author": None, "paper": 7}
    assert source.num_classes == 349
    assert source.schema.edge_types == (("author", "writes", "paper"), ("paper", "cites", "paper"))
    assert source.num_nodes == {"author": 40, "paper": 60}
    assert source.target_type == "paper"
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2), undirected=True)
    assert manifest.schema.edge_types[-1] == ("paper", "rev_writes", "author")
    assert manifest.splits["val"].node_type == "paper"
    assert manifest.node_attrs(1) == ("node_year", "x", "y")
    assert manifest.edge_attrs(0) == ("edge_reltype",)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("saved_split", [False, True])
def test_binary(tmp_path: Path, graph: RawGraph, compressed: bool, saved_split: bool) -> None:
    folder = lay_out_papers(tmp_path, graph, compressed=compressed)
    if saved_split:
        torch.save(graph.splits, folder / "split" / "time" / "split_dict.pt")
    options = PartitionOptions(num_parts=2, allow=["unlabelled_seeds"])
    for _ in range(2):  # the second finds what the first unpacked
        source = open_source("ogbn-papers100M", tmp_path)
        assert source.num_features == {NODE: 7}
        assert source.num_classes == 172
        manifest = partition_graph(source, tmp_path / "p", options)
    assert edges_of(tmp_path / "p")[EDGE] == sorted((u, v, k) for k, (u, v) in enumerate(graph.edges.T.tolist()))
    assert manifest.node_attrs(0) == ("node_year", "x", "y")
    arrays = read_folder(tmp_path / "p")
    ids, x, y = (np.concatenate([arrays[f"part{p}/nodes/0/{n}.npy"] for p in range(2)]) for n in ("n_id", "x", "y"))
    np.testing.assert_array_equal(x, graph.x[ids])
    np.testing.assert_array_equal(y, np.where(ids < 3, -1, graph.y[ids, 0]))
    gids = arrays["splits/val.npy"]
    np.testing.assert_array_equal(ids[gids], graph.splits["valid"])
    assert sorted(f.name for f in (folder / "raw").iterdir() if f.is_dir()) == ["unpacked"] * compressed


def test_binary_damaged(tmp_path: Path, graph: RawGraph) -> None:
    folder = lay_out_papers(tmp_path, graph, compressed=False)
    np.savez(folder / "raw" / "data.npz", edge_index=graph.edges)
    with pytest.raises(DataError, match="has no num_edges_list, num_nodes_list"):
        _ = open_source("ogbn-papers100M", tmp_path).num_nodes
    (folder / "raw" / "data.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"data\.npz: expected an \.npz file"):
        _ = open_source("ogbn-papers100M", tmp_path).num_nodes


def test_split_dict_of_arrays(tmp_path: Path, graph: RawGraph) -> None:
    folder = lay_out(tmp_path, "ogbn-arxiv", graph) / "split" / "time"
    torch.save({name: ids[::-1].copy() for name, ids in graph.splits.items()}, folder / "split_dict.pt")
    _, ids = open_source("ogbn-arxiv", tmp_path).splits["val"]
    assert ids.tolist() == graph.splits["valid"][::-1].tolist()


def test_missing_labels_become_minus_one() -> None:
    assert nan_to_unlabelled(np.array([[1.0], [np.nan]])).tolist() == [[1], [-1]]
    assert nan_to_unlabelled(np.array([1.5])).tolist() == [1.5]


@pytest.mark.parametrize(
    "missing",
    [
        "raw/edge.csv.gz",
        "raw/node-feat.csv.gz",
        "raw/num-node-list.csv.gz",
        "split/time/valid.csv.gz",
        "RELEASE_v1.txt",
    ],
)
def test_missing_file_is_named(tmp_path: Path, graph: RawGraph, missing: str) -> None:
    path = lay_out(tmp_path, "ogbn-arxiv", graph) / missing
    path.unlink()
    with pytest.raises(DataError, match=re.escape(f"{path} is missing, so ogbn-arxiv is not complete")):
        open_source("ogbn-arxiv", tmp_path).edges(EDGE)


def test_missing_file_of_a_relation_is_named(tmp_path: Path, graph: RawGraph) -> None:
    path = lay_out_mag(tmp_path, graph) / "raw/relations/paper___cites___paper/edge.csv.gz"
    path.unlink()
    with pytest.raises(DataError, match=re.escape(str(path))):
        _ = open_source("ogbn-mag", tmp_path).fingerprint


def test_damaged_file(tmp_path: Path, graph: RawGraph) -> None:
    path = lay_out(tmp_path, "ogbn-arxiv", graph) / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"OGB cannot read .*ogbn_arxiv"):
        open_source("ogbn-arxiv", tmp_path).edges(EDGE)


def test_processed_file_with_other_classes_is_refused(tmp_path: Path, graph: RawGraph) -> None:
    folder = lay_out(tmp_path, "ogbn-arxiv", graph)
    open_source("ogbn-arxiv", tmp_path).edges(EDGE)
    torch.save((Evil(), {}), folder / "processed" / "geometric_data_processed.pt")
    with pytest.raises(DataError, match="UnpicklingError"):
        open_source("ogbn-arxiv", tmp_path).edges(EDGE)


class Evil:
    def __reduce__(self) -> tuple:
        return (print, ("executed",))


def test_sized_before_anything_is_downloaded(tmp_path: Path) -> None:
    source = open_source("ogbn-papers100M", tmp_path)
    assert source.num_features == {NODE: 128}
    assert source.num_classes == 172
    assert list(tmp_path.iterdir()) == []


def test_fingerprint_follows_content_not_place(tmp_path: Path, graph: RawGraph) -> None:
    lay_out(tmp_path / "a", "ogbn-arxiv", graph)
    lay_out(tmp_path / "b", "ogbn-arxiv", graph)
    lay_out(tmp_path / "c", "ogbn-arxiv", RawGraph.random(np.random.default_rng(5)))
    for root in "ab":  # what gzip says of the time of writing is not content, but part of the file
        for path in (tmp_path / root).rglob("*.gz"):
            with gzip.open(path) as stream:
                data = stream.read()
            path.write_bytes(gzip.compress(data, mtime=0))
    prints = [open_source("ogbn-arxiv", tmp_path / root).fingerprint for root in "abc"]
    assert prints[0] == prints[1] != prints[2]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, graph: RawGraph) -> Iterator[str]:
    """Serves the archive of a data set as OGB's server does."""
    folder = lay_out(tmp_path / "made", "ogbn-arxiv", graph)
    (tmp_path / "web").mkdir()
    with zipfile.ZipFile(tmp_path / "web" / "arxiv.zip", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, Path("arxiv", path.relative_to(folder)))
    (tmp_path / "web" / "half.zip").write_bytes((tmp_path / "web" / "arxiv.zip").read_bytes()[:500])

    def handler(*args: object) -> _Quiet:
        return _Quiet(*args, directory=str(tmp_path / "web"))  # type: ignore[arg-type]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


def test_download(tmp_path: Path, server: str, graph: RawGraph) -> None:
    target = tmp_path / "root" / "ogbn_arxiv"
    fetch_zip(f"{server}/arxiv.zip", "arxiv", target, "")
    assert [p.name for p in target.parent.iterdir()] == ["ogbn_arxiv"]
    assert open_source("ogbn-arxiv", target.parent).edges(EDGE).num_edges == graph.edges.shape[1]


@pytest.mark.parametrize("name", ["half.zip", "absent.zip"])
def test_failed_download_leaves_nothing(tmp_path: Path, server: str, name: str) -> None:
    target = tmp_path / "root" / "ogbn_arxiv"
    with pytest.raises(DataError, match=f"cannot download {server}/{name} .*Put it by hand"):
        fetch_zip(f"{server}/{name}", "arxiv", target, "Put it by hand.")
    assert list(target.parent.iterdir()) == []


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    with pytest.raises(
        DataError, match=r"cannot download https://.*products.zip .*unpack that archive and put its folder at"
    ):
        open_source("ogbn-products", tmp_path).edges(EDGE)


def _no_network(*args: object, **kwargs: object) -> None:
    raise OSError("no network")


def test_write_table(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv.gz", [[1, 2], [3, 4]], "a,b")
    with gzip.open(tmp_path / "t.csv.gz", "rt") as stream:
        assert stream.read() == "a,b\n1,2\n3,4\n"
