"""Sampling throughput and wait share in the log."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from glt_lightning import SamplingMonitor, SamplingOptions
from glt_lightning.lightning.callbacks import monitor
from tests.helpers import run_script
from tests.lightning.test_two_ranks import WITH_TESTS
from tests.lightning.tiny import WIDTH, Noting

KEYS = {"glt/batches_per_s", "glt/seeds_per_s", "glt/sampled_edges_per_s", "glt/wait_share", "glt/core_wait_share"}
KEYS |= {"glt/local_share", "glt/deduplicated_share", "glt/disk_rows_per_batch"}
KEYS |= {"glt/remote_rows_per_batch", "glt/remote_mb_per_batch"}

# Each rank holds one of two parts and counts, of each batch, the nodes of the other's. Then one rank alone has a loader
# of ours.
TWO_RANKS = """
import json, os, sys
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader
from glt_lightning import ClusterOptions, GLTDataModule, GLTWorkerStrategy, LocalPartition, SamplingMonitor
from glt_lightning.loader import Session, LoaderSpec
from tests.lightning.tiny import Noting

torch.set_num_threads(1)
options = {"accelerator": "cpu", "devices": 2, "logger": False, "enable_progress_bar": False,
    "enable_model_summary": False, "enable_checkpointing": False}

class Counting(Noting):
    def on_train_epoch_start(self):
        self.counts = dict.fromkeys(["batches", "local", "others", "seeds", "nodes", "edges"], 0)

    def on_fit_start(self):
        whole = LocalPartition.open(self.trainer.datamodule.partition_dir)
        ids = whole.node_shards(0, "n_id")
        first, end = whole.manifest.bounds[0][self.global_rank : self.global_rank + 2]
        mine = ids.gather(torch.arange(first, end).numpy(), torch.empty(int(end - first), dtype=torch.int32).numpy())
        self.mine = torch.from_numpy(mine)

    def training_step(self, batch, batch_idx):
        local = int(torch.isin(batch.n_id, self.mine).sum())
        found = {"batches": 1, "local": local, "others": len(batch.n_id) - local, "seeds": batch.batch_size,
            "nodes": len(batch.n_id), "edges": batch.edge_index.shape[1]}
        self.counts = {name: n + found[name] for name, n in self.counts.items()}
        return super().training_step(batch, batch_idx)

class Mixed(BoringModel):
    def train_dataloader(self):
        if self.global_rank == 1:
            return DataLoader(RandomDataset(32, 5))
        self.context = Session(LocalPartition.open(folder))
        return self.context.make_loader(LoaderSpec(name="a", split="train", num_neighbors=[2], batch_size=20))

    def training_step(self, batch, batch_idx):
        return super().training_step(torch.ones(1, 32), batch_idx)

if __name__ == "__main__":
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, **json.loads(sys.argv[1]))
    model, strategy = Counting(), GLTWorkerStrategy(cluster=ClusterOptions(placement="rank"))
    trainer = Trainer(strategy=strategy, max_epochs=2, **options)
    trainer.fit(model, data)
    folder, rank = data.partition_dir, trainer.global_rank
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("glt/")}
    print("RESULT", json.dumps([rank, model.counts, logged]), flush=True)
    model, trainer = Mixed(), Trainer(strategy="ddp", max_epochs=1, limit_val_batches=0, use_distributed_sampler=False,
        callbacks=[SamplingMonitor()], **options)
    trainer.fit(model)
    if rank == 0:
        model.context.close()
    print("MIXED", json.dumps([rank, float(trainer.callback_metrics["glt/local_share"])]), flush=True)
