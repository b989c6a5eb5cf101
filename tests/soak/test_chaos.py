"""Training while samplers and servers are killed and lines are cut, again and again: the weights of a calm run."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from glt_lightning import ClusterOptions, GLTDataModule
from glt_lightning.options import DeadlineOptions, RetryOptions
from glt_lightning.producer.hosted import ServerPlan
from tests.faults.job import samplers_of
from tests.helpers import Run, started
from tests.helpers.proxy import Proxy
from tests.helpers.servers import until
from tests.lightning.serving import free_addresses
from tests.lightning.test_two_ranks import ONE_THREAD, WITH_TESTS
from tests.lightning.tiny import save_graph

MINUTES = float(os.environ.get("GLT_SOAK_MINUTES", "20"))
SEED = int(os.environ.get("GLT_SOAK_SEED", "0"))
STEP_S = 0.1
EPOCHS = max(1, round(MINUTES * 60 / STEP_S / 10))  # of 10 steps

pytestmark = [pytest.mark.soak, pytest.mark.timeout(60 * (3 * MINUTES + 10))]

SERVER = """
import json, signal, sys
from glt_lightning.producer.hosted import HostedServer, ServerPlan
server = HostedServer(ServerPlan.from_json(json.loads(sys.argv[1])))
print("listening at", server.address, flush=True)
signal.pause()
"""

# Two ranks; steps take at least pace_s, so that the length of a run does not depend on the machine.
TRAINER = """
import json, sys, time
from functools import partial
from pathlib import Path
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from glt_lightning import GLTDataModule, GLTServerClientStrategy
from glt_lightning.producer.hosted import ServerPlan
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

class Pace(Callback):
    begun_s = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        Path(f"begun{trainer.global_rank}").touch()
        self.begun_s = self.begun_s or time.monotonic()
        time.sleep(max(0.0, self.begun_s + trainer.global_step * options["pace_s"] - time.monotonic()))

class Network(GLTServerClientStrategy):
    # Batches of rank 0 come over the network, though its server is on this host; those of rank 1 are handed over.
    def _maker(self, *args):
        return partial(super()._maker(*args), handover=self.global_rank == 1)

def main():
    seed_everything(1)
    cluster = None
    if options["plan"] is not None:
        cluster = ServerPlan.from_json(options["plan"]).cluster
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=5, cluster=cluster, **options["data"])
    model = Noting(dropout=0.0)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=Network() if cluster else "ddp", logger=False,
        max_epochs=options["epochs"], limit_val_batches=0, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[Pace()])
    trainer.fit(model, data)
    weights = [p.flatten().tolist() for p in model.parameters()]
    Path(f"rank{trainer.global_rank}.json").write_text(json.dumps({"seen": model.seen, "weights": weights}))

if __name__ == "__main__":
    main()
