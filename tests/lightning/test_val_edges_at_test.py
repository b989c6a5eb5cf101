"""``val_edges_at_test``: edges of validation carry messages at test, and neither in training nor in validation."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import seed_everything

from glt_lightning import GLTDataModule, LinkPredictor
from glt_lightning.base import GLTError
from glt_lightning.kernels import Kernels
from glt_lightning.workers.producer import on_gpu
from tests.lightning.test_link_task import BUYS, USERS, shop

ITEMS = 60


def links(folder: Path, **options: Any) -> GLTDataModule:
    given = {
        "dataset": str(shop(folder)),
        "root": str(folder / "root"),
        "task": "link",
        "seeds": {"input_type": BUYS},
        "undirected": True,
        "num_neighbors": [-1, -1],
        "evaluation": {"num_neighbors": [-1, -1]},
        "batch_size": 64,
        "partition": {"num_parts": 2},
        "links": {"exclude_target_edges": "none"},
    }
    merged = {"links": given["links"] | options.pop("links", {})}
    return GLTDataModule(**given | options | merged)


def pairs_of(folder: Path) -> dict[str, set[tuple[int, int]]]:
    file = np.load(folder / "shop.npz")
    edges = file[f"{BUYS}/edge_index"]
    names = {"train": "train", "val": "valid", "test": "test"}
    return {name: set(zip(*edges[:, file[f"{BUYS}/{key}_idx"]].tolist(), strict=True)) for name, key in names.items()}


def seen(batch: Any) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The pairs over which a batch passes messages, forth and back, and its negatives."""
    user, item = batch["user"].n_id, batch["item"].n_id
    found: set[tuple[int, int]] = set()
    for name, (a, b) in (("buys", (0, 1)), ("rev_buys", (1, 0))):
        edge_type = ("user", "buys", "item") if name == "buys" else ("item", "rev_buys", "user")
        ends = batch[edge_type].edge_index
        found |= set(zip(user[ends[a]].tolist(), item[ends[b]].tolist(), strict=True))
    store = batch["user", "buys", "item"]
    src, dst = store.edge_label_index[:, len(store.input_id) :]
    return found, set(zip(user[src].tolist(), item[dst].tolist(), strict=True))


@pytest.fixture
def workers(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of sampler processes, or the emulated kernels stand in for a GPU that samples."""
    if request.param == "gpu":
        kernels = request.getfixturevalue("kernels")
        monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
        monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    return int(request.param == 1)


@pytest.mark.parametrize("workers", [0, 1, "gpu"], indirect=True)
def test_messages_and_negatives_of_each_split(tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    data = links(tmp_path, links={"val_edges_at_test": True}, sampling={"num_workers": workers, "seed": 1})
    with caplog.at_level(logging.INFO):
        data.prepare_data()
        data.setup()
        loaders = {"train": data.train_dataloader(), "val": data.val_dataloader(), "test": data.test_dataloader()}
    pairs = pairs_of(tmp_path)
    assert "of validation are stored; they carry messages at test alone" in caplog.text
    assert "edges of validation carry no messages in split 'train'" in caplog.text
    assert "edges of validation carry messages in split 'test'" in caplog.text
    for split, loader in loaders.items():
        messages, negatives = set(), set()
        for _ in range(3 if split == "train" else 1):
            for batch in loader:
                more, drawn = seen(batch)
                messages, negatives = messages | more, negatives | drawn
        at_test = split == "test"
        known = pairs["train"] | (pairs["val"] if at_test else set())
        assert messages == known
        assert not negatives & (known | pairs[split])
        if split == "train":  # to reject them would give them away
            assert negatives & pairs["val"]
            assert negatives & pairs["test"]
    data.teardown()


def test_a_partition_keeps_them_out_where_nobody_asks(tmp_path: Path) -> None:
    """A run on the folder alone, without the option, passes no messages over edges of validation."""
    asked = links(tmp_path, links={"val_edges_at_test": True})
    asked.prepare_data()
    data = links(tmp_path, dataset=None, partition={"dir": str(asked.partition_dir)})
    data.prepare_data()
    data.setup()
    pairs = pairs_of(tmp_path)
    for loader in (data.train_dataloader(), data.test_dataloader()):
        assert set.union(*(seen(batch)[0] for batch in loader)) == pairs["train"]
    data.teardown()
    assert links(tmp_path).partition_dir != asked.partition_dir


def test_it_fits_and_tests(tmp_path: Path, make_trainer: Any) -> None:
    seed_everything(0, verbose=False)  # of the data module, too
    data = links(
        tmp_path,
        links={"val_edges_at_test": True, "edge_splits": {"num_val": 0.2, "num_test": 0.2}},
        num_neighbors=[4, 2],
    )
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": data.link_type}
    model = LinkPredictor(data.num_features, hidden_channels=16, lr=0.02, **described)
    trainer = make_trainer(max_epochs=15)
    trainer.fit(model, data)
    (tested,) = trainer.test(model, data, verbose=False)
    assert tested["test_auc"] > 0.7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampling": {"weight_attr": "rating"}},
            "val_edges_at_test: edges of validation are left out by their weight",
        ),
        ({"links": {"val_edges_at_test": "yes"}}, "val_edges_at_test: expected true or false, got 'yes'"),
        (
            {"task": "node", "seeds": {"input_type": None}, "links": {"exclude_target_edges": None}},
            "links.val_edges_at_test: has no effect with task: node",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(GLTError, match=re.escape(said)):
        links(
            tmp_path,
            links={"val_edges_at_test": True} | options.get("links", {}),
            **{k: v for k, v in options.items() if k != "links"},
        )


def test_a_partition_without_them(tmp_path: Path) -> None:
    plain = links(tmp_path)
    plain.prepare_data()
    data = links(tmp_path, dataset=None, partition={"dir": str(plain.partition_dir)}, links={"val_edges_at_test": True})
    data.prepare_data()
    data.setup()
    with pytest.raises(GLTError, match="val_edges_at_test: this partition has no edges of validation"):
        data.test_dataloader()
    data.teardown()
    assert USERS
