"""The outputs of layers need no more memory than the options say, however many nodes there are: the rest lies on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_more_rows_than_memory(tmp_path: Path) -> None:
    """One layer's outputs alone are larger than the limit of the control group."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, NODES, NODES), np.arange(NODES)])
    x = rng.integers(0, 5, (NODES, 1)).astype(np.float32)
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges)
    assert NODES * WIDTH * 4 > LIMIT
    with memory_group(LIMIT) as group:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "g.npz"), str(tmp_path / "emb"), str(group.procs)],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert group.peak() <= LIMIT
    found = x[:, 0]
    for _ in range(2):
        found = found + found[edges[0]]
    np.testing.assert_array_equal(read_embeddings(tmp_path / "emb")["embedding"], np.stack([found, found], axis=1))
