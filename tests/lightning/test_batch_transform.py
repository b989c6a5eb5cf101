"""``data.batches.transform`` in whole fits, with every strategy; and how it differs from ``data.transforms``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_geometric.transforms import NormalizeFeatures

from glt_lightning import SamplingOptions
from glt_lightning.base import DataError, OptionError
from glt_lightning.cli import main
from tests.lightning.tiny import Noting

PATH = "torch_geometric.transforms.NormalizeFeatures"


class Normalizing(Noting):
    """Does to each batch, where it has arrived, what the transform does before."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return NormalizeFeatures()(batch)


def test_every_strategy_gives_the_same_fit(make_data, make_model, make_trainer) -> None:
    options = {"sampling": SamplingOptions(seed=3), "partition": {"num_parts": 2}}
    by_hand, plain = make_model(Normalizing, dropout=0.0), make_model(Noting, dropout=0.0)
    make_trainer().fit(by_hand, make_data(**options))
    make_trainer(max_epochs=1).fit(plain, make_data(**options))
    assert by_hand.losses[: len(plain.losses)] != plain.losses
    for strategy in ("auto", "glt_worker", "glt_server_client"):
        model = make_model(Noting, dropout=0.0)
        make_trainer(strategy=strategy).fit(model, make_data(**options, batches={"transform": {"class_path": PATH}}))
        assert model.losses == by_hand.losses, strategy


def test_from_the_command_line(graph_npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error of a transform is the one of its loader."""
    options = [
        "--data.dataset",
        str(graph_npz),
        "--data.root",
        str(tmp_path / "root"),
        "--data.num_neighbors",
        "[2, 2]",
    ]
    options += [
        "--trainer.default_root_dir",
        str(tmp_path),
        "--trainer.accelerator",
        "cpu",
        "--trainer.logger",
        "false",
    ]
    options += ["--model", "GraphSAGE", "--data.batches.transform.class_path", "torch_geometric.transforms.KNNGraph"]
    options += ["--data.batches.transform.init_args.k", "3"]
    with pytest.raises(SystemExit):
        main(["fit", "--data", "GLTDataModule", *options])
    assert 'transform torch_geometric.transforms.KNNGraph({"k": 3}): failed on batch 0' in capsys.readouterr().err


def test_transform_is_not_transforms(make_data) -> None:
    with pytest.raises(
        OptionError, match=r"transform: expected one transform of batches.* before it is partitioned is data.transforms"
    ):
        make_data(batches={"transform": [PATH]})
    with pytest.raises(
        OptionError, match=r"transforms: expected a list of class paths.*changes every batch is batches.transform"
    ):
        make_data(transforms=PATH)
    with pytest.raises(DataError, match=r"transform: cannot import 'no.Such'"):
        make_data(batches={"transform": "no.Such"})
