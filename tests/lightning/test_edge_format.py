"""Whole fits on ``edge_format: edge_index``: the weights are those of ``tensor``, and the edges keep what the samplers made."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch_geometric.nn import GraphConv
from torch_geometric.transforms import NormalizeFeatures

from glt_lightning import SamplingOptions
from glt_lightning.loader.edge_index import BatchEdges
from tests.helpers import run_cli
from tests.lightning.tiny import SHAPE, Noting
from tests.reference import ops as reference

FORMATS = ["tensor", "edge_index", "edge_index_csr"]


class Transforming(Noting):
    """Transforms each batch where it has arrived, and looks at its edges."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.kept = getattr(self, "kept", [])
        batch = NormalizeFeatures()(batch)
        edges = batch.edge_index
        if isinstance(edges, BatchEdges):
            plain, nodes = edges.as_tensor(), batch.num_nodes
            assert torch.equal(edges._indptr, reference.column_pointers(plain[1], nodes))
            if edges._T_perm is not None:
                made = edges._T_indptr, edges._T_index[1], edges._T_perm
                wanted = reference.by_source(*plain, nodes)
                assert all(torch.equal(mine, want) for mine, want in zip(made, wanted, strict=True))
            self.kept.append((self.trainer.training, edges._T_perm is not None))
        return batch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fit_has_the_same_weights(make_data, make_model, make_trainer, workers: int) -> None:
    found, kept = {}, {}
    for edge_format in FORMATS:
        model = make_model(Transforming)
        data = make_data(batches={"edge_format": edge_format}, sampling=SamplingOptions(num_workers=workers, seed=3))
        make_trainer().fit(model, data)
        found[edge_format] = (model.losses, [p.detach().clone() for p in model.parameters()])
        kept[edge_format] = {*getattr(model, "kept", [])}
    assert kept == {
        "tensor": set(),
        "edge_index": {(True, False), (False, False)},
        "edge_index_csr": {(True, True), (False, False)},  # evaluation has no backward pass
    }
    losses, weights = found["tensor"]
    for edge_format in FORMATS[1:]:
        assert found[edge_format][0] == losses
        assert all(torch.equal(a, b) for a, b in zip(found[edge_format][1], weights, strict=True))


class Products(Noting):
    """With layers of PyG that multiply by an `EdgeIndex` as a sparse matrix, backward by the order by source."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        widths = SHAPE["in_channels"], SHAPE["hidden_channels"], SHAPE["out_channels"]
        self.convs = torch.nn.ModuleList(GraphConv(a, b) for a, b in pairwise(widths))

    def forward(self, batch: Any) -> Any:
        x = self.convs[0](batch.x, batch.edge_index).relu()
        return self.convs[1](x, batch.edge_index)[: batch.batch_size]


def test_sparse_products_of_pyg(make_data, make_model, make_trainer) -> None:
    """Sums in another order, so not the same bits."""
    found = {}
    for edge_format in FORMATS:
        model = make_model(Products)
        make_trainer().fit(model, make_data(batches={"edge_format": edge_format}))
        found[edge_format] = torch.cat([p.detach().flatten() for p in model.convs.parameters()])
    for edge_format in FORMATS[1:]:
        torch.testing.assert_close(found[edge_format], found["tensor"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_ranks_from_the_command_line(graph_npz: Path, tmp_path: Path) -> None:
    """In worker mode, with rows of the other rank, one sampler process each."""
    weights = {}
    for edge_format in ("tensor", "edge_index_csr"):
        folder = tmp_path / edge_format
        folder.mkdir()
        trainer = {"strategy": "glt_worker", "devices": 2, "accelerator": "cpu", "max_epochs": 2, "logger": False}
        trainer |= {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": str(folder)}
        data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "num_neighbors": [5, 5], "batch_size": 10}
        data |= {"partition": {"num_parts": 2}, "batches": {"edge_format": edge_format}, "sampling": {"num_workers": 1}}
        run = {
            "seed_everything": 1,
            "trainer": trainer,
            "model": {"class_path": "GraphSAGE", "init_args": {"hidden_channels": 16, "num_layers": 2}},
            "data": {"class_path": "GLTDataModule", "init_args": data},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(run))
        run_cli("fit", "--config", folder / "run.yaml", cwd=folder, env={"OMP_NUM_THREADS": "1"})
        checkpoint = sorted(folder.rglob("*.ckpt"))[-1]
        weights[edge_format] = torch.load(checkpoint, weights_only=False)["state_dict"]
    assert weights["tensor"].keys() == weights["edge_index_csr"].keys()
    for name, value in weights["tensor"].items():
        assert torch.equal(value, weights["edge_index_csr"][name]), name