"""


@contextmanager
def _training(folder: Path, data: dict[str, Any], plan: ServerPlan | None = None, pace_s: float = 0.0) -> Iterator[Run]:
    """Two ranks that write what they find into ``folder``. plan: of one of their servers; None: they sample themselves."""
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(TRAINER)
    options = {"data": data, "plan": plan and plan.to_json(), "pace_s": pace_s, "epochs": EPOCHS}
    with started([sys.executable, script, json.dumps(options)], env=WITH_TESTS, cwd=folder) as run:
        yield run


def _found(run: Run, folder: Path) -> list[dict[str, Any]]:
    """The batches that each rank saw, and its weights at the end."""
    assert run.wait(60 * (MINUTES + 3)) == 0, run.output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


class _Servers:
    """Two servers with a part each, which can be killed and started again. Everybody reaches them through proxies."""

    def __init__(self, stack: ExitStack, partition: Path, folder: Path) -> None:
        self._stack, self._script = stack, folder / "server.py"
        self._script.write_text(SERVER)
        addresses = free_addresses(2)
        self.proxies = [stack.enter_context(Proxy(address)) for address in addresses]
        self.options = ClusterOptions(
            servers=[proxy.address for proxy in self.proxies],
            num_workers=2,
            deadlines=DeadlineOptions(connect_s=3, call_s=5, lease_s=5, reconnect_s=240),
            retry=RetryOptions(first_s=0.05, most_s=0.5),
            peer_timeout_s=300,
        )
        self.plans = [
            ServerPlan(directory=str(partition), cluster=self.options, address=address, rank=rank)
            for rank, address in enumerate(addresses)
        ]
        self.runs = [self.start(rank) for rank in range(2)]

    def start(self, rank: int) -> Run:
        command = [sys.executable, self._script, json.dumps(self.plans[rank].to_json())]
        return self._stack.enter_context(started(command, env=ONE_THREAD))

    def wait(self, rank: int) -> None:
        until(lambda: "listening at" in self.runs[rank].output, patience_s=120)

    def kill(self, rank: int) -> None:
        run = self.runs[rank]
        run.popen.send_signal(signal.SIGKILL)
        until(lambda: run.family() == [])
        run.close()
        self.runs[rank] = self.start(rank)
        self.wait(rank)

    def kill_sampler(self, rank: int, dice: random.Random) -> None:
        samplers = samplers_of(psutil.Process(self.runs[rank].popen.pid))
        if samplers:  # else those that are gone are just being replaced
            dice.choice(sorted(samplers, key=lambda p: p.pid)).kill()


def _strike(servers: _Servers, dice: random.Random) -> str:
    """Does harm to a server or the way to it, and mends what does not mend itself."""
    rank = dice.randrange(2)
    what = dice.choice(["sampler", "sampler", "server", "cut", "half open", "refused", "late"])
    proxy = servers.proxies[rank]
    match what:
        case "sampler":
            servers.kill_sampler(rank, dice)
        case "server":
            servers.kill(rank)
        case "cut":
            proxy.cut()
        case "late":
            proxy.delay_s = dice.uniform(0.005, 0.05)
            time.sleep(dice.uniform(0.5, 3))
            proxy.delay_s = 0.0
        case _:
            (proxy.swallow if what == "half open" else proxy.refuse)()
            time.sleep(dice.uniform(0.1, 3))
            proxy.heal()
    return what


def test_weights_of_a_calm_run(tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "tiny.npz")
    data = {"dataset": str(graph), "root": str(tmp_path / "root"), "partition": {"num_parts": 2}}
    module = GLTDataModule(num_neighbors=[5, 5], **data)
    module.prepare_data()
    with _training(tmp_path / "calm", data) as run:
        calm = _found(run, tmp_path / "calm")
    dice, struck = random.Random(SEED), Counter[str]()
    remote = {"dataset": None, "sampling": {"max_restarts": 10}}
    with ExitStack() as stack:
        servers = _Servers(stack, module.partition_dir, tmp_path)
        for rank in range(2):
            servers.wait(rank)
        run = stack.enter_context(_training(tmp_path / "shaken", remote, servers.plans[0], STEP_S))
        until(lambda: all((tmp_path / "shaken" / f"begun{rank}").exists() for rank in range(2)), patience_s=120)
        begun_s = time.monotonic()
        while run.popen.poll() is None:
            assert time.monotonic() - begun_s < 60 * (2 * MINUTES + 5), run.output
            struck[_strike(servers, dice)] += 1
            time.sleep(dice.uniform(0.5, 3))
        took_s = time.monotonic() - begun_s
        shaken = _found(run, tmp_path / "shaken")
        connections = [proxy.connections for proxy in servers.proxies]
    print(f"seed {SEED}: {EPOCHS * 10} steps in {took_s:.0f} s, {dict(struck)}, connections {connections}")
    assert shaken == calm
    assert len(calm[0]["seen"]) == EPOCHS
    assert struck.total() >= 6 * MINUTES
