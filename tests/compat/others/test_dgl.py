"""Partitions that DGL itself wrote, read by it: set GLT_TEST_DGL_PYTHON to a Python that has the package dgl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError
from glt_lightning.compat import convert_partition
from glt_lightning.tensors import DistGraph
from tests.compat.others.accuracy import accuracy, communities, require_same_accuracy

pytestmark = pytest.mark.slow

MAKE = """\
import sys

import dgl
import numpy as np
import torch

given = dict(np.load(sys.argv[1]))
ends = tuple(torch.from_numpy(given["edge_index"]))
graph = dgl.graph(ends, num_nodes=len(given["x"]))
graph.ndata["feat"], graph.ndata["label"] = torch.from_numpy(given["x"]), torch.from_numpy(given["y"])
for name in ("train", "val", "test"):
    graph.ndata[name + "_mask"] = torch.from_numpy(given[name + "_mask"])
graph.edata["w"] = torch.arange(graph.num_edges()).float()
typed = dgl.heterograph({("a", "to", "b"): (ends[0] % 50, ends[1] % 70), ("b", "back", "a"): (ends[1] % 70, ends[0] % 50)})
typed.nodes["b"].data["feat"] = torch.arange(typed.num_nodes("b"))[:, None].float()
typed.edges["back"].data["w"] = torch.arange(typed.num_edges("back")).float()
for name, each in (("plain", graph), ("typed", typed)):
    nids, eids = dgl.distributed.partition_graph(each, name, 2, name, part_method="random", return_mapping=True)
    by_type = {} if name == "plain" else {**nids, **{":".join(e): v for e, v in eids.items()}}
    arrays = by_type or {"nodes": nids, "edges": eids}
    np.savez(name + ".npz", **{key: ids.numpy() for key, ids in arrays.items()})
"""


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("GLT_TEST_DGL_PYTHON")
    if not found:
        pytest.skip("needs DGL: set GLT_TEST_DGL_PYTHON to a Python that has the package dgl")
    return found


@pytest.fixture(scope="module")
def theirs(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dgl")
    np.savez(folder / "graph.npz", **{name: values.numpy() for name, values in communities().to_dict().items()})
    (folder / "make.py").write_text(MAKE)
    subprocess.run([python, "-I", "make.py", "graph.npz"], cwd=folder, check=True, timeout=200, capture_output=True)
    return folder


def test_the_graph_is_the_same(theirs: Path, python: str, tmp_path: Path) -> None:
    """DGL keeps no ids from before its shuffling, so the user's ids are those after it."""
    data, mapping = communities(), np.load(theirs / "plain.npz")
    manifest = convert_partition("dgl", theirs / "plain", tmp_path, python=python, progress=False)
    nids, eids = torch.from_numpy(mapping["nodes"]), torch.from_numpy(mapping["edges"])
    assert manifest.num_parts == 2
    with DistGraph(tmp_path) as graph:
        rows = torch.arange(1000)
        original = nids[graph.user_ids(rows)]
        assert torch.equal(graph.ndata["x"][:], data.x[original])
        assert torch.equal(graph.ndata["y"][:], data.y[original])
        for name in ("train", "val", "test"):
            assert torch.equal(graph.ndata[f"{name}_mask"][:], data[f"{name}_mask"][original])
        found = graph.sample_neighbors(rows, -1)
        columns = eids[graph.user_ids(found.edge_row, ("node", "to", "node"))]
        assert torch.equal(data.edge_index[:, columns], torch.stack([original[found.src], original[found.dst]]))
        assert torch.equal(graph.edata["w"][found.edge_row], columns.float())
        assert sorted(columns.tolist()) == list(range(8000))


def test_a_graph_with_types(theirs: Path, python: str, tmp_path: Path) -> None:
    mapping, ends = np.load(theirs / "typed.npz"), communities().edge_index
    convert_partition("dgl", theirs / "typed/typed.json", tmp_path, python=python, progress=False)
    with DistGraph(tmp_path) as graph:
        original = {t: torch.from_numpy(mapping[t])[graph.user_ids(np.arange(graph.num_nodes(t)), t)] for t in "ab"}
        assert torch.equal(graph.nodes["b"].data["x"][:], original["b"][:, None].float())
        to, back = (ends[0] % 50, ends[1] % 70), (ends[1] % 70, ends[0] % 50)
        for edge_type, by in ((("a", "to", "b"), to), (("b", "back", "a"), back)):
            found = graph.sample_neighbors(torch.arange(graph.num_nodes(edge_type[2])), -1, edge_type)
            columns = torch.from_numpy(mapping[":".join(edge_type)])[graph.user_ids(found.edge_row, edge_type)]
            assert torch.equal(by[0][columns], original[edge_type[0]][found.src])
            assert torch.equal(by[1][columns], original[edge_type[2]][found.dst])
            assert len(columns) == 8000


def test_it_trains_to_the_same_accuracy(theirs: Path, python: str, tmp_path: Path) -> None:
    convert_partition("dgl", theirs / "plain", tmp_path / "converted", python=python, progress=False)
    require_same_accuracy(accuracy(theirs / "graph.npz", tmp_path / "own"), accuracy(None, tmp_path / "converted"))


def test_what_dgl_cannot_read_is_named(theirs: Path, python: str, tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text('{"num_parts": 1, "graph_name": "damaged", "part-0": {}}')
    with pytest.raises(DataError, match="cannot read it"):
        convert_partition("dgl", tmp_path, tmp_path / "out", python=python)
