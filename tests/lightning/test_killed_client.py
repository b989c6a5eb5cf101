"""A rank is killed in the middle of training: the servers forget the job, and it resumes from its last checkpoint.

What else can befall a job: tests/faults.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from glt_lightning import ClusterOptions
from glt_lightning.options import DeadlineOptions
from tests.helpers import Run, started
from tests.helpers.family import settle
from tests.helpers.servers import Farm, open_farm, until
from tests.lightning.serving import free_addresses
from tests.lightning.test_serve import listening
from tests.lightning.test_two_ranks import ONE_THREAD, WITH_TESTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_S = 120.0
STEPS, STOP, KEPT = 15, 7, 6  # of a rank; where rank 0 waits; of the last checkpoint before that
LEASE_S = 2.0
GONE_S = 10.0  # after the end of a process of the job, nothing of it is left
CLUSTER = ClusterOptions(num_workers=1, deadlines=DeadlineOptions(lease_s=LEASE_S), peer_timeout_s=3.0)

# Options: strategy, cluster, data, stops (rank 0 waits before step STOP until a file ``go`` is there), resume (checkpoint).
SCRIPT = f"""
import json, os, sys, time
from pathlib import Path
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from glt_lightning import ClusterOptions, GLTDataModule
from glt_lightning.producer.hosted import ServerPlan
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

class Pause(Callback):
    def on_train_start(self, trainer, module):
        Path(f"pid{{trainer.global_rank}}").write_text(str(os.getpid()))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if options["stops"] and trainer.global_step == {STOP} and trainer.is_global_zero:
            Path("at").touch()
            deadline = time.monotonic() + 90
            while not Path("go").exists():
                assert time.monotonic() < deadline, "the test does not go on"
                time.sleep(0.01)

def main():
    seed_everything(1)
    plan = ServerPlan(directory="", cluster=ClusterOptions(), address="").to_json()
    cluster = ServerPlan.from_json(plan | {{"cluster": options["cluster"]}}).cluster
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, cluster=cluster, **options["data"])
    model = Noting(dropout=0.0)
    keep = ModelCheckpoint(dirpath="ckpt", filename="{{step}}", every_n_train_steps=3, save_top_k=-1)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=options["strategy"], max_epochs=3, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[keep, Pause()])
    trainer.fit(model, data, ckpt_path=options["resume"])
    result = {{"losses": model.losses, "weights": [p.flatten().tolist() for p in model.parameters()]}}
    Path(f"result{{trainer.global_rank}}.json").write_text(json.dumps(result))

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def training(
    folder: Path,
    strategy: str,
    cluster: ClusterOptions,
    data: dict[str, Any],
    *,
    stops: bool = False,
    resume: str | None = None,
) -> Iterator[Run]:
    """A run of the script in ``folder``, which keeps its checkpoints."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    options = {"strategy": strategy, "cluster": asdict(cluster), "data": data, "stops": stops, "resume": resume}
    with started([sys.executable, script, json.dumps(options)], env=WITH_TESTS, cwd=folder) as run:
        yield run


def results(run: Run, folder: Path) -> list[dict[str, Any]]:
    """Losses and weights of the ranks, once the training has ended well."""
    assert run.wait(LIMIT_S) == 0, run.output
    return [json.loads((folder / f"result{rank}.json").read_text()) for rank in range(2)]


def wait_for(path: Path, run: Run) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert run.popen.poll() is None, run.output
        assert time.monotonic() < deadline, run.output
        time.sleep(0.02)


@contextlib.contextmanager
def two_servers(folder: Path, data: dict[str, Any], cluster: ClusterOptions) -> Iterator[list[Run]]:
    """Graph servers of the command line, with a part and a sampler each."""
    arguments = data | {"num_neighbors": [5, 5], "batch_size": 10}
    config = {"data": {"class_path": "GLTDataModule", "init_args": arguments}, "cluster": asdict(cluster)}
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "glt_lightning", "serve", "--config", folder / "serve.yaml", "--server.rank"]
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(started([*argv, str(rank)], env=ONE_THREAD)) for rank in range(2)]
        for run in runs:
            listening(run, LIMIT_S)
        yield runs


@pytest.fixture
def clients_of() -> Iterator[Callable[[str], int]]:
    """How many clients a server has, by its address."""
    with open_farm("flight") as farm:
        yield lambda address: _clients(farm, address)


def _clients(farm: Farm, address: str) -> int:
    peer = farm.peer(address, name="a tool")
    try:
        return len(peer.ask("status").result().header["clients"])
    finally:
        peer.close()


def test_a_killed_client_and_the_run_that_resumes(
    graph_npz: Path, tmp_path: Path, clients_of: Callable[[str], int]
) -> None:
    """The servers serve on meanwhile."""
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "partition": {"num_parts": 2}}
    (tmp_path / "calm").mkdir()
    with training(tmp_path / "calm", "ddp", CLUSTER, data) as run:
        calm = results(run, tmp_path / "calm")
    assert [len(rank["losses"]) for rank in calm] == [STEPS, STEPS]

    addresses = free_addresses(2)
    cluster = replace(CLUSTER, servers=addresses)
    with two_servers(tmp_path, data, cluster) as servers:
        with training(tmp_path, "glt_server_client", cluster, {"dataset": None}, stops=True) as run:
            wait_for(tmp_path / "at", run)
            assert [clients_of(address) for address in addresses] == [1, 1]
            psutil.Process(int((tmp_path / "pid1").read_text())).kill()
            (tmp_path / "go").touch()
            assert settle(run.family, GONE_S) == [], run.output
            assert run.popen.returncode != 0
        until(lambda: not any(map(clients_of, addresses)), GONE_S + LEASE_S)
        resume = f"ckpt/step={KEPT}.ckpt"
        with training(tmp_path, "glt_server_client", cluster, {"dataset": None}, resume=resume) as run:
            resumed = results(run, tmp_path)
        assert [server.popen.poll() for server in servers] == [None, None]
    assert [rank["weights"] for rank in resumed] == [rank["weights"] for rank in calm]
    assert [rank["losses"] for rank in resumed] == [rank["losses"][KEPT:] for rank in calm]
