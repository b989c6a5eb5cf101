"""The outputs of layers need no more memory than the options say, however many nodes there are: the rest lies on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GAT
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

from glt_lightning import read_embeddings
from tests.helpers.memory_group import memory_group

NODES, WIDTH, LIMIT = 200_000, 1024, 700 << 20

# A process of the group from its first line on.
SCRIPT = """
import os, sys
graph, out, procs = sys.argv[1:]
open(procs, "w").write(str(os.getpid()))
import torch
from lightning.pytorch import LightningModule, Trainer
from glt_lightning import GLTDataModule, predict_layerwise

class Sums(LightningModule):
    num_layers = 2

    def embed(self, batch):
        return batch.x.expand(-1, WIDTH)

    def layer(self, k, h, batch):
        src, dst = batch.edge_index
        return h[: batch.batch_size].index_add(0, dst, h[src])

    def head(self, h):
        return h[:, [0, -1]]

torch.set_num_threads(1)
data = GLTDataModule(graph, os.path.dirname(out), num_neighbors=[1], batch_size=1)
trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
predict_layerwise(trainer, Sums(), data, out, options={"batch_size": 2000, "memory": "20MB", "self_check": 0})
""".replace("WIDTH", str(WIDTH))

HUB = """
import os, sys
graph, out, procs = sys.argv[1:]
open(procs, "w").write(str(os.getpid()))
import torch
from lightning.pytorch import LightningModule, Trainer
from torch_geometric.nn import GAT
from glt_lightning import GLTDataModule, LayerwiseOptions, predict_layerwise

class Holding(LightningModule):
    def __init__(self):
        super().__init__()
        self.gnn = GAT(4, 512, 2, 8)

torch.set_num_threads(1)
torch.manual_seed(1)
model = Holding()
torch.save(model.gnn.state_dict(), out + ".pt")
data = GLTDataModule(graph, os.path.dirname(out), num_neighbors=[1], batch_size=1)
trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
LayerwiseOptions.most_edges = 50_000
options = {"batch_size": 2000, "memory": "20MB", "self_check": 0}
predict_layerwise(trainer, model, data, out, options=options)
"""


def in_group(script: str, graph: Path, out: Path) -> None:
    """Runs it with at most `LIMIT` bytes of memory."""
    with memory_group(LIMIT) as group:
        argv = [sys.executable, "-c", script, str(graph), str(out), str(group.procs)]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
        assert ran.returncode == 0, ran.stderr
        assert group.peak() <= LIMIT


def attended(conv: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """`GATConv` with one head, without a row for each edge."""
    edges, _ = add_self_loops(remove_self_loops(edges)[0], num_nodes=NODES)
    rows, (src, dst) = conv.lin(x), edges
    scores = functional.leaky_relu(
        (rows @ conv.att_src[0, 0])[src] + (rows @ conv.att_dst[0, 0])[dst], conv.negative_slope
    )
    weights = torch.sparse_coo_tensor(edges.flip(0), softmax(scores, dst, num_nodes=NODES), (NODES, NODES))
    return weights @ rows + conv.bias


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_more_edges_of_a_node_than_memory(tmp_path: Path) -> None:
    """The rows of all edges of one node are larger than the limit of the control group, and attention needs them all."""
    rng = np.random.default_rng(0)
    into_one = np.stack([rng.integers(0, NODES, 2 * NODES), np.full(2 * NODES, 5)])
    edges = np.concatenate([np.stack([rng.integers(0, NODES, NODES), np.arange(NODES)]), into_one], axis=1)
    x = rng.normal(size=(NODES, 4)).astype(np.float32)
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges)
    assert 2 * NODES * 512 * 4 > LIMIT
    in_group(HUB, tmp_path / "g.npz", tmp_path / "emb")
    found = read_embeddings(tmp_path / "emb")["embedding"]
    gnn = GAT(4, 512, 2, 8).double()  # float32 would be off by more than this is, of so many edges
    gnn.load_state_dict(torch.load(tmp_path / "emb.pt", weights_only=True))
    first, second = gnn.convs
    with torch.no_grad():
        h = attended(first, torch.from_numpy(x).double(), torch.from_numpy(edges)).relu()
        expected = attended(second, h, torch.from_numpy(edges)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_more_rows_than_memory(tmp_path: Path) -> None:
    """One layer's outputs alone are larger than the limit of the control group."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, NODES, NODES), np.arange(NODES)])
    x = rng.integers(0, 5, (NODES, 1)).astype(np.float32)
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges)
    assert NODES * WIDTH * 4 > LIMIT
    in_group(SCRIPT, tmp_path / "g.npz", tmp_path / "emb")
    found = x[:, 0]
    for _ in range(2):
        found = found + found[edges[0]]
    np.testing.assert_array_equal(read_embeddings(tmp_path / "emb")["embedding"], np.stack([found, found], axis=1))
