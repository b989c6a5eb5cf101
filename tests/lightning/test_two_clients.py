"""Two ranks that get their batches from elsewhere train as two ranks that sample for themselves: the very same numbers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from glt_lightning import CacheOptions, ClusterOptions
from glt_lightning.base import EDGE
from glt_lightning.partition import Additions, NewEdges, NewNodes, append_rows
from tests.helpers import Run, run_script, started
from tests.helpers.family import settle
from tests.lightning.serving import serving
from tests.lightning.test_two_ranks import WITH_TESTS
from tests.lightning.tiny import NODES, WIDTH

# Fits, tests and predicts on two ranks; prints what each saw.
SCRIPT = """
import json, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import ClusterOptions, GLTDataModule, SamplingOptions
from glt_lightning.base import (DeadlineOptions, SecurityOptions)
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

def read_cluster(raw):
    if raw is None:
        return None
    kinds = {"deadlines": DeadlineOptions, "security": SecurityOptions}
    return ClusterOptions(**{name: kinds[name](**value) if name in kinds else value for name, value in raw.items()})

def main():
    seed_everything(1)
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, cluster=read_cluster(options["cluster"]), **options["data"])
    model = Noting(in_channels=data.num_features, out_channels=data.num_classes, dropout=0.0)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=options["strategy"], max_epochs=options["epochs"], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer.fit(model, data)
    (tested,) = trainer.test(model, data, verbose=False)
    predicted = trainer.predict(model, data)
    result = {"seen": model.seen, "losses": model.losses, "tested": tested,
        "weights": [p.flatten().tolist() for p in model.parameters()],
        "logits": torch.cat([batch["logits"] for batch in predicted]).tolist(),
        "n_id": torch.cat([batch["n_id"] for batch in predicted]).tolist()}
    with open(f"rank{trainer.global_rank}.json", "w") as out:
        json.dump(result, out)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def run_two(graph_npz: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs the script and returns what the ranks saw."""

    def run(strategy: str, cluster: ClusterOptions | None = None, **data: Any) -> list[dict[str, Any]]:
        here = {"dataset": str(graph_npz), "root": "root", "partition": {"num_parts": 2}}
        options = {"strategy": strategy, "epochs": 2, "cluster": cluster and asdict(cluster), "data": data or here}
        run_script(SCRIPT, json.dumps(options), cwd=tmp_path, env=WITH_TESTS)
        return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]

    return run


@pytest.fixture
def folder(make_data) -> Path:
    data = make_data(partition={"num_parts": 2})
    data.prepare_data()
    return data.partition_dir


@pytest.mark.slow
@pytest.mark.parametrize("cache", [{}, {"bytes": "100kB", "topology": "10kB"}], ids=repr)
def test_two_servers_and_two_clients_equal_ddp(
    run_two: Callable[..., Any], folder: Path, cache: dict[str, Any]
) -> None:
    here = run_two("ddp")
    assert [len(rank["losses"]) for rank in here] == [10, 10]
    assert sorted(i for rank in here for i in rank["n_id"]) == list(range(NODES))
    with serving(folder, servers=2, cache=CacheOptions(**cache)) as (where, hosted):
        assert run_two("glt_server_client", where, dataset=None) == here
        assert [len(host.server.status()["clients"]) for host in hosted] == [0, 0]  # they have said goodbye


_CACHES: list[Any] = [
    pytest.param(0, {}, marks=pytest.mark.slow),
    pytest.param(1, {}, marks=pytest.mark.slow),
    pytest.param(1, {"bytes": "100kB", "topology": "30kB"}, marks=pytest.mark.slow),
    pytest.param(0, {"policy": "degree", "ratio": 0.2}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("workers", "cache"), _CACHES, ids=repr)
def test_ranks_with_a_part_each_equal_ddp(
    run_two: Callable[..., Any], graph_npz: Path, workers: int, cache: dict[str, Any]
) -> None:
    here = run_two("ddp")
    data = {"dataset": str(graph_npz), "root": "root", "partition": {"num_parts": 2}}
    there = run_two(
        "glt_worker", ClusterOptions(placement="rank"), **data, sampling={"num_workers": workers}, cache=cache
    )
    assert there == here


@pytest.mark.slow
def test_a_version_whose_parts_ranks_share_equals_ddp(
    run_two: Callable[..., Any], graph_npz: Path, folder: Path
) -> None:
    ends = np.stack([np.arange(NODES, NODES + 20), np.arange(20)])
    new = {"x": np.ones((20, WIDTH), np.float32), "y": np.zeros(20, np.int64)}
    append_rows(folder, Additions(nodes={"node": NewNodes(20, new)}, edges={EDGE: NewEdges(ends)}))
    data = {"dataset": str(graph_npz), "root": "root", "partition": {"num_parts": 2, "version": "latest"}}
    assert run_two("glt_worker", ClusterOptions(placement="rank"), **data) == run_two("ddp", **data)


@pytest.mark.slow
def test_the_bare_flag(run_two: Callable[..., Any]) -> None:
    """The run starts a server, whose secret goes from rank to rank and never through the store."""
    assert run_two("glt_server_client") == run_two("ddp")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["first rank", "second rank"])
def test_killed_rank_leaves_no_server(graph_npz: Path, tmp_path: Path, victim: str) -> None:
    data = {"dataset": str(graph_npz), "root": "root"}
    options = {"strategy": "glt_server_client", "epochs": 100_000, "cluster": None, "data": data}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with started([sys.executable, script, json.dumps(options)], env=WITH_TESTS, cwd=tmp_path) as run:
        ranks = _wait_for_training(run)
        assert len(ranks) == 2
        ranks[victim == "second rank"].kill()
        assert settle(run.family, grace_s=20) == [], run.output
        assert "died; rank" in run.output


def _wait_for_training(run: Run) -> list[psutil.Process]:
    """The ranks in order, once the samplers of the server work for both."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and run.popen.poll() is None:
        family = run.family()
        servers = [p for p in family if "glt_lightning.workers.server.child" in " ".join(p.cmdline())]
        samplers = [p for p in family if "producer.worker" in " ".join(p.cmdline())]
        if servers and len(samplers) == 2 and all(p.cpu_times().user > 0.5 for p in samplers):
            ranks = [p for p in family if "script.py" in " ".join(p.cmdline()[:3])]
            return sorted(ranks, key=lambda p: p.pid != run.popen.pid)
        time.sleep(0.2)
    raise AssertionError(f"training did not start:\n{run.output}")
