"""Attributes in fewer bytes: what lies in the folder, what the manifest says, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import EDGE, NODE, DataError, OptionError, PartitionOptions, Progress
from glt_lightning.base.partition import STORAGE
from glt_lightning.cli import main
from glt_lightning.graph import EncodingEntry, Manifest
from glt_lightning.kernels import BFLOAT16, ENCODINGS, from_bfloat16, to_bfloat16
from glt_lightning.partition import (
    ArraySource,
    open_source,
    partition_dir,
    partition_graph,
    verify_partition,
)
from glt_lightning.partition.sources.folder import FolderSource
from tests.helpers.partition_truth import HETERO, random_source, read_folder, single

RNG = np.random.default_rng(5)


def graph(**x: Any) -> ArraySource:
    """60 nodes, 200 edges with attributes."""
    rng = np.random.default_rng(0)
    source = single(rng.integers(0, 60, (200, 2)).tolist(), 60, **x)
    edge = {EDGE: {"edge_attr": rng.standard_normal((200, 3)).astype(np.float32), "edge_weight": rng.random(200)}}
    return replace(source, edge=edge)


def test_the_option_names_every_encoding() -> None:
    assert set(STORAGE) == set(ENCODINGS)


@pytest.mark.parametrize("kind", STORAGE)
@pytest.mark.parametrize("undirected", [False, True])
def test_rows_are_those_of_the_user_encoded(tmp_path: Path, kind: str, undirected: bool) -> None:
    x = RNG.standard_normal((60, 7)).astype(np.float64)
    source, encoding = graph(x=x), ENCODINGS[kind]
    storage = {"x": kind, "edge_attr": kind} | ({} if kind == "int8" else {"edge_weight": kind})
    options = PartitionOptions(num_parts=3, storage=storage)
    manifest = partition_graph(source, tmp_path / "p", options, undirected=undirected, progress=False)
    arrays = read_folder(tmp_path / "p")
    edge = {name: encoding.encode(np.asarray(source.edge[EDGE][name], np.float32)) for name in storage if name != "x"}
    for p in range(3):
        n_id, e_id = arrays[f"part{p}/nodes/0/n_id.npy"], arrays[f"part{p}/edges/0/edge_ids.npy"]
        stored = arrays[f"part{p}/nodes/0/x.npy"]
        assert stored.dtype == encoding.dtype
        np.testing.assert_array_equal(stored, encoding.encode(x.astype(np.float32))[n_id])
        for name, rows in edge.items():
            np.testing.assert_array_equal(arrays[f"part{p}/edges/0/{name}.npy"], rows[e_id % 200])
    keys = {"nodes/0/x"} | {f"edges/0/{name}" for name in edge}
    assert manifest.encodings == dict.fromkeys(keys, EncodingEntry(kind, "float32"))
    assert manifest.num_features(NODE) == 7
    assert Manifest.load(tmp_path / "p") == manifest
    verify_partition(tmp_path / "p", Progress(False))


@pytest.mark.parametrize("kind", STORAGE)
def test_half_precision_is_given_as_float32_where_asked(tmp_path: Path, kind: str) -> None:
    x = RNG.standard_normal((60, 4)).astype(np.float32)
    half, brain = x.astype(np.float16), to_bfloat16(x)
    source = graph(x=half, brain=brain.view(BFLOAT16))
    manifest = partition_graph(
        source, tmp_path / "p", PartitionOptions(storage={"x": kind, "brain": kind}), progress=False
    )
    n_id = np.load(tmp_path / "p/part0/nodes/0/n_id.npy")
    for name, values in (("x", half.astype(np.float32)), ("brain", from_bfloat16(brain))):
        assert manifest.encodings[f"nodes/0/{name}"] == EncodingEntry(kind, "float32")
        stored = np.load(tmp_path / f"p/part0/nodes/0/{name}.npy")
        np.testing.assert_array_equal(stored, ENCODINGS[kind].encode(values)[n_id])


def test_normalised_first(tmp_path: Path) -> None:
    x = RNG.standard_normal((60, 7)).astype(np.float32) * 1e6
    plain, small = (
        PartitionOptions(num_parts=2, storage=storage) for storage in ({}, {"x": "float16"})
    )  # not normalised it would overflow
    for name, options in (("a", plain), ("b", small)):
        partition_graph(graph(x=x), tmp_path / name, options, normalize="standardize", progress=False)
    for path, rows in read_folder(tmp_path / "a").items():
        if path.endswith("x.npy"):
            np.testing.assert_array_equal(np.load(tmp_path / "b" / path), rows.astype(np.float16))


@pytest.mark.parametrize("mode", ["rows", "standardize"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16])
def test_half_precision_is_normalised_as_float32(tmp_path: Path, mode: Any, dtype: np.dtype) -> None:
    x = (RNG.standard_normal((60, 7)) * 9000).astype(np.float32)  # sums leave the range of float16
    given = to_bfloat16(x).view(BFLOAT16) if dtype == BFLOAT16 else x.astype(dtype)
    exact = from_bfloat16(to_bfloat16(x)) if dtype == BFLOAT16 else given.astype(np.float32)
    for name, rows in (("half", given), ("wide", exact)):
        partition_graph(graph(x=rows), tmp_path / name, PartitionOptions(), normalize=mode, progress=False)
    wide = np.load(tmp_path / "wide/part0/nodes/0/x.npy")
    want = to_bfloat16(wide) if dtype == BFLOAT16 else wide.astype(np.float16)
    np.testing.assert_array_equal(np.load(tmp_path / "half/part0/nodes/0/x.npy"), want)


def test_same_content_from_files_with_little_memory(tmp_path: Path) -> None:
    folder, nodes = tmp_path / "graph", 5000
    folder.mkdir()
    x = RNG.random((nodes, 100), np.float32)
    edges = RNG.integers(0, nodes, (2, 20_000))
    np.save(folder / "x.npy", x)
    np.save(folder / "edge_index.npy", edges)
    much, little = (
        PartitionOptions(num_parts=3, storage={"x": "int8"}, memory_bytes=memory) for memory in (1 << 30, 1 << 20)
    )
    expected = partition_graph(single(edges.T.tolist(), nodes, x=x), tmp_path / "a", much, progress=False)
    got = partition_graph(FolderSource(folder), tmp_path / "b", little, progress=False)
    assert replace(got, made_by={}) == replace(expected, made_by={})
    assert got.arrays["part0/nodes/0/x.npy"].shape[1] == 104


def test_parts_of_several_runs(tmp_path: Path) -> None:
    options = PartitionOptions(num_parts=2, storage={"x": "bfloat16", "edge_attr": "int8"})
    made = [random_source(np.random.default_rng(1), HETERO) for _ in range(2)]
    expected = partition_graph(made[0], tmp_path / "a", options, progress=False)
    assert partition_graph(made[1], tmp_path / "b", replace(options, processes=2), progress=False) == expected


TYPED: dict[str, str | dict[str, str]] = {
    "x": "bfloat16",
    "author": {"x": "int8"},
    "author__writes__paper": {"edge_attr": "float16"},
}


def test_a_type_by_itself_comes_before_all_types(tmp_path: Path) -> None:
    data = HeteroData()
    for t in ("author", "paper", "venue"):
        data[t].x = torch.randn(6, 4)
    for e in (("author", "writes", "paper"), ("paper", "in", "venue")):
        data[e].edge_index, data[e].edge_attr = torch.arange(6).repeat(2, 1), torch.randn(6, 2)
    source = open_source(data, tmp_path)
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(storage=TYPED), progress=False)
    nodes = {t: manifest.encodings.get(f"nodes/{i}/x") for i, t in enumerate(manifest.schema.node_types)}
    assert {t: entry and entry.stored for t, entry in nodes.items()} == {
        "author": "int8",
        "paper": "bfloat16",
        "venue": "bfloat16",
    }
    writes = manifest.schema.edge_types.index(("author", "writes", "paper"))
    assert {k: e.stored for k, e in manifest.encodings.items() if k.startswith("edges")} == {
        f"edges/{writes}/edge_attr": "float16"
    }
    assert manifest.made_by["storage"] == TYPED
    assert [*manifest.made_by["storage"]] == sorted(TYPED)
    for wrong, said in (
        ({"papr": {"x": "int8"}}, "no node or edge type 'papr'; its types: author, .* Did you mean paper?"),
        ({"paper": {"y": "int8"}}, "partition.storage: paper has no attribute 'y'; its attributes: x"),
    ):
        with pytest.raises(OptionError, match=said):
            partition_graph(source, tmp_path / "q", PartitionOptions(storage=wrong), progress=False)
    with pytest.raises(OptionError, match=r"partition.storage.paper.x: expected .*; got 'half'"):
        PartitionOptions(storage={"paper": {"x": "half"}})
    with pytest.raises(
        OptionError, match=r"partition.storage.paper: expected attributes such as \{x: float16\}, got \{\}"
    ):
        PartitionOptions(storage={"paper": {}})


def test_other_storage_is_another_folder(tmp_path: Path) -> None:
    source = graph(x=np.ones((60, 2), np.float32))
    choices: list[dict[str, str]] = [{}, {"x": "int8"}, {"x": "float16"}, {"x": "int8", "edge_attr": "int8"}]
    found = [partition_dir(tmp_path, source, PartitionOptions(storage=s), None, "none") for s in choices]
    assert len(set(found)) == len(choices)
    turned = PartitionOptions(storage={"edge_attr": "int8", "x": "int8"})
    assert partition_dir(tmp_path, source, turned, None, "none") == found[3]


@pytest.mark.parametrize("kind", STORAGE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_not_finite_names_its_row(tmp_path: Path, kind: str, value: float, parts: int) -> None:
    x = np.ones((60, 3), np.float32)
    x[41, 2] = value
    options = PartitionOptions(num_parts=parts, storage={"x": kind})
    with pytest.raises(DataError, match=rf"x of node type 'node': row 41 is {value}, which {kind} cannot represent"):
        partition_graph(graph(x=x), tmp_path / "p", options, progress=False)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("float16", 7e4, "which does not fit float16, whose largest value is 65504: use bfloat16"),
        ("float16", 65520, "which does not fit float16"),
        ("bfloat16", 3.4e38, "which does not fit bfloat16"),
        ("int8", 1e39, "which does not fit float32"),
    ],
)
def test_what_overflows_names_its_row(tmp_path: Path, kind: str, value: float, said: str) -> None:
    source = graph(x=np.ones((60, 3)))
    attr = np.ones((200, 2))
    attr[137, 1] = value
    source = replace(source, edge={EDGE: {"edge_attr": attr}})
    with pytest.raises(DataError, match=rf"edge_attr of edge type .*: row 137 is .*{said}"):
        partition_graph(source, tmp_path / "p", PartitionOptions(storage={"edge_attr": kind}), progress=False)


def test_the_largest_float16_fits(tmp_path: Path) -> None:
    x = np.full((60, 1), 65519, np.float32)
    partition_graph(graph(x=x), tmp_path / "p", PartitionOptions(storage={"x": "float16"}), progress=False)
    np.testing.assert_array_equal(np.load(tmp_path / "p/part0/nodes/0/x.npy"), 65504)


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (
            {"edge_atr": "int8"},
            "the graph has no attribute 'edge_atr'; its attributes: .*edge_attr.*Did you mean edge_attr",
        ),
        ({"n_id": "int8"}, "no attribute 'n_id'"),
        (
            {"x": "int8"},
            r"x: int8 needs an attribute of shape \[N, D\], but x of node type 'node' is \[60, 2, 2\]. Use float16",
        ),
        ({"edge_weight": "int8"}, r"edge_weight: int8 needs an attribute of shape \[N, D\], .* is \[200\]"),
        ({"y": "float16"}, "y: float16 encodes floats, but y of node type 'node' is int64. Drop this option"),
        ({"seen": "int8"}, "seen: int8 encodes floats, but seen of node type 'node' is bool"),
    ],
)
def test_wishes_that_do_not_fit(tmp_path: Path, storage: dict[str, str], said: str) -> None:
    source = graph(
        x=np.ones((60, 2, 2), np.float32),
        y=np.arange(60),
        seen=np.ones((60, 2), np.bool_),
    )
    with pytest.raises(OptionError, match=said):
        partition_graph(source, tmp_path / "p", PartitionOptions(storage=storage), progress=False)
    assert not (tmp_path / "p").exists()


def test_unknown_encoding_names_the_near_one() -> None:
    with pytest.raises(
        OptionError, match=r"partition\.storage\.x: expected float16, bfloat16, int8; got 'flaot16'\. Did"
    ):
        PartitionOptions(storage={"x": "flaot16"})


def test_bfloat16_and_uint16_are_other_data(tmp_path: Path) -> None:
    """Of the same bytes."""
    bits = torch.arange(120, dtype=torch.int16).reshape(60, 2)
    edge_index = torch.zeros(2, 3, dtype=torch.int64)
    found = [
        open_source(Data(x=x, edge_index=edge_index), tmp_path).fingerprint for x in (bits, bits.view(torch.bfloat16))
    ]
    found += [open_source(Data(x=bits.view(torch.uint16), edge_index=edge_index), tmp_path).fingerprint]
    assert len(set(found)) == 3


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    edges = RNG.integers(0, 60, (2, 200))
    np.savez(
        "graph.npz", x=RNG.random((60, 5), np.float32), y=np.arange(60) % 3, edge_index=edges, train_idx=np.arange(9)
    )
    data = ["--data", "GLTDataModule", "--data.dataset", "graph.npz", "--data.partition.dir", "p"]
    main(["partition", *data, "--data.partition.storage.x", "int8"])
    raw = json.loads(Path("p/manifest.json").read_text())
    assert raw["encodings"] == {"nodes/0/x": {"stored": "int8", "given": "float32"}}
    assert raw["made_by"]["storage"] == {"x": "int8"}
    assert raw["arrays"]["part0/nodes/0/x.npy"]["shape"] == [60, 9]
    assert "storage" in capsys.readouterr().out
    Path("run.yaml").write_text(
        "data: {class_path: GLTDataModule, init_args: {dataset: graph.npz, partition: {dir: q, storage: {node: {x: bfloat16}}}}}"
    )
    main(["partition", "--config", "run.yaml"])
    assert json.loads(Path("q/manifest.json").read_text())["made_by"]["storage"] == {"node": {"x": "bfloat16"}}
