"""Every Python block of document 000, in order, as the processes that it is about: one that partitions, two workers, and two
servers with two clients."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.run import started
from tests.seeds.documents import document, titled_blocks
from tests.seeds.replacements import replaced

# The data set by its own interface, small: each node is linked to the next two, and its class can be read from its features.
PRODUCTS = """\
import torch
from torch_geometric.data import Data

N = 400


class PygNodePropPredDataset:
    def __init__(self, name, root):
        ids, classes = torch.arange(N), torch.arange(N) % 4
        ends = torch.stack([ids.repeat(2), torch.cat([(ids + 4) % N, (ids + 8) % N])])
        self.data = Data(x=torch.nn.functional.one_hot(classes, 4).float(), y=classes[:, None], edge_index=ends)

    def __getitem__(self, index):
        return self.data

    def get_idx_split(self):
        return {"train": torch.arange(0, 256), "valid": torch.arange(256, 300), "test": torch.arange(300, N)}
"""

# What the text leaves to the reader.
OPEN = """\
import sys
import torch
import torch.distributed

rank, port, group_port = map(int, sys.argv[1:])
train_idx = torch.load(f'train-idx-partitions/partition{rank}.pt') if rank < 2 else None
num_in_feats, num_classes = 4, 4
"""
GROUP = """
torch.distributed.init_process_group('gloo', f'tcp://127.0.0.1:{group_port}', world_size=2, rank=rank)
torch.manual_seed(0)
"""
TRAINED = """
assert loss.item() < 1.0, loss
seen = torch.cat([batch.batch for batch in train_loader])
assert torch.equal(seen, train_idx)
"""
LOADED = """
batches = list(train_loader)
assert torch.equal(torch.cat([batch.batch for batch in batches]), train_idx)
assert all(torch.equal(batch.y, batch.node % 4) for batch in batches)
assert all(torch.equal(batch.x.argmax(1), batch.y) for batch in batches)
print('done')
"""
# Which blocks make which process.
SCRIPTS = {
    "partition": (0, 1, 2, 3),
    "worker": (4, 5, 6, GROUP, 10, 11, TRAINED, 12, LOADED),
    "server": (4, 7, "print('done')\n"),
    "client": (8, 9, 13, LOADED, "glt.distributed.shutdown_client()\n"),
}


def scripts(blocks: Sequence[str], folder: Path) -> None:
    (folder / "products.py").write_text(PRODUCTS)
    for name, pieces in SCRIPTS.items():
        code = "\n".join(piece if isinstance(piece, str) else blocks[piece] for piece in pieces)
        (folder / f"{name}.py").write_text(code if name == "partition" else OPEN + code)


def run_together(folder: Path, *names: tuple[str, int]) -> None:
    """Scripts with their ranks at the same time; all end with 0."""
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(str(probe.getsockname()[1]))
        stack.close()
        runs = []
        for name, rank in names:
            argv = [sys.executable, f"{name}.py", *([] if name == "partition" else [str(rank), *ports])]
            runs.append(stack.enter_context(started(argv, cwd=folder, env={"OMP_NUM_THREADS": "1"})))
        for (name, rank), run in zip(names, runs, strict=True):
            assert run.wait(200) == 0, f"{name} {rank}:\n" + "\n".join(each.output for each in runs)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_block_runs(tmp_path: Path) -> None:
    blocks = replaced("000", titled_blocks(document("000")))
    assert len(blocks) == 14
    used = [piece for pieces in SCRIPTS.values() for piece in pieces if isinstance(piece, int)]
    assert sorted({*used}) == list(range(14))
    scripts(blocks, tmp_path)
    run_together(tmp_path, ("partition", 0))
    assert (tmp_path / "graph-partitions/manifest.json").is_file()
    assert (tmp_path / "by-frequency/manifest.json").is_file()
    run_together(tmp_path, ("worker", 0), ("worker", 1))
    run_together(tmp_path, ("server", 0), ("server", 1), ("client", 0), ("client", 1))