"""


class Slow(Noting):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(0.2)
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("workers", [0, 1])
def test_totals_of_an_epoch(make_data, make_model, make_trainer, workers: int) -> None:
    trainer = make_trainer(callbacks=[SamplingMonitor()], val_check_interval=2)
    begin = time.perf_counter()
    trainer.fit(
        make_model(Slow), make_data(sampling=SamplingOptions(num_workers=workers), evaluation={"batch_size": 50})
    )
    spent = time.perf_counter() - begin
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("glt/")}
    assert logged.keys() == KEYS
    assert 0 <= logged["glt/wait_share"] <= 1
    assert 0 <= logged["glt/core_wait_share"] < 1
    assert logged["glt/seeds_per_s"] == pytest.approx(20 * logged["glt/batches_per_s"])
    assert logged["glt/sampled_edges_per_s"] > logged["glt/seeds_per_s"]
    # five batches of at least 0.02 s; validation, which takes longer, does not count
    assert 5 / spent < logged["glt/batches_per_s"] <= 50


def test_nothing_without_a_loader_of_ours(make_trainer) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

    trainer = make_trainer(callbacks=[SamplingMonitor()], limit_val_batches=0)
    trainer.fit(BoringModel(), DataLoader(RandomDataset(32, 8)))
    assert not {name for name in trainer.callback_metrics if name.startswith("glt/")}


def test_metrics_reach_the_users_callbacks(make_data, make_model, make_trainer) -> None:
    from lightning.pytorch.callbacks import EarlyStopping

    stop = EarlyStopping("glt/wait_share", mode="min", stopping_threshold=2.0, check_on_train_epoch_end=True)
    trainer = make_trainer(callbacks=[SamplingMonitor(), stop], max_epochs=5)
    trainer.fit(make_model(), make_data())
    assert stop.stopped_epoch == 0
    assert isinstance(trainer.callback_metrics["glt/wait_share"], torch.Tensor)


@pytest.mark.parametrize(
    ("workers", "cache"),
    [
        pytest.param(0, {}, marks=pytest.mark.slow),
        pytest.param(1, {"policy": "degree", "ratio": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_two_ranks_with_a_part_each(graph_npz: Path, tmp_path: Path, workers: int, cache: dict[str, Any]) -> None:
    data = {"dataset": str(graph_npz), "root": "root", "partition": {"num_parts": 2}, "cache": cache}
    data["sampling"] = {"num_workers": workers}
    output = run_script(TWO_RANKS, json.dumps(data), cwd=tmp_path, env=WITH_TESTS).stdout
    results = sorted(json.loads(line) for line in re.findall(r"RESULT (.*)", output))
    assert [rank for rank, _, _ in results] == [0, 1]
    total = {name: sum(counts[name] for _, counts, _ in results) for name in results[0][1]}
    assert min(total.values()) > 0
    for _, _, logged in results:
        assert logged.keys() == KEYS | {"glt/cache_hit_rate"}
        assert logged == results[0][2]
    hit_rate = logged["glt/cache_hit_rate"]
    assert 0.05 < hit_rate < 0.95 if cache else hit_rate == 0
    asked = round(total["others"] * (1 - hit_rate))
    row_bytes = 4 + 4 * WIDTH + 8  # its id, x, y
    wanted = {
        "glt/cache_hit_rate": 1 - asked / total["others"],
        "glt/local_share": total["local"] / total["nodes"],
        "glt/remote_rows_per_batch": asked / total["batches"],
        "glt/remote_mb_per_batch": asked * row_bytes / 1e6 / total["batches"],
        "glt/disk_rows_per_batch": 0.0,
        "glt/deduplicated_share": 1 - total["nodes"] / (total["seeds"] + total["edges"]),
    }
    assert {name: logged[name] for name in wanted} == pytest.approx(wanted)
    said = re.findall(r"glt: epoch \d: .*", output)
    assert [int(line.split(": ")[1].removeprefix("epoch ")) for line in said] == [0, 1, 0]
    rate = re.search(r": ([\d,]+) seeds/s, ", said[1])
    assert rate is not None
    assert int(rate[1].replace(",", "")) == pytest.approx(logged["glt/seeds_per_s"], abs=0.51)
    assert f" cached (hit rate {hit_rate:.2f}), " in said[1] if cache else "cached" not in said[1]
    assert f", {asked / total['nodes']:.0%} remote (" in said[1]
    mixed = sorted(json.loads(line) for line in re.findall(r"MIXED (.*)", output))
    assert mixed == [[0, 1.0], [1, 1.0]]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("glt: epoch")]


def test_it_is_there_unless_the_user_has_one(make_data, make_model, make_trainer, caplog) -> None:
    caplog.set_level(logging.INFO)
    trainer = make_trainer(enable_checkpointing=True, max_epochs=1)
    trainer.fit(make_model(), make_data())
    assert "glt/local_share" in trainer.callback_metrics
    trainer.fit(make_model(), make_data())
    last = [type(callback).__name__ for callback in trainer.callbacks][-3:]
    assert last == ["PrecisionProbe", "RunReport", "ModelCheckpoint"]
    assert sum(isinstance(callback, SamplingMonitor) for callback in trainer.callbacks) == 1
    assert len(lines(caplog)) == 1  # the second fit had nothing to do
    trainer = make_trainer(callbacks=[SamplingMonitor(line=False)])
    trainer.fit(make_model(), make_data())
    assert sum(isinstance(callback, SamplingMonitor) for callback in trainer.callbacks) == 1
    assert len(lines(caplog)) == 1
    trainer = make_trainer(barebones=True, enable_checkpointing=None)
    trainer.fit(make_model(), make_data())
    assert len(lines(caplog)) == 1


def test_a_line_for_each_epoch(make_data, make_model, make_trainer, caplog) -> None:
    caplog.set_level(logging.INFO)
    make_trainer().fit(make_model(Slow), make_data(sampling=SamplingOptions(num_workers=1)))
    for epoch, line in enumerate(lines(caplog)):
        assert re.match(rf"glt: epoch {epoch}: [\d,]+ seeds/s, \d+% waiting for batches, bound by \w+", line)


def test_the_line_is_not_glued_to_a_progress_bar(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(monitor, "rank_zero_info", lambda text: print(text, file=sys.stderr))
    with tqdm(total=2, desc="Epoch 0", file=sys.stderr, ncols=60) as bar:
        bar.update()
        monitor._say("glt: epoch 0: some batches")
        bar.update()
    shown = re.split(r"[\r\n]", capsys.readouterr().err)
    assert "glt: epoch 0: some batches" in shown


def test_the_line_is_broken_between_words() -> None:
    text = "glt: epoch 12: 10,547 seeds/s, 15% waiting for batches, bound by network (79% of sampler time); rows: 50% local"
    broken = monitor.fitted(text, 80)
    assert [len(line) <= 80 for line in broken.splitlines()] == [True, True]
    assert " ".join(broken.split()) == text
    assert monitor.fitted(text, 160) == text
