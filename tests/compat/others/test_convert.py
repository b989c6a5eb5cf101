"""Partitions of other systems become ours: the same graph, parts and ids."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning import LocalPartition
from glt_lightning.base import DataError, OptionError, Progress
from glt_lightning.compat import convert_partition, read_labels
from glt_lightning.partition import verify_partition
from glt_lightning.tensors import DistGraph
from tests.compat.others.accuracy import accuracy, communities, require_same_accuracy
from tests.compat.others.writers import write_glt, write_pyg
from tests.helpers.partitions import small_graph, small_hetero

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


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _saved(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda path: torch.save(change(torch.load(path)), path)


def _meta(**values: Any) -> Callable[[Path], None]:
    return lambda path: _written(json.dumps(json.loads(path.read_text()) | values).encode())(path)


def _written(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.unlink(missing_ok=True), path.write_bytes(data))[0]


_WRONG: list[tuple[str, str, Callable[[Path], None]]] = [
    ("pyg", "META.json", _fifo),
    ("pyg", "META.json", _written(b"[" * 100_000)),
    ("pyg", "META.json", _written(b"[]")),
    ("pyg", "META.json", _written(b"\xff{}")),
    ("pyg", "META.json", _meta(node_types=7)),
    ("pyg", "META.json", _meta(node_types=["../paper"])),
    ("pyg", "META.json", _meta(node_types=[["paper"]])),
    ("pyg", "META.json", _meta(edge_types={"a": 1})),
    ("pyg", "META.json", _meta(edge_types=[["paper", "to"]])),
    ("pyg", "part_0/graph.pt", _fifo),
    ("pyg", "part_0/graph.pt", _saved(lambda graph: [graph])),
    ("pyg", "part_0/graph.pt", _saved(lambda graph: {e: [each] for e, each in graph.items()})),
    ("pyg", "part_0/graph.pt", _saved(lambda graph: {e: dict(each) | {"row": 3} for e, each in graph.items()})),
    ("pyg", "part_0/graph.pt", _saved(lambda graph: {e: {"row": each["row"]} for e, each in graph.items()})),
    (
        "pyg",
        "part_0/graph.pt",
        _saved(lambda graph: {e: dict(each) | {"col": each["col"][:1]} for e, each in graph.items()}),
    ),
    (
        "pyg",
        "part_0/graph.pt",
        _saved(lambda graph: {e: dict(each) | {"row": each["row"].float()} for e, each in graph.items()}),
    ),
    ("pyg", "part_0/node_feats.pt", _saved(lambda values: [values])),
    ("pyg", "part_0/node_feats.pt", _saved(lambda values: {t: [each] for t, each in values.items()})),
    (
        "pyg",
        "part_0/node_feats.pt",
        _saved(lambda values: {t: dict(each) | {"feats": [1]} for t, each in values.items()}),
    ),
    ("pyg", "part_0/node_feats.pt", _saved(lambda values: {t: {"feats": each["feats"]} for t, each in values.items()})),
    ("glt", "node_pb/paper.pt", _fifo),
    (
        "glt",
        "part0/node_feat/paper/feats.pkl",
        _written(b"\x80\x04\x95" + b"\xff" * 7 + b"\x0f."),
    ),  # a frame of exabytes
    ("glt", "part0/node_feat/paper/feats.pkl", _written(b"\x80\x04\x8e" + b"\xff" * 6 + b"\x0f\x00.")),  # bytes as long
    ("glt", "part0/node_feat/paper/feats.pkl", _written(b"\x80\x04Nr\xff\xff\xff\x7f.")),  # a memo of 2 billion
    ("glt", "part0/node_feat/paper/feats.pkl", _written(b"ctorch._utils\n_rebuild_tensor_v2\n}S'planted'\nI1\nsb.")),
    ("glt", "part0/node_feat/paper/feats.pkl", _written(b"ccollections\nOrderedDict\n}S'planted'\nI1\nsb.")),
]


@pytest.mark.parametrize(
    ("kind", "file", "change"), _WRONG, ids=[f"{n} {file}" for n, (_, file, _) in enumerate(_WRONG)]
)
def test_a_wrong_file_is_named(kind: str, file: str, change: Callable[[Path], None], tmp_path: Path) -> None:
    from torch import _utils

    WRITERS[kind](small_hetero(), tmp_path / "theirs", 2)
    change(tmp_path / "theirs" / file)
    with pytest.raises(DataError, match=f"{file.rpartition('/')[2]}: |expected META") as found:
        convert_partition(kind, tmp_path / "theirs", tmp_path / "ours", progress=False)
    assert len(str(found.value).splitlines()) == 1
    assert not hasattr(_utils._rebuild_tensor_v2, "planted")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("part0/graph/eids.pt", lambda ids: ids + (1 << 40), "there are other ids"),
        ("part0/graph/eids.pt", lambda ids: ids - (1 << 40), "there are other ids"),
        ("node_pb.pt", lambda parts: parts.float(), "expected the number of a part for each node, found float32"),
        ("node_pb.pt", lambda parts: parts[0], "expected the number of a part for each node"),
        ("part0/graph/rows.pt", lambda rows: rows[:, None], "expected rows and columns of edges"),
        ("part0/node_feat/ids.pkl", None, "expected tensors"),
    ],
)
def test_wrong_ids_are_refused_before_memory_is_taken_for_them(
    file: str, change: Callable[[Any], Any] | None, message: str, tmp_path: Path
) -> None:
    write_glt(small_graph(), tmp_path / "theirs", 2)
    path = tmp_path / "theirs" / file
    if change is None:
        path.write_bytes(pickle.dumps(3)[:-1])
    else:
        torch.save(change(torch.load(path)), path)
    with pytest.raises(DataError, match=message):
        convert_partition("glt", tmp_path / "theirs", tmp_path / "ours", progress=False)


@pytest.mark.parametrize(
    ("meta", "parts"),
    [
        (None, None),
        ("[]", None),
        ("[" * 100_000, None),
        ('{"num_parts": "2"}', None),
        ('{"num_parts": 0, "name": "x"}', None),
        ('{"num_parts": 1, "name": "x"}', None),
        ('{"num_parts": 1, "name": "x"}', {}),
        ('{"num_parts": 1, "name": "x"}', {"node/_N/other": [1]}),
        ('{"num_parts": 1, "name": "x"}', {"node/_N/id": [1 << 40], "edge/a/id": [0]}),
    ],
)
def test_a_stranger_in_place_of_dgl(meta: str | None, parts: dict[str, Any] | None, tmp_path: Path) -> None:
    python = tmp_path / "python"
    lines = ["#!/bin/sh", 'out="$4"']
    if meta is not None:
        (tmp_path / "meta").write_text(meta)
        lines.append(f'cp {tmp_path}/meta "$out/meta.json"')
    if parts is not None:
        np.savez(tmp_path / "part.npz", **{name: np.array(each) for name, each in parts.items()})
        lines.append(f'cp {tmp_path}/part.npz "$out/part0.npz"')
    python.write_text("\n".join(lines) + "\n")
    python.chmod(0o755)
    with pytest.raises(DataError, match=r"graph\.json: .*has written no such parts as expected") as found:
        convert_partition("dgl", _dgl_config(tmp_path), tmp_path / "out", python=str(python))
    assert len(str(found.value).splitlines()) == 1


def test_a_partition_of_dgl_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "graph.json")
    with pytest.raises(DataError, match=r"graph\.json: cannot be read \(it is not a regular file"):
        convert_partition("dgl", tmp_path, tmp_path / "out", python="python")


def _dgl_config(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    path.write_text('{"part-0": {}}')
    return path


def test_the_command_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from glt_lightning.cli.partition import run_partition

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
