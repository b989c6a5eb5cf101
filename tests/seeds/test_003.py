"""Every cell of document 003, in order, as one script that starts two trainers, on a graph whose communities are classes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.run import started
from tests.seeds.documents import document, python_blocks
from tests.seeds.replacements import replaced

# The notebook's own module, which it imports: here a trainer is a process, and nothing has to be prepared.
UTILS = """\
import functools


def thread_wrapped_func(function):
    return functools.wraps(function)(lambda *args: function(*args))


def prepare_mp(graph):
    pass
"""

# data.pkl is what the notebook before this one saves: the graph, features, labels and the ids of the three splits.
DATA = """\
import pickle

import torch
from torch_geometric.data import Data

import glt_lightning.compat.dgl as dgl

torch.manual_seed(0)
classes, split = torch.arange(3000) // 300, torch.arange(3000) % 3
x = torch.nn.functional.one_hot(classes, 10) + torch.randn(3000, 10)
ends = torch.randint(3000, (2, 24000))
inside = torch.rand(24000) < 0.8
ends[1, inside] = ends[0, inside] // 300 * 300 + torch.randint(300, (int(inside.sum()),))
data = Data(x=x, y=classes, edge_index=torch.cat([ends, ends.flip(0)], 1))
data.train_mask, data.val_mask, data.test_mask = split == 0, split == 1, split == 2
dgl.distributed.partition_graph(data, "communities", 1, "parts", part_method="random")
g = dgl.distributed.DistGraph("communities", "parts/communities.json")
splits = [g.ndata[f"{name}_mask"][:].nonzero()[:, 0] for name in ("train", "val", "test")]
with open("data.pkl", "wb") as file:
    pickle.dump((g, g.ndata["x"][:], g.ndata["y"][:], *splits), file)
"""


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path) -> None:
    cells = [cell.replace("{cwd}", str(tmp_path)) for cell in replaced("003", python_blocks(document("003")))]
    assert len(cells) == 8
    for name, code in (("utils", UTILS), ("make_data", DATA), ("script", "\n".join(cells))):
        (tmp_path / f"{name}.py").write_text(code)
    env = {"OMP_NUM_THREADS": "1"}
    for script in ("make_data.py", "script.py"):
        with started([sys.executable, script], cwd=tmp_path, env=env) as run:
            assert run.wait(120) == 0, run.output
            output = run.output
    accuracies = [float(each) for each in re.findall(r"Epoch \d+ Validation Accuracy (\S+)", output)]
    assert len(accuracies) == 10, output
    assert accuracies[-1] > 0.9, output
    assert (tmp_path / "model.pt").is_file()
