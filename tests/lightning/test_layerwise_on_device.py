"""A module on a device of its own: batches and rows of layers get there, nothing on the device mixes with what is on the host,
and the outputs are those of the CPU, bit by bit."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from torch_geometric.nn import GCN, GIN, GraphSAGE as PyGSAGE

from glt_lightning import predict_layerwise, read_embeddings
from glt_lightning.inference import run as runs
from glt_lightning.kernels import CudaEdges, Kernels
from glt_lightning.workers.producer import on_gpu
from tests.helpers import run_script
from tests.lightning.test_layerwise import Holding
from tests.lightning.tiny import WIDTH

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch_geometric.nn import GAT, GCN, GraphSAGE as PyGSAGE
from glt_lightning import GLTDataModule, GraphSAGE, LinkPredictor, NodePredictor, predict_layerwise, read_embeddings
from glt_lightning.base import LayerwiseOptions
from tests.helpers.own_device import DEVICE, OwnAccelerator, own_device
from tests.lightning.test_layerwise import Holding
from tests.lightning.tiny import CLASSES, SHAPE, WIDTH, learnable_hetero

root, graph = sys.argv[1:]
torch.set_num_threads(1)
quiet = {"inference_mode": False, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}

def trainer(there):
    where = {"strategy": SingleDeviceStrategy(DEVICE, OwnAccelerator())} if there else {"accelerator": "cpu"}
    return Trainer(devices=1, **where, **quiet)

def data(**given):
    more = {"dataset": graph, "num_neighbors": [5, 5], "batch_size": 20, "evaluation": {"mode": "layerwise"}}
    return GLTDataModule(root=root + "/root", partition={"num_parts": 2}, **more | given)

def described(kind, given):
    made = data(**given)
    made.prepare_data()
    made.setup("predict")
    more = {"metadata": made.metadata, "num_nodes": made.num_nodes, "hidden_channels": 8, "num_layers": 2}
    if kind is LinkPredictor:
        return LinkPredictor(made.num_features, edge_type=made.link_type, ranking=["mrr@10"], **more)
    return NodePredictor(made.num_features, made.label_facts, target_type=made.target_type, encoder=kind, **more)

typed = {"dataset": learnable_hetero()}
links = typed | {
    "task": "link",
    "seeds": {"input_type": "author__wrote__paper"},
    "links": {"edge_splits": {"num_val": 0.1, "num_test": 0.1}},
}
cases = {
    "SAGE": (lambda: Holding(PyGSAGE(WIDTH, 8, 2, 3, norm="batch_norm")), {}),
    "GAT, all layers": (lambda: Holding(GAT(WIDTH, 8, 2, 3, heads=2, jk="cat")), {}),
    "GCN": (lambda: Holding(GCN(WIDTH, 8, 2, 3)), {}),
    "ready": (lambda: GraphSAGE(**SHAPE), {}),
    "typed HGT": (lambda: described("HGT", typed), typed),
    "links": (lambda: described(LinkPredictor, links), links),
}
apart = {}
for name, (make, given) in cases.items():
    found, copied = [], 0
    for there in (False, True):
        seed_everything(1, verbose=False)
        module = make()
        with own_device() as mode:
            for most in (20_000_000, 12):  # the second in pieces
                LayerwiseOptions.most_edges, options = most, {"batch_size": 60}
                predict_layerwise(trainer(there), module, data(**given), root + "/emb", options=options)
                found.append(read_embeddings(root + "/emb"))
            if not isinstance(module, Holding):
                (metrics,) = trainer(there).test(module, data(**given), verbose=False)
                found.append({name: np.array(value) for name, value in metrics.items()})
            copied = mode.copied
    half = len(found) // 2
    pairs = [(a[n], b[n]) for a, b in zip(found[:half], found[half:]) for n in a]
    apart[name] = [max(float(np.abs(a - b).max()) for a, b in pairs if a.dtype != object), copied]
print("RESULT " + json.dumps(apart))
"""


@pytest.mark.slow
def test_outputs_are_those_of_the_host(graph_npz: Path, tmp_path: Path) -> None:
    ended = run_script(SCRIPT, str(tmp_path), str(graph_npz), env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    (line,) = [each for each in ended.stdout.splitlines() if each.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    most = {name: difference for name, (difference, _) in found.items()}
    assert most.pop("GAT, all layers") < 1e-6  # the device has no kernels of ours, and torch adds in another order
    assert most == dict.fromkeys(most, 0.0)
    assert min(copied for _, copied in found.values()) > 100


@pytest.fixture
def gpu(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CPU counts as a GPU: the emulated kernels sample and aggregate, and no row of a layer is read where it lies. The calls
    that aggregate."""
    calls: list[str] = []

    def run(edges: Any, name: str, kind: str, indptr: torch.Tensor, src: torch.Tensor | None, *tensors: Any) -> None:
        there = CudaEdges(kernels, edges, indptr, src)
        getattr(there, name)(kind, *tensors)
        there.check()
        calls.append(f"{name} {kind}")

    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    make, maps = on_gpu.make_device_producer, importlib.import_module("glt_lightning.workers.producer.mapped")
    monkeypatch.setattr(maps, "make_device_producer", lambda *given: calls.append("sample") or make(*given))
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    monkeypatch.setattr(importlib.import_module("glt_lightning.loader.aggregation"), "_run", run)
    monkeypatch.setattr(runs, "is_host", lambda device: False)
    return calls


KINDS: dict[str, Any] = {
    "SAGE": lambda make: Holding(PyGSAGE(WIDTH, 8, 2, 3)),
    "GAT": lambda make: make(model="GAT"),  # a ready module adds its loops so that the edges stay sorted
    "GCN": lambda make: Holding(GCN(WIDTH, 8, 2, 3)),
    "GIN": lambda make: Holding(GIN(WIDTH, 8, 2, 3)),
}


@pytest.mark.parametrize("kind", ["SAGE", *(pytest.param(k, marks=pytest.mark.slow) for k in ("GAT", "GCN", "GIN"))])
def test_batches_and_sums_of_a_gpu(
    kind: str, make_data: Any, make_model: Any, make_trainer: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A GPU samples all neighbours, and its kernels aggregate: the bits of the CPU."""
    seed_everything(1, verbose=False)
    module = KINDS[kind](make_model)
    data = make_data(partition={"num_parts": 2})
    predict_layerwise(make_trainer(), module, data, tmp_path / "cpu", options={"batch_size": 100})
    calls: list[str] = request.getfixturevalue("gpu")
    predict_layerwise(make_trainer(), module, data, tmp_path / "gpu", options={"batch_size": 100})
    assert calls[0] == "sample"
    assert len(calls) > 6
    expected, found = (read_embeddings(tmp_path / each) for each in ("cpu", "gpu"))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
