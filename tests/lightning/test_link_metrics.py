"""Hits@K and MRR against OGB's own Evaluator: any batches, any number of ranks, ties included."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from glt_lightning import OGBMRR, HitsAtK
from glt_lightning.base import DataError, OptionError
from tests.helpers import run_script

HITS = {"ogbl-ddi": 20, "ogbl-collab": 50, "ogbl-ppa": 100}


@pytest.fixture
def ogb(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OUTDATED_IGNORE", "1")  # importing ogb asks the network for newer versions
    from ogb.linkproppred import Evaluator

    return lambda name, pos, neg: Evaluator(name).eval({"y_pred_pos": pos, "y_pred_neg": neg})


def scores(rng: np.random.Generator, *shape: int, levels: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random scores; ``levels``: that many different ones, so that many tie."""
    drawn = rng.integers(0, levels, shape) - levels // 2 if levels else rng.normal(size=shape)
    return torch.from_numpy(np.asarray(drawn)).to(dtype)


def in_batches(rng: np.random.Generator, rows: Tensor, batches: int) -> Iterator[Tensor]:
    cuts = np.sort(rng.integers(0, len(rows) + 1, batches - 1))
    return iter(torch.tensor_split(rows, cuts.tolist()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [0, 7, 60])
@pytest.mark.parametrize("name", HITS)
def test_hits_are_those_of_ogb(ogb: Any, name: str, levels: int, dtype: torch.dtype) -> None:
    rng, k = np.random.default_rng(levels), HITS[name]
    pos, neg = scores(rng, 90, levels=levels, dtype=dtype) + 1, scores(rng, 300, levels=levels, dtype=dtype)
    metric = HitsAtK(k)
    for _ in range(2):  # the second time after a reset
        metric.reset()
        for one, other in zip(in_batches(rng, pos, 8), in_batches(rng, neg, 8), strict=True):
            metric.update(one, other)
        wanted = ogb(name, pos, neg)[f"hits@{k}"]
        assert metric.compute() == torch.tensor(wanted, dtype=torch.float32)
    assert levels == 7 or 0 < wanted < 1


def test_hits_by_hand() -> None:
    """Strictly above the K-th best: of negatives 3, 2, 2, 1 the second and the third best are both 2."""
    pos, neg = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([2.0, 3.0, 1.0, 2.0])
    for k, wanted in ((1, 0.25), (2, 0.5), (3, 0.5), (4, 0.75)):
        metric = HitsAtK(k)
        assert metric(pos, neg) == wanted  # of a batch
        assert metric.compute() == wanted  # of all so far
    lowest = HitsAtK(1)
    lowest.update(torch.tensor([-torch.inf, -1.0]), torch.tensor([-torch.inf]))
    assert lowest.compute() == 0.5


def test_fewer_negatives_than_k(ogb: Any) -> None:
    metric, pos, neg = HitsAtK(20), torch.tensor([-torch.inf, 1.0]), torch.arange(19.0)
    metric.update(pos, neg)
    with pytest.warns(UserWarning, match=r"HitsAtK: fewer than 20 negatives; Hits@20 is then 1, as OGB's"):
        assert metric.compute() == ogb("ogbl-ddi", pos, neg)["hits@20"] == 1.0


def test_a_rank_holds_k_negatives_and_the_positives_above_them() -> None:
    metric, rng = HitsAtK(5), np.random.default_rng(0)
    for _ in range(20):
        metric.update(scores(rng, 100), scores(rng, 100))
    assert metric.negatives.shape == (5,)
    assert sum(map(len, metric.positives)) < 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("levels", [0, 3, 40])
def test_mrr_is_that_of_ogb(ogb: Any, levels: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(levels)
    pos, neg = scores(rng, 80, levels=levels, dtype=dtype), scores(rng, 80, 50, levels=levels, dtype=dtype)
    metric = OGBMRR()
    for rows in in_batches(rng, torch.arange(80), 7):
        metric.update(pos[rows], neg[rows])
    whole = OGBMRR()
    assert whole(pos, neg) == metric.compute()  # bit for bit
    torch.testing.assert_close(metric.compute(), ogb("ogbl-citation2", pos, neg)["mrr_list"].mean())


def test_mrr_by_hand() -> None:
    metric = OGBMRR()
    metric.update(torch.tensor([2.0, 2.0]), torch.tensor([[1.0, 0.0, 1.0], [3.0, 2.0, 1.0]]))  # ranks 1, 2.5
    metric.update(torch.tensor([0.0]), torch.tensor([[0.0] * 4]))  # rank 3
    metric.update(torch.tensor([0.0]), torch.zeros(1, 0))  # no negatives: rank 1
    torch.testing.assert_close(metric.compute(), torch.tensor((1 + 1 / 2.5 + 1 / 3 + 1) / 4))


@pytest.mark.parametrize("metric", [HitsAtK(2), OGBMRR()])
def test_nothing_to_rank_is_nan(metric: Any) -> None:
    metric.reset()
    metric.update(torch.zeros(0), torch.zeros(0, 3) if isinstance(metric, OGBMRR) else torch.ones(3))
    assert metric.compute().isnan()
    assert pickle.loads(pickle.dumps(metric)).compute().isnan()


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_k_is_checked(k: Any) -> None:
    with pytest.raises(OptionError, match=r"k: expected an integer >= 1, got "):
        HitsAtK(k)


@pytest.mark.parametrize(
    ("metric", "pos", "neg", "said"),
    [
        (HitsAtK(1), torch.ones(2, 1), torch.ones(2), r"y_pred_pos: expected floats \[P\]; got torch.float32 \[2, 1\]"),
        (HitsAtK(1), torch.ones(2), torch.ones(2, 1), r"y_pred_neg: expected floats \[N\]; got torch.float32 \[2, 1\]"),
        (HitsAtK(1), torch.ones(2).long(), torch.ones(2), r"y_pred_pos: expected floats \[P\]; got torch.int64 \[2\]"),
        (HitsAtK(1), [1.0], torch.ones(2), r"y_pred_pos: expected a tensor of floats \[P\]; got list"),
        (HitsAtK(1), torch.ones(2), torch.tensor([torch.nan, 1]), r"y_pred_neg: 1 of 2 scores are NaN"),
        (OGBMRR(), torch.ones(2), torch.ones(2), r"y_pred_neg: expected floats \[P, K\]; got torch.float32 \[2\]"),
        (
            OGBMRR(),
            torch.ones(2),
            torch.ones(3, 4),
            r"y_pred_neg: expected a row for each of 2 positives; got \[3, 4\]",
        ),
        (OGBMRR(), torch.tensor([torch.nan]), torch.ones(1, 4), r"y_pred_pos: 1 of 1 scores are NaN"),
    ],
)
def test_scores_are_checked(metric: Any, pos: Any, neg: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        metric.update(pos, neg)
    assert metric.num_positives == 0  # nothing was added


class Ranked(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.hits = HitsAtK(2)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.hits.update(batch[:, 0], batch[:, 1])
        self.log("val_hits@2", self.hits, batch_size=len(batch))


def test_lightning_logs_the_number_of_the_epoch() -> None:
    rows = torch.tensor([[4.0, 1.0], [1.0, 3.0], [2.5, 2.0]])  # positives, negatives; the second best of these is 2
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    assert trainer.validate(Ranked(), DataLoader(rows, batch_size=1), verbose=False) == [
        {"val_hits@2": pytest.approx(2 / 3)}
    ]


SCRIPT = """
import json, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from glt_lightning import OGBMRR, HitsAtK

def rank(number, store, half):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    pos, neg, lists = torch.load("scores.pt")
    hits, mrr, idle = HitsAtK(50), OGBMRR(), HitsAtK(50)
    if half:  # as precision: bf16-true does
        hits, mrr, idle = hits.to(torch.bfloat16), mrr.to(torch.bfloat16), idle.to(torch.bfloat16)
    mine = slice(0, 70) if number else slice(70, None)
    for rows in pos[mine].split(13):
        hits.update(rows, neg[:0])
    for rows in neg[mine].split(29):
        hits.update(pos[:0], rows)
    mrr.update(pos[mine], lists[mine])
    if number:  # the other rank has no batch at all
        idle.update(pos, neg)
    found = [metric.compute().item() for metric in (hits, mrr, idle)]
    with open(f"{number}{half}.json", "w") as out:
        json.dump([found, len(hits.negatives)], out)  # after a result a rank has its own state again
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.set_num_threads(1)
    for half in (False, True):
        mp.start_processes(rank, (f"{sys.argv[1]}{half}", half), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
def test_two_ranks_get_the_number_of_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pos, neg, lists = scores(rng, 200, levels=90), scores(rng, 400, levels=90), scores(rng, 200, 30, levels=90)
    torch.save((pos, neg, lists), tmp_path / "scores.pt")
    hits, mrr = HitsAtK(50), OGBMRR()
    alone = hits(pos, neg).item()
    wanted = [alone, mrr(pos, lists).item(), alone]
    run_script(SCRIPT, tmp_path / "store", cwd=tmp_path)
    assert 0 < alone < 1
    for file in ("0False", "1False", "0True", "1True"):
        assert json.loads((tmp_path / f"{file}.json").read_text()) == [wanted, 50]
