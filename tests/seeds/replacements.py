"""Every change that is made to the code of the documents before it runs, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Replacement:
    """seed: number of the document.  block: number of its Python block from 0; None: every one that has ``old``.
    old: what is replaced, each time it occurs; empty: ``new`` goes before the block."""

    seed: str
    block: int | None
    old: str
    new: str
    reason: str


_OURS = "the package has another name"
_UNDEFINED = "the text does not define these names"
_CPU = "tests have no GPU"
_SMALL = "a test takes seconds"

_PORT = "the port may be in use"
_FEW = "a test has fewer processes"

REPLACEMENTS = [
    # 000: GLT's tutorial of distributed training
    Replacement("000", None, "import graphlearn_torch as glt\n", "import glt_lightning.compat.glt as glt\n", _OURS),
    Replacement(
        "000", 0, "from ogb.nodeproppred import", "from products import", "the data set is gigabytes to download"
    ),
    Replacement("000", None, "'/tmp/ogbn-products'", "'.'", "a test writes into its own folder"),
    Replacement("000", 0, "", "import os\n", _UNDEFINED),
    Replacement(
        "000", 0, "# Save label data.\n", "os.makedirs('label')\n", "the text saves into folders that it does not make"
    ),
    Replacement(
        "000",
        1,
        "num_partitions = 2\n",
        "num_partitions = 2\n[os.makedirs(f'{name}-idx-partitions') for name in ('train', 'test')]\n",
        "the text saves into folders that it does not make",
    ),
    Replacement(
        "000",
        3,
        "'graph-partitions'",
        "'by-frequency'",
        "the text writes two partitions into one folder, which is refused",
    ),
    Replacement("000", 5, "world_size=4", "world_size=2", _FEW),
    Replacement("000", 5, "rank=0", "rank=rank", "each process has a rank of its own"),
    Replacement("000", 4, "partition_idx=0", "partition_idx=rank", "each process has a part of its own"),
    Replacement("000", 7, "num_clients=4", "num_clients=2", _FEW),
    Replacement("000", 7, "server_rank=0", "server_rank=rank", "each process has a rank of its own"),
    Replacement("000", 8, "num_clients=4", "num_clients=2", _FEW),
    Replacement("000", 8, "client_rank=1", "client_rank=rank", "each process has a rank of its own"),
    Replacement("000", 7, "master_port=11111", "master_port=port", _PORT),
    Replacement("000", 8, "master_port=11111", "master_port=port", _PORT),
    Replacement("000", None, "master_port=11112", "master_port=port", _PORT),
    Replacement(
        "000",
        8,
        "# Load sampled messages and perform training.\n# ...\n\n# Shutdown the current process before exiting.\n"
        "glt.distributed.shutdown_client()\n",
        "",
        "what it leaves open are the later blocks, after which a process ends",
    ),
    Replacement(
        "000",
        10,
        "[torch.device('cuda', i % torch.cuda.device_count() for i in range(2))]",
        "None",
        "the line is no Python, and tests have no GPU",
    ),
    Replacement("000", 13, "[torch.device('cuda', i % target_server_device_count) for i in range(2)]", "None", _CPU),
    Replacement("000", None, "to_device=torch.device('cuda:0')", "to_device=torch.device('cpu')", _CPU),
    Replacement("000", 11, "device_ids=[current_device.index]", "", _CPU),
    Replacement("000", None, "batch_size=1024", "batch_size=64", "a small graph would give one batch"),
    Replacement("000", 11, "range(10)", "range(2)", _SMALL),
    # 002: slides on distributed training with DGL
    Replacement("002", None, "import dgl\n", "import glt_lightning.compat.dgl as dgl\n", _OURS),
    Replacement("002", 0, "", "from slides import *\n", _UNDEFINED),
    Replacement(
        "002", 0, "enumerate(data_loader)", "enumerate(train_data_loader)", "the text calls the loader by two names"
    ),
    Replacement("002", 9, "", "import numpy as np\n", _UNDEFINED),
    # 003: a notebook on several GPUs with DGL
    Replacement("003", 0, "import dgl\n", "import glt_lightning.compat.dgl as dgl\n", _OURS),
    Replacement("003", 0, "import dgl.nn as dglnn\n", "import glt_lightning.compat.dgl.nn as dglnn\n", _OURS),
    Replacement("003", None, "'nccl'", "'gloo'", _CPU),
    Replacement("003", None, "    torch.cuda.set_device(rank)\n", "", _CPU),
    Replacement("003", None, ".cuda()", "", _CPU),
    Replacement("003", None, "b.to(rank)", "b.to('cpu')", _CPU),
    Replacement("003", None, ").to(rank)", ")", _CPU),
    Replacement("003", None, ", device_ids=[rank], output_device=rank", "", _CPU),
    Replacement("003", None, "tcp://127.0.0.1:12345", "file://{cwd}/rendezvous", "the port may be in use"),
    Replacement("003", None, "batch_size=1024", "batch_size=64", "a small graph would give one batch"),
    Replacement("003", None, "range(4)", "range(2)", _SMALL),
    Replacement("003", None, "(proc_id, 4, data)", "(proc_id, 2, data)", _SMALL),
]


def replaced(seed: str, blocks: Sequence[str]) -> list[str]:
    """The blocks as they run. Fails for a replacement that does not apply."""
    blocks = list(blocks)
    for each in (each for each in REPLACEMENTS if each.seed == seed):
        at = range(len(blocks)) if each.block is None else [each.block]
        at = [i for i in at if each.old in blocks[i]]
        assert at, f"seed {seed}: nothing to replace: {each}"
        for i in at:
            blocks[i] = blocks[i].replace(each.old, each.new) if each.old else each.new + blocks[i]
    return blocks
