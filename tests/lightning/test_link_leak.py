"""A model that may pass messages over the edges that it is to predict learns to look them up."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torchmetrics.functional import auroc

from glt_lightning import LinkPredictor
from glt_lightning.loader import LinkSpec, Session
from tests.helpers.partitions import partitioned

NODES, EDGES, WIDTH = 10_000, 8_000, 24


def noise() -> tuple[Data, np.ndarray]:
    """Edges at random, each in both directions, between nodes whose features are noise: none can be foretold."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, NODES, (2, 2 * EDGES)), axis=0), axis=1)
    pairs = rng.permutation(pairs[:, pairs[0] != pairs[1]], axis=1)[:, :EDGES]
    edges = torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1))
    x = torch.from_numpy(rng.normal(size=(NODES, WIDTH)).astype(np.float32))
    return Data(x=x, edge_index=edges, num_nodes=NODES), pairs


def auc_of_unseen_edges(context: Session, pairs: np.ndarray, exclude: str) -> float:
    """Of the second half of the edges, by a model that is trained on the first; the graph has both."""
    torch.manual_seed(0)
    plain = {"num_neighbors": [-1], "batch_size": 125, "neg_sampling": "binary", "exclude_target_edges": exclude}
    halves = np.split(pairs, 2, axis=1)
    train, val = (
        context.make_loader(LinkSpec(name=f"{exclude}_{i}", edge_label_index=half, shuffle=i == 0, **plain))
        for i, half in enumerate(halves)
    )
    model = LinkPredictor(WIDTH, hidden_channels=2 * WIDTH, num_layers=1, dropout=0.0, decoder="bilinear")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(15):
        train.set_epoch(epoch)
        for batch in train:
            optimizer.zero_grad()
            scores = model(batch)
            both = torch.cat([scores.positive, scores.negative])
            torch.nn.functional.binary_cross_entropy_with_logits(both, batch.edge_label).backward()
            optimizer.step()
    with torch.no_grad():
        found = [(torch.cat([(s := model(batch)).positive, s.negative]), batch.edge_label) for batch in val]
    scores, labels = (torch.cat(each) for each in zip(*found, strict=True))
    return float(auroc(scores, labels.long(), task="binary"))


def test_predicting_noise(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    """O11 of the specification. Edges of noise look predictable where they are not excluded, and the log warns of it."""
    data, pairs = noise()
    with Session(partitioned(data, tmp_path, 2)) as context, caplog.at_level(logging.WARNING):
        honest = auc_of_unseen_edges(context, pairs, "reverse")
        assert "exclude_target_edges" not in caplog.text
        leaking = auc_of_unseen_edges(context, pairs, "none")
    assert abs(honest - 0.5) < 0.06
    assert leaking > 0.9
    assert "messages are passed over the edges that are to be predicted" in caplog.text
