"""OGB link data sets: the graph through OGB's own loader, and the links to predict as arrays."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions
from glt_lightning.partition import hold_out_edges, open_source, partition_graph
from glt_lightning.partition.sources.ogb.source import read_edge_splits
from tests.helpers.ogb_layout import RawGraph
from tests.helpers.ogb_links import LINK_SPLIT_FOLDER, lay_out_biokg, lay_out_links, write_link_splits
from tests.helpers.partition_truth import edges_of, read_folder

INVERSE = ("ogbl-collab", "ogbl-ddi", "ogbl-ppa")  # to which OGB adds the reverse of each edge
NODE_ATTRS = {
    "ogbl-citation2": {"x": (60, 7), "node_year": (60, 1)},
    "ogbl-collab": {"x": (60, 7)},
    "ogbl-ddi": {},
    "ogbl-ppa": {"x": (60, 58)},
    "ogbl-vessel": {"x": (60, 7)},
    "ogbl-wikikg2": {},
}
EDGE_ATTRS = {
    "ogbl-collab": {"edge_weight": (400, 1), "edge_year": (400, 1)},
    "ogbl-vessel": {"edge_attr": (200, 3)},
    "ogbl-wikikg2": {"edge_reltype": (200, 1)},
}


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: object) -> str:
        raise AssertionError(f"asked on stdin: {args}")

    monkeypatch.setattr(builtins, "input", asked)
    monkeypatch.setenv("OUTDATED_IGNORE", "1")  # importing ogb sets it


@pytest.fixture
def graph() -> RawGraph:
    return RawGraph.random(np.random.default_rng(0))


@pytest.mark.parametrize("name", sorted(NODE_ATTRS))
def test_graph(tmp_path: Path, graph: RawGraph, name: str) -> None:
    write_link_splits(lay_out_links(tmp_path, name, graph), name)
    source = open_source(name, tmp_path)
    assert (source.num_classes, source.target_type, source.splits) == (None, None, {})
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert (manifest.splits, manifest.num_classes) == ({}, None)
    edges = graph.edges
    if name in INVERSE:
        edges = np.repeat(edges, 2, axis=1)
        edges[:, 1::2] = edges[::-1, 1::2]
    assert edges_of(tmp_path / "p")[EDGE] == sorted((u, v, k) for k, (u, v) in enumerate(edges.T.tolist()))
    attrs = NODE_ATTRS[name]
    assert source.num_features == {NODE: attrs["x"][1] if "x" in attrs else None}
    assert {k: v.shape for k, v in source.node_attrs(NODE).items()} == attrs
    assert {k: v.shape for k, v in source.edge_attrs(EDGE).items()} == EDGE_ATTRS.get(name, {})


def test_attributes_of_links_stay_with_their_edges(tmp_path: Path, graph: RawGraph) -> None:
    write_link_splits(lay_out_links(tmp_path, "ogbl-collab", graph), "ogbl-collab")
    partition_graph(open_source("ogbl-collab", tmp_path), tmp_path / "p", PartitionOptions(num_parts=2))
    arrays = read_folder(tmp_path / "p")
    for part in range(2):
        edge_ids = arrays[f"part{part}/edges/0/edge_ids.npy"]
        assert len(edge_ids)
        years = arrays[f"part{part}/edges/0/edge_year.npy"][:, 0]
        assert years.tolist() == (1990 + edge_ids // 2 % 30).tolist()  # an edge and its reverse are columns 2k, 2k + 1


def test_heterogeneous(tmp_path: Path, graph: RawGraph) -> None:
    parts = write_link_splits(lay_out_biokg(tmp_path, graph), "ogbl-biokg")
    source = open_source("ogbl-biokg", tmp_path)
    assert source.num_features == {"disease": None, "drug": None}
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2))
    assert manifest.schema.edge_types == (("drug", "drug-disease", "disease"), ("drug", "drug-drug_cancer", "drug"))
    assert manifest.num_nodes == (40, 60)
    assert manifest.edge_attrs(0) == ("edge_reltype",)
    assert manifest.target_type is None
    for number, edge_type in enumerate(manifest.schema.edge_types):  # a relation each, of which OGB's splits have five
        found, given = source.edge_splits[edge_type]["test"], parts["test"]
        own = given["relation"] == number
        assert found["edge"].tolist() == [given["head"][own].tolist(), given["tail"][own].tolist()]
        assert found["negatives"].tolist() == given["tail_neg"][own].tolist()
        assert found["source_negatives"].tolist() == given["head_neg"][own].tolist()


@pytest.mark.parametrize("saved", ["three files", "one file", "as torch 1.5"])
@pytest.mark.parametrize("name", sorted(LINK_SPLIT_FOLDER))
def test_links_to_predict(tmp_path: Path, graph: RawGraph, name: str, saved: str) -> None:
    folder = lay_out_biokg(tmp_path, graph) if name == "ogbl-biokg" else lay_out_links(tmp_path, name, graph)
    parts = write_link_splits(folder, name)
    split = folder / "split" / LINK_SPLIT_FOLDER[name]
    if saved == "one file":
        torch.save(parts, split / "split_dict.pt")
        for part in parts:
            (split / f"{part}.pt").unlink()
    elif saved == "as torch 1.5":
        for part, held in parts.items():
            path = split / f"{part}.pt"
            torch.save(held, path, _use_new_zipfile_serialization=False)
            path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    found = read_edge_splits(name, tmp_path)
    assert list(found) == ["train", "val", "test"]
    for given, part in (("train", "train"), ("val", "valid"), ("test", "test")):
        assert list(found[given]) == list(parts[part])
        for key, array in found[given].items():
            assert isinstance(array, np.ndarray)
            assert array.tolist() == (
                parts[part][key] if isinstance(parts[part][key], list) else parts[part][key].tolist()
            )


class Evil:
    def __reduce__(self) -> tuple:
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"edge": Evil()}, "it holds .*print, which is not read"),
        ([1, 2], "found list"),
        ({"edge": [{}]}, "edge: expected numbers or text, got object"),
        (b"", r"expected a dictionary of arrays \("),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, graph: RawGraph, capfd: pytest.CaptureFixture[str], saved: object, said: str
) -> None:
    folder = lay_out_links(tmp_path, "ogbl-ddi", graph)
    write_link_splits(folder, "ogbl-ddi")
    path = folder / "split" / "target" / "valid.pt"
    path.write_bytes(saved) if isinstance(saved, bytes) else torch.save(saved, path)
    with pytest.raises(DataError, match=rf"valid\.pt: .*{said}"):
        read_edge_splits("ogbl-ddi", tmp_path)
    assert "executed" not in capfd.readouterr().out


@pytest.mark.parametrize("missing", ["raw/edge_year.csv.gz", "raw/node-feat.csv.gz", "split/time/test.pt"])
def test_missing_file_is_named(tmp_path: Path, graph: RawGraph, missing: str) -> None:
    folder = lay_out_links(tmp_path, "ogbl-collab", graph)
    write_link_splits(folder, "ogbl-collab")
    (folder / missing).unlink()
    said = re.escape(f"{folder / missing} is missing, so ogbl-collab is not complete")
    with pytest.raises(DataError, match=said):
        open_source("ogbl-collab", tmp_path).edges(EDGE)
    with pytest.raises(DataError, match=said):
        read_edge_splits("ogbl-collab", tmp_path)


def test_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"OGB has no link data set 'ogbl-colab'\. Did you mean ogbl-collab"):
        open_source("ogbl-colab", tmp_path)
    with pytest.raises(DataError, match="'ogbn-arxiv' has no links to predict; expected an OGB data set ogbl-"):
        read_edge_splits("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(("name", "width"), [("ogbl-ppa", 58), ("ogbl-collab", 128), ("ogbl-ddi", None)])
def test_sized_before_anything_is_downloaded(tmp_path: Path, name: str, width: int | None) -> None:
    source = open_source(name, tmp_path)
    assert source.num_features == {NODE: width}
    assert source.num_classes is None
    assert list(tmp_path.iterdir()) == []


def test_relations_of_a_knowledge_graph(tmp_path: Path, graph: RawGraph) -> None:
    """Its triples are the splits of `links.relation`, with the heads and tails that are given as negatives."""
    folder = lay_out_links(tmp_path, "ogbl-wikikg2", graph)
    parts = write_link_splits(folder, "ogbl-wikikg2")
    name = "__".join(EDGE)
    source = hold_out_edges(
        open_source("ogbl-wikikg2", tmp_path), {name: None}, labels={name: "edge_reltype"}, relations=True
    )
    for split, part in (("train", "train"), ("val", "valid"), ("test", "test")):
        found, given = source.edge_splits[EDGE][split], parts[part]
        assert found.label is not None
        assert found.edge.tolist() == [given["head"].tolist(), given["tail"].tolist()]
        assert found.label.tolist() == given["relation"].tolist()
        for array, theirs in ((found.negatives, "tail_neg"), (found.source_negatives, "head_neg")):
            assert (array is None) == (split == "train")
            assert array is None or array.tolist() == given[theirs].tolist()
    assert source.labels[EDGE].num_classes == 5
    assert "edge_reltype" not in source.edge_attrs(EDGE)
    assert "edge_type" in source.edge_attrs(EDGE)
