"""`seed_weights`: which seeds an epoch of training draws, how a run goes on, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch_geometric.data import Data

from glt_lightning import SamplingOptions
from glt_lightning.base import DataError, OptionError
from tests.lightning.tiny import NODES, Noting, learnable_graph

TRAIN = 200


def skewed() -> Data:
    """The small graph, most of it to train on, with a rare class and weights of the nodes."""
    arrays = learnable_graph()
    mask = torch.zeros(NODES, dtype=torch.bool)
    mask[:TRAIN] = True
    y = torch.where(torch.arange(NODES) % 20 == 0, 1, 2 * (torch.arange(NODES) % 2))
    return Data(
        x=torch.from_numpy(arrays["x"]),
        y=y,
        edge_index=torch.from_numpy(arrays["edge_index"]),
        train_mask=mask,
        val_mask=~mask,
        importance=(torch.arange(NODES) % 3).float(),
        wide=torch.zeros(NODES, 2),
    )


def drawn(data: Any, epoch: int = 0) -> np.ndarray:
    data.prepare_data()
    data.setup()
    loader = data.train_dataloader()
    loader.set_epoch(epoch)
    assert len(loader) == TRAIN // 20
    found = np.concatenate([batch.n_id[: batch.batch_size].numpy() for batch in loader])
    data.teardown()
    return found


def test_balanced_draws_all_classes_equally_often(make_data) -> None:
    y = skewed().y.numpy()
    found = np.concatenate([drawn(make_data(dataset=skewed(), seeds={"weights": "balanced"}), e) for e in range(3)])
    np.testing.assert_allclose(np.bincount(y[found]) / len(found), [1 / 3] * 3, atol=0.08)
    assert sorted(drawn(make_data(dataset=skewed()))) == list(range(TRAIN))  # each once
    assert np.bincount(y[:TRAIN])[1] / TRAIN == 0.05


def test_attribute_says_how_often(make_data) -> None:
    options = {"dataset": skewed(), "seeds": {"weights": "importance"}, "sampling": SamplingOptions(seed=3)}
    found = drawn(make_data(**options, partition={"num_parts": 2}))
    np.testing.assert_allclose(np.bincount(found % 3, minlength=3) / TRAIN, [0, 1 / 3, 2 / 3], atol=0.1)
    assert (found == drawn(make_data(**options))).all()  # whatever the parts


def test_evaluation_sees_every_seed_once(make_data) -> None:
    data = make_data(dataset=skewed(), seeds={"weights": "balanced"})
    data.prepare_data()
    data.setup()
    found = [batch.n_id[: batch.batch_size].tolist() for batch in data.val_dataloader()]
    data.teardown()
    assert [node for batch in found for node in batch] == list(range(TRAIN, NODES))


def test_resume_draws_the_rest(make_data, make_model, make_trainer, tmp_path) -> None:
    keep = ModelCheckpoint(dirpath=tmp_path / "ckpt", filename="{step}", every_n_train_steps=5, save_top_k=-1)
    whole = make_model(Noting, dropout=0.0)
    options = {"dataset": skewed(), "seeds": {"weights": "balanced"}}
    make_trainer(enable_checkpointing=True, callbacks=[keep]).fit(whole, make_data(**options))
    again = make_model(Noting, dropout=0.0)
    path = str(tmp_path / "ckpt" / "step=5.ckpt")
    make_trainer().fit(again, make_data(**options, partition={"num_parts": 3}), ckpt_path=path)
    first, then = ([batch for epoch in model.seen for batch in epoch] for model in (whole, again))
    assert then == first[5:]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    with pytest.raises(OptionError, match=r"seed_weights: '[0-9a-f]{8}' in the checkpoint, None now"):
        make_trainer().fit(make_model(Noting), make_data(dataset=skewed()), ckpt_path=path)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (3, OptionError, "seeds.weights: expected balanced, or the name of a node attribute; got 3"),
        (
            "weight",
            DataError,
            "seeds.weights: nodes of type 'node' have no attribute 'weight'; they have importance, wide, x, y",
        ),
        ("wide", DataError, r"seeds.weights: wide: expected one number for each node, got \[200, 2\]"),
    ],
)
def test_what_does_not_fit(make_data, given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        drawn(make_data(dataset=skewed(), seeds={"weights": given}))


def test_labels_without_classes_are_not_balanced(make_data) -> None:
    data = skewed()
    data.y = data.y.float()
    with pytest.raises(DataError, match="balanced: expected one class for each node, but labels y are float32"):
        drawn(make_data(dataset=data, seeds={"weights": "balanced"}))
