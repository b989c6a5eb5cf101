"""Data sets that ask to predict links have no seeds: the user names them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError
from glt_lightning.lightning import GLTDataModule
from glt_lightning.partition.sources.ogb.source import read_edge_splits
from tests.helpers.ogb_layout import RawGraph
from tests.helpers.ogb_links import lay_out_links, write_link_splits

NAME = "ogbl-collab"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDATED_IGNORE", "1")  # importing ogb sets it
    write_link_splits(lay_out_links(tmp_path, NAME, RawGraph.random(np.random.default_rng(0))), NAME)
    return tmp_path


def test_training_without_seeds_is_refused(root: Path) -> None:
    data = GLTDataModule(dataset=NAME, root=str(root), num_neighbors=[3])
    data.prepare_data()
    data.setup("fit")
    said = re.escape(
        "split 'train': not in the data set, which has none. Give its node ids as data.seeds.splits.train, or"
    )
    with pytest.raises(DataError, match=said):
        data.train_dataloader()
    data.teardown("fit")


def test_ends_of_links_as_seeds(root: Path) -> None:
    links = read_edge_splits(NAME, root)["train"]["edge"]
    ends = np.unique(links)
    data = GLTDataModule(
        dataset=NAME, root=str(root), num_neighbors=[3, 3], batch_size=4, seeds={"splits": {"train": ends}}
    )
    assert (data.num_features, data.num_classes) == (7, None)
    data.prepare_data()
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert sorted(i for batch in batches for i in batch.n_id[: batch.batch_size].tolist()) == ends.tolist()
    assert all(batch.edge_weight.shape == (batch.num_edges, 1) for batch in batches)
    data.teardown("fit")
