"""Training a distributed embedding with accelerator gpu: its rows and states stay in the host's memory."""

import numpy as np
import pytest
from lightning.pytorch import Trainer, seed_everything

from glt_lightning import DistEmbedding, GraphSAGE
from tests.lightning.tiny import learnable_graph
from tests.tensors.test_models import data_of, without_features
from tests.tensors.twins import QUIET

pytestmark = pytest.mark.gpu


def fit(folder, accelerator):
    data = data_of(folder, without_features(folder / "bare.npz", learnable_graph()))
    seed_everything(1, verbose=False)
    model = GraphSAGE(
        None,
        data.num_classes,
        hidden_channels=16,
        num_layers=2,
        dropout=0.0,
        num_nodes=data.num_nodes,
        node_embedding="sparse",
    )
    options = {**QUIET, "accelerator": accelerator, "devices": 1}
    trainer = Trainer(**options, max_epochs=2, enable_checkpointing=False)
    trainer.fit(model, data)
    (embedding,) = (each for each in model.modules() if isinstance(each, DistEmbedding))
    return embedding, np.array(embedding.rows.table.own)


def test_rows_stay_on_the_host(kernels, tmp_path):
    _, expected = fit(tmp_path, "cpu")
    embedding, rows = fit(tmp_path, "gpu")
    assert isinstance(embedding.rows.table.own, np.ndarray)
    assert all(isinstance(table.own, np.ndarray) for table in embedding.rows.states.values())
    assert rows == pytest.approx(expected, rel=0.05, abs=0.02)  # sums on a GPU are rounded in another order
