"""examples/partition_products.py, on a small data set laid out as OGB's, and a training from what it wrote."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from glt_lightning import GLTDataModule, PartitionOptions
from tests.helpers.ogb_layout import RawGraph, lay_out

pytest.importorskip("ogb")
SCRIPT = Path(__file__).parents[2] / "examples/partition_products.py"


@pytest.mark.parametrize("partitioner", ["random", "frequency", "metis", "streaming"])
def test_partition_then_load(tmp_path: Path, partitioner: str) -> None:
    raw = RawGraph.random(np.random.default_rng(0))
    lay_out(tmp_path, "ogbn-products", raw)
    runpy.run_path(str(SCRIPT))["main"](["--root", str(tmp_path), "--partitioner", partitioner])
    folder = tmp_path / f"ogbn_products-{partitioner}-2"
    data = GLTDataModule(partition=PartitionOptions(dir=str(folder)), num_neighbors=[3], batch_size=10)
    assert (data.num_features, data.num_nodes, data.num_classes) == (7, 60, raw.y.max() + 1)
    data.prepare_data()
    data.setup()
    seen = list(data.val_dataloader())
    seeds = np.concatenate([batch.n_id[: batch.batch_size] for batch in seen])
    assert seeds.tolist() == raw.splits["valid"].tolist()
    for batch in seen:
        np.testing.assert_array_equal(batch.x, raw.x[batch.n_id])
        np.testing.assert_array_equal(batch.y, raw.y[batch.n_id, 0])
    data.teardown()
