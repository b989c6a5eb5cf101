"""A run over time: a model that could see later events would always be right, and ours is as good as what is known in time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import seed_everything

from glt_lightning import GLTDataModule, GraphSAGE
from tests.helpers import run_cli

HINT_IS_RIGHT = 0.75  # the share of users whose early event tells the truth


@dataclass(frozen=True)
class Records:
    """A database of users, events and shops, as RelBench's: users have a label, which an early event of theirs tells, mostly, and
    a later one always. Each user is asked about twice in between.

    path: the graph.  times: split -> file of the times of its seeds.  bound: the share of test rows whose early event is right.
    """

    path: Path
    times: dict[str, str]
    bound: float

    @classmethod
    def write(cls, folder: Path, users: int = 900, seed: int = 0) -> Records:
        rng = np.random.default_rng(seed)
        label = rng.integers(0, 2, users)
        told = np.where(rng.random(users) < HINT_IS_RIGHT, label, 1 - label)
        begin = rng.integers(
            0, 1_000_000, users
        )  # users live at different times: what is late for one is early for others
        # of each user a hint, an event that says nothing, and the outcome
        kinds = [(begin, told, 0), (begin + 150, None, 0), (begin + 300, label, 1)]
        x, times = np.zeros((3 * users, 5), np.float32), np.concatenate([time for time, _, _ in kinds])
        for number, (_, tells, late) in enumerate(kinds):
            if tells is not None:
                x[np.arange(users) + number * users, 2 * late + tells] = 1
        x[:, 4] = rng.random(3 * users)
        order = rng.permutation(users)
        splits = dict(zip(("test", "valid", "train"), np.split(order, [users // 4, users // 3]), strict=True))
        of_user = np.stack([np.arange(3 * users), np.tile(np.arange(users), 3)])
        np.savez(
            folder / "records.npz",
            **{"user/x": np.ones((users, 1), np.float32), "user/y": label, "user/when": begin - 1},
            **{"event/x": x, "event/when": times},
            **{"shop/x": np.ones((7, 1), np.float32), "shop/when": np.zeros(7, np.int64)},
            **{"event__of__user/edge_index": of_user},
            **{"event__at__shop/edge_index": np.stack([np.arange(3 * users), rng.integers(0, 7, 3 * users)])},
            **{f"user/{name}_idx": np.concatenate([ids, ids]) for name, ids in splits.items()},
        )
        files = {}
        for name, ids in splits.items():
            file = folder / f"{name}_times.npy"
            np.save(file, np.concatenate([begin[ids] + 100, begin[ids] + 200]))
            files["val" if name == "valid" else name] = str(file)
        return cls(folder / "records.npz", files, float((told == label)[splits["test"]].mean()))


TEMPORAL = {"time_attr": "when"}


def accuracy(records: Records, make_trainer: Any, sampling: dict[str, Any], partition: dict[str, Any]) -> float:
    seed_everything(1, verbose=False)
    data = GLTDataModule(
        str(records.path),
        str(records.path.parent),
        undirected=True,
        num_neighbors=[3, 2],
        batch_size=64,
        evaluation={"num_neighbors": [3, 2]},
        partition=partition,
        sampling=sampling,
        seeds={"input_time": records.times if sampling else None},
    )
    shape = {"num_nodes": data.num_nodes, "metadata": data.metadata, "num_layers": 2, "dropout": 0.0}
    shape |= {"target_type": data.target_type}
    model = GraphSAGE(data.num_features, data.num_classes, hidden_channels=16, lr=0.02, **shape)
    trainer = make_trainer(max_epochs=3)
    trainer.fit(model, data)
    return float(trainer.test(model, data, verbose=False)[0]["test_acc"])


@pytest.mark.parametrize("sampling", [TEMPORAL, TEMPORAL | {"temporal_strategy": "last"}, {}])
def test_accuracy_is_that_of_what_is_known_in_time(tmp_path: Path, make_trainer: Any, sampling: dict[str, Any]) -> None:
    """With `time_attr` the bound is met and not passed; without it the model reads the outcome."""
    records = Records.write(tmp_path)
    found = accuracy(records, make_trainer, sampling, {"num_parts": 2})
    expected = records.bound if sampling else 1.0
    assert found == pytest.approx(expected, abs=0.02)
    assert records.bound < 0.85


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_by_yaml_in_worker_mode(tmp_path: Path) -> None:
    records = Records.write(tmp_path)
    config = tmp_path / "temporal.yaml"
    config.write_text(
        f"""\
seed_everything: 1
trainer: {{strategy: glt_worker, devices: 2, accelerator: cpu, max_epochs: 4, enable_progress_bar: false}}
model:
  class_path: glt_lightning.GraphSAGE
  init_args: {{hidden_channels: 16, num_layers: 2, dropout: 0.0, lr: 0.02}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    dataset: {records.path}
    root: {tmp_path / "root"}
    undirected: true
    num_neighbors: [3, 2]
    evaluation: {{num_neighbors: [3, 2]}}
    batch_size: 32
    seeds:
      input_time: {{train: {records.times["train"]}, val: {records.times["val"]}, test: {records.times["test"]}}}
    partition: {{num_parts: 2, algorithm: metis}}
    sampling: {{num_workers: 1, time_attr: when, time_boundary: "<"}}
"""
    )
    run_cli("fit", "--config", config, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, timeout=300)
    (ckpt,) = tmp_path.rglob("last.ckpt")
    tested = run_cli(
        "test", "--config", config, "--ckpt_path", ckpt, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}, timeout=300
    )
    found = float(re.findall(r"test_acc\D+(\d\.\d+)", tested.stdout)[0])
    assert found == pytest.approx(records.bound, abs=0.02)
