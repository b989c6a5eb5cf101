"""Fits that predict edges go on from a checkpoint in mid-epoch to the same bits; real graphs need nothing but YAML."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from glt_lightning import GLTDataModule, LinkPredictor
from tests.helpers import run_cli
from tests.lightning.test_link_task import BUYS, shop

CONFIGS = Path(__file__).parents[2] / "configs" / "reference"
WALKS = {"walks": 6, "length": 2, "restart": 0.3}
METAPATHS = {"item__near__item": [BUYS, f"item__rev_{BUYS.split('__')[1]}__user"]}
METAPATHS["user__like__user"] = METAPATHS["item__near__item"][::-1]


@pytest.mark.parametrize(
    ("neg_sampling", "loss", "sampling"),
    [
        pytest.param("binary", "bce", {}, marks=pytest.mark.slow),
        ({"mode": "triplet", "amount": 2, "dst_weight": "degree^0.75"}, "softmax", {}),
        pytest.param(
            "binary", "bce", {"importance_neighbors": WALKS | {"metapath": METAPATHS}}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_fit_resumes_in_mid_epoch(
    make_trainer: Any, tmp_path: Path, neg_sampling: Any, loss: str, sampling: dict
) -> None:
    shop(tmp_path)

    def fit(workers: int, ckpt: str | None = None) -> dict[str, torch.Tensor]:
        seed_everything(1, verbose=False)
        data = GLTDataModule(
            str(tmp_path / "shop.npz"),
            str(tmp_path),
            task="link",
            seeds={"input_type": BUYS},
            undirected=True,
            links={"neg_sampling": neg_sampling},
            num_neighbors=[4, 2],
            batch_size=64,
            partition={"num_parts": 2},
            sampling={"num_workers": workers, **sampling},
        )
        described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": data.link_type}
        model = LinkPredictor(data.num_features, hidden_channels=8, loss=loss, **described)
        keep = ModelCheckpoint(dirpath=tmp_path / "ckpt", filename="{step}", every_n_train_steps=5, save_top_k=-1)
        more = {"enable_checkpointing": True, "callbacks": [keep]} if ckpt is None else {}
        trainer = make_trainer(**more)
        trainer.fit(model, data, ckpt_path=ckpt)
        assert trainer.global_step % 5, "the checkpoint would be that of an epoch's end"
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    whole = fit(workers=1)
    for ckpt in sorted((tmp_path / "ckpt").glob("*.ckpt")):
        resumed = fit(0, str(ckpt))
        assert all(torch.equal(tensor, whole[name]) for name, tensor in resumed.items()), ckpt.name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "graph", "least"), [("dblp_link", "dblp_hetero", 0.92), ("wordnet_link", "wordnet", 0.77)]
)
def test_yaml_alone_learns_and_resumes(name: str, graph: str, least: float, tmp_path: Path) -> None:
    file = Path(os.environ.get("GLT_TEST_DATA", "data"), f"{graph}.npz").resolve()
    if not file.exists():
        pytest.skip(f"{file} is not here; set GLT_TEST_DATA to the folder of the reference data sets")
    options = ["--config", CONFIGS / f"{name}.yaml", "--data.dataset", file, "--data.root", tmp_path / "root"]
    options += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]

    def run(folder: str, *more: object) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        command, *rest = more
        run = run_cli(command, *options, *rest, cwd=tmp_path / folder, env={"OMP_NUM_THREADS": "1"}, timeout=300)
        return run.stdout

    def last(folder: str) -> dict[str, torch.Tensor]:
        (ckpt,) = (tmp_path / folder).rglob("last.ckpt")
        return torch.load(ckpt, weights_only=True)["state_dict"]

    steps = tmp_path / "steps.yaml"
    steps.write_text(
        f"""\
trainer:
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{dirpath: {tmp_path / "steps"}, filename: "{{step}}", every_n_train_steps: 37, save_top_k: -1}}
    - class_path: glt_lightning.lightning.BestCheckpoint
"""
    )
    run("whole", "fit", "--config", steps)
    tested = run("whole", "test", "--ckpt_path", "best")
    assert float(re.findall(r"test_auc\D+(\d\.\d+)", tested)[0]) >= least
    ckpt = max((tmp_path / "steps").glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    run("resumed", "fit", "--ckpt_path", ckpt)
    whole, resumed = last("whole"), last("resumed")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(tensor, resumed[key]) for key, tensor in whole.items())
