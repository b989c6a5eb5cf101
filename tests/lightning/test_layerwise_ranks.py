"""Layer-wise inference on several ranks: the rows of one rank, bit for bit, under every strategy; or an error on all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning import GLTDataModule, predict_layerwise, read_embeddings
from tests.helpers import run_script

WITH_TESTS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}

SCRIPT = """
import json, os, signal, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import GLTDataModule, GraphSAGE, predict_layerwise
from glt_lightning.inference.run import LayerwiseRun
from tests.lightning.tiny import SHAPE

options = json.loads(sys.argv[1])
torch.set_num_threads(1)
take = LayerwiseRun.take

def dying(self, number, batch, *, last):
    if self.steps[number].layer == 1 and self.marks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(self, number, batch, last=last)

def main():
    seed_everything(1)
    model = GraphSAGE(**SHAPE, model=options["model"])
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, evaluation={"mode": "layerwise"}, **options["data"])
    trainer = Trainer(accelerator="cpu", devices=options["devices"], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, strategy=options["strategy"])
    if options.get("die"):
        LayerwiseRun.take = dying
    predict_layerwise(trainer, model, data, options["out"], options={"batch_size": 20})
    (metrics,) = trainer.validate(model, data, verbose=False)
    if trainer.global_rank == 0:
        print(json.dumps(metrics))

if __name__ == "__main__":
    main()
"""

LINKS = """
import json, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import GLTDataModule, LinkPredictor
from tests.lightning.tiny import WIDTH

options = json.loads(sys.argv[1])
torch.set_num_threads(1)
if __name__ == "__main__":
    seed_everything(1)
    splits = {"num_val": 0.1, "num_test": 0.2}
    given = {"task": "link", "links": {"edge_splits": splits}, "evaluation": {"mode": "layerwise"}, **options["data"]}
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, **given)
    model = LinkPredictor(WIDTH, hidden_channels=8, ranking=["hits@5", "mrr@10", "ndcg@20"])
    trainer = Trainer(accelerator="cpu", devices=options["devices"], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, strategy=options["strategy"])
    (metrics,) = trainer.test(model, data, verbose=False)
    if trainer.global_rank == 0:
        print(json.dumps(metrics))
"""

CASES: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "worker": ("glt_worker", {}, "GCN", 2),
    "worker, three ranks": ("glt_worker", {}, "GraphSAGE", 3),
    "ddp": ("ddp", {}, "GraphSAGE", 3),
    "worker, parts by rank": ("glt_worker", {"placement": "rank"}, "GCN", 2),
    "servers": ("glt_server_client", {}, "GCN", 2),
}


@pytest.fixture
def options(graph_npz: Path, tmp_path: Path) -> dict[str, Any]:
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "partition": {"num_parts": 3}}
    return {"data": data, "model": "GraphSAGE", "devices": 2, "strategy": "glt_worker", "out": str(tmp_path / "emb")}


def of_one_rank(
    options: dict[str, Any], make_model: Any, make_trainer: Any, out: Path
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Rows, and metrics of validation."""
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, evaluation={"mode": "layerwise"}, **options["data"])
    model, trainer = make_model(model=options["model"]), make_trainer()
    predict_layerwise(trainer, model, data, out, options={"batch_size": 20})
    return read_embeddings(out), trainer.validate(model, data, verbose=False)[0]


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == "worker" else pytest.mark.slow) for c in CASES])
def test_rows_are_those_of_one_rank(
    case: str, options: dict[str, Any], make_model: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    strategy, cluster, model, devices = CASES[case]
    options |= {"strategy": strategy, "model": model, "devices": devices}
    expected, metrics = of_one_rank(options, make_model, make_trainer, tmp_path / "one")
    options["data"]["cluster"] = cluster
    ended = run_script(SCRIPT, json.dumps(options), env=WITH_TESTS)
    found = read_embeddings(tmp_path / "emb")
    assert len(list((tmp_path / "emb").glob("*.parquet"))) == devices
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    (said,) = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    assert json.loads(said) == {name: pytest.approx(value, rel=1e-6) for name, value in metrics.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "devices"), [("glt_worker", 3), ("ddp", 2)])
def test_ranked_links_are_those_of_one_rank(options: dict[str, Any], strategy: str, devices: int) -> None:
    found = []
    for given in ({"strategy": "auto", "devices": 1}, {"strategy": strategy, "devices": devices}):
        ended = run_script(LINKS, json.dumps(options | given), env=WITH_TESTS)
        (said,) = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        found.append({name: value for name, value in json.loads(said).items() if "_rank_" in name})
    one, several = found
    assert sorted(one) == ["test_rank_hits@5", "test_rank_mrr@10", "test_rank_ndcg@20"]
    assert 0 < min(one.values()) < 1
    assert several == {name: pytest.approx(value, rel=1e-6) for name, value in one.items()}


@pytest.mark.slow
def test_a_rank_that_is_killed_in_layer_1_ends_all(
    options: dict[str, Any], make_model: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    expected, _ = of_one_rank(options, make_model, make_trainer, tmp_path / "one")
    ended = run_script(SCRIPT, json.dumps(options | {"die": True}), env=WITH_TESTS, check=False, timeout=90)
    assert ended.returncode != 0
    assert re.search(r"rank 1 \(process \d+\) of this host died", ended.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "root"]
    run_script(SCRIPT, json.dumps(options), env=WITH_TESTS)
    np.testing.assert_array_equal(read_embeddings(tmp_path / "emb")["embedding"], expected["embedding"])
