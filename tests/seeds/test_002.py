"""Every Python block of document 002, in order, as one script of two ranks, alone, and with the names that it leaves open."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from glt_lightning.base import PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.partitions import small_graph
from tests.helpers.run import started
from tests.seeds.documents import document, python_blocks
from tests.seeds.replacements import replaced

# What the slides leave to the reader.
SLIDES = """\
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

from glt_lightning.compat.dgl.nn import SAGEConv

ip_config, num_workers = "ip_config.txt", 1
in_feats, num_hidden, n_classes, num_layers, dropout = 3, 16, 4, 2, 0.5
args = SimpleNamespace(lr=0.01, num_epochs=2)


class SAGE(nn.Module):
    def __init__(self, in_feats, n_hidden, n_classes, n_layers, activation, dropout):
        super().__init__()
        widths = [in_feats, *[n_hidden] * (n_layers - 1), n_classes]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in zip(widths, widths[1:]))
        self.activation, self.dropout = activation, nn.Dropout(dropout)

    def forward(self, blocks, x):
        for layer, block in zip(self.layers[:-1], blocks):
            x = self.dropout(self.activation(layer(block, x)))
        return self.layers[-1](blocks[-1], x)


def load_subtensor(g, inputs, seeds):
    return g.ndata["x"][inputs] / 1000, g.ndata["y"][seeds]
"""

# What has to be true after the last block.
CHECKS = """
assert th.isfinite(loss) and g.number_of_nodes() == 300 and len(data) == 100
assert th.equal(tensor[0:101].count_nonzero(), th.tensor(0))
after = emb(np.arange(6)).detach()
assert th.allclose(after[:4], th.full((4, 10), -0.001)) and not after[4:].any(), after
((inputs, outputs, blocks),) = train_dataloader
assert th.equal(outputs.sort().values, train_nid) and len(blocks) == 2 and len(inputs) > len(outputs)
assert [len(train_nid)] == [50] if dgl.distributed.get_num_clients() == 2 else [100]
print("checked by rank", g.rank())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_block_runs(ranks: int, tmp_path: Path) -> None:
    blocks = replaced("002", python_blocks(document("002")))
    assert len(blocks) == 14
    partition_graph(
        open_source(small_graph(), "data"), tmp_path / "data/graph_name", PartitionOptions(num_parts=2), progress=False
    )
    (tmp_path / "ip_config.txt").write_text("127.0.0.1 30050\n")
    (tmp_path / "slides.py").write_text(SLIDES)
    (tmp_path / "script.py").write_text("".join(blocks) + CHECKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "script.py"]
    env = {"DGL_CONF_PATH": "data/graph_name.json", "PYTHONPATH": ".", "OMP_NUM_THREADS": "1"}
    with started([sys.executable, *launch], cwd=tmp_path, env=env) as run:
        assert run.wait(120) == 0, run.output
        assert all(f"checked by rank {rank}" in run.output for rank in range(ranks)), run.output
