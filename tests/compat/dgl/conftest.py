"""A ring by DGL's names, whose answers are known: v has in-edges from v + 1 and v + 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import glt_lightning.compat.dgl as dgl

NODES = 40


@pytest.fixture(scope="package")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user's ``partition_graph`` has written the ring: in three parts."""
    out = tmp_path_factory.mktemp("parts")
    around = torch.arange(NODES)
    edges = torch.stack([torch.cat([around + 1, around + 2]) % NODES, around.repeat(2)])
    data = Data(x=around[:, None].float(), y=around % 4, edge_index=edges, edge_attr=torch.arange(2.0 * NODES))
    data.train_mask = around < 30
    data.val_mask = around >= 30
    orig_nids, orig_eids = dgl.distributed.partition_graph(
        data, "ring", 3, out, balance_ntypes=data.train_mask, return_mapping=True
    )
    assert sorted(orig_nids.tolist()) == list(range(NODES))
    assert sorted(orig_eids.tolist()) == list(range(2 * NODES))
    torch.save((orig_nids, orig_eids), out / "mapping.pt")
    return out / "ring.json"


@pytest.fixture
def g(config: Path) -> Iterator[dgl.distributed.DistGraph]:
    dgl.distributed.initialize()
    with dgl.distributed.DistGraph("ring", part_config=config) as graph:
        yield graph
