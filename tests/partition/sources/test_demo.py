"""The import graph: what counts as an import, and the cached file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.partition import open_source
from glt_lightning.partition.sources import demo, demo as import_graph

FILES = {
    "__init__.py": "from .nn import Linear  # comment\nfrom . import ops",
    "nn/__init__.py": "from .linear import (\n    Linear,  # the class\n    Other as O,\n)\nimport pkg.ops, os",
    "nn/linear.py": "from ..ops import add\nfrom ... import nothing\nimport pkg.nn.linear\n    import numpy as np",
    "ops.py": "def add(): 'from pkg import nn' # import pkg.nn\n",
    "tests/test_ops.py": "import pkg.ops",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_edges_and_labels(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_graph, "_MIN_CLASS", 1)
    graph = import_graph.build_import_graph(["pkg", "no_such_package"])
    names = ["pkg", "pkg.nn", "pkg.nn.linear", "pkg.ops"]
    edges = {(names[i], names[j]) for i, j in graph["edge_index"].T.tolist()}
    assert edges == {
        ("pkg", "pkg.nn"),
        ("pkg", "pkg.ops"),
        ("pkg.nn", "pkg.nn.linear"),
        ("pkg.nn", "pkg.ops"),
        ("pkg.nn.linear", "pkg.ops"),
    }
    assert graph["class_names"].tolist() == ["pkg", "pkg.nn", "pkg.ops"]
    assert graph["y"].tolist() == [0, 1, 1, 2]
    assert "pkg" not in sys.modules


def test_small_classes_are_left_out(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_graph, "_MIN_CLASS", 2)
    graph = import_graph.build_import_graph(["pkg"])
    assert graph["class_names"].tolist() == ["pkg.nn"]
    assert graph["x"].shape == (2, 256)
    assert graph["edge_index"].tolist() == [[0], [1]]


def test_demo_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def build(packages: tuple[str, ...]) -> dict[str, np.ndarray]:
        calls.append(packages)
        return {"x": np.ones((3, 2), np.float32), "y": np.arange(3), "edge_index": np.array([[0], [1]])}

    monkeypatch.setattr(demo, "build_import_graph", build)
    first, second = open_source("demo", tmp_path), open_source("demo", tmp_path)
    assert len(calls) == 1
    assert first.name == "demo"
    assert first.fingerprint == second.fingerprint
    assert len(list((tmp_path / "demo").iterdir())) == 1
    monkeypatch.setattr(demo, "_version", lambda package: "9.9")
    open_source("demo", tmp_path)
    assert len(calls) == 2  # other versions of the packages make another graph


def test_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_version", lambda package: None)
    with pytest.raises(DataError, match="torch, sympy, networkx; none of them is installed"):
        open_source("demo", tmp_path)


@pytest.mark.slow
def test_the_real_one(tmp_path: Path) -> None:
    source = open_source("demo", tmp_path)
    (nodes,) = source.num_nodes.values()
    assert 1000 < nodes < 20_000
    assert source.num_features == {"node": 256}
    assert source.num_classes is not None
    assert 15 <= source.num_classes <= 100
    assert source.edges(("node", "to", "node")).num_edges > 3 * nodes
    x = source.node_attrs("node")["x"][:]
    norms = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(norms[norms > 0], 1, atol=1e-4)
    assert (norms > 0).mean() > 0.9  # an empty module has no words
    ids = np.concatenate([ids for _, ids in source.splits.values()])
    assert np.sort(ids).tolist() == list(range(nodes))
