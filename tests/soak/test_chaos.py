"""Training while servers and samplers are killed and stopped and lines are cut, again and again, with all deadlines at
their defaults: the weights of a calm run after each epoch, and nothing grows.

Faults come in bursts. Before each burst nothing happens for longer than ``reconnect_s``, so that its first fault meets
streams which are older than that deadline.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from glt_lightning import ClusterOptions, GLTDataModule
from glt_lightning.base import SamplingOptions
from glt_lightning.workers import ServerPlan
from tests.faults.job import samplers_of
from tests.helpers import Run, started
from tests.helpers.proxy import Proxy
from tests.helpers.servers import until
from tests.lightning.serving import free_addresses
from tests.lightning.test_two_ranks import WITH_TESTS
from tests.lightning.tiny import save_graph

MINUTES = float(os.environ.get("GLT_SOAK_MINUTES", "20"))
SEED = int(os.environ.get("GLT_SOAK_SEED", "0"))
STEP_S = 0.1
EPOCHS = max(8, round(MINUTES * 60 / STEP_S / 10))  # of 10 steps
QUIET_S = ClusterOptions().deadlines.reconnect_s + 10
BURST_S = 110.0
LEAST_FAULTS = 2 * MINUTES  # half of the time is quiet, and a fault takes up to ten seconds

pytestmark = [pytest.mark.soak, pytest.mark.timeout(60 * (3 * MINUTES + 15))]

# Two ranks; steps take at least pace_s, so that the length of a run does not depend on the machine.
TRAINER = """
import hashlib, json, sys, time
from functools import partial
from pathlib import Path
import psutil, torch
from lightning.pytorch import Callback, Trainer, seed_everything
from glt_lightning import GLTDataModule, GLTServerClientStrategy
from glt_lightning.workers import ServerPlan
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

class Pace(Callback):
    begun_s = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        Path(f"begun{trainer.global_rank}").touch()
        self.begun_s = self.begun_s or time.monotonic()
        time.sleep(max(0.0, self.begun_s + trainer.global_step * options["pace_s"] - time.monotonic()))

    def on_train_epoch_end(self, trainer, module):
        digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest()
        me = psutil.Process()
        uses = {"rss": me.memory_info().rss, "descriptors": me.num_fds(), "threads": me.num_threads()}
        line = json.dumps({"weights": digest, "seen": module.seen[-1], "uses": uses})
        with Path(f"rank{trainer.global_rank}.jsonl").open("a") as sink:
            print(line, file=sink)
        module.seen[-1], module.losses = [], []

class Network(GLTServerClientStrategy):
    # Batches of rank 0 come over the network, though its server is on this host; those of rank 1 are handed over.
    def _find_graph(self):
        found = super()._find_graph()
        found.handover = self.global_rank == 1
        return found

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


def _found(run: Run, folder: Path) -> list[list[dict[str, Any]]]:
    """What each rank wrote after each epoch: the digest of its weights, the seeds of its batches, and what it used."""
    assert run.wait(60 * (MINUTES + 3)) == 0, run.output
    return [[json.loads(line) for line in (folder / f"rank{rank}.jsonl").open()] for rank in range(2)]


class _Servers:
    """Two servers with a part each, which can be killed and started again. Everybody reaches them through proxies."""

    def __init__(self, stack: ExitStack, partition: Path) -> None:
        self._stack = stack
        addresses = free_addresses(2)
        self.proxies = [stack.enter_context(Proxy(address)) for address in addresses]
        self.options = ClusterOptions(servers=[proxy.address for proxy in self.proxies])
        self.plans = [
            ServerPlan(
                directory=str(partition), cluster=self.options.serving(SamplingOptions()), address=address, rank=rank
            )
            for rank, address in enumerate(addresses)
        ]
        self.runs = [self.start(rank) for rank in range(2)]

    def start(self, rank: int) -> Run:
        command = [sys.executable, "-m", "tests.faults.server", json.dumps(self.plans[rank].to_json())]
        return self._stack.enter_context(started(command, env=WITH_TESTS))

    def wait(self, rank: int) -> None:
        until(lambda: "listening at" in self.runs[rank].output, patience_s=120)

    def kill(self, ranks: list[int]) -> None:
        """Kills servers, and starts them again."""
        for rank in ranks:
            self.runs[rank].popen.send_signal(signal.SIGKILL)
        for rank in ranks:
            until(lambda run=self.runs[rank]: run.family() == [])
            self.runs[rank].close()
            self.runs[rank] = self.start(rank)

    def process(self, rank: int) -> psutil.Process:
        return psutil.Process(self.runs[rank].popen.pid)

    def sampler(self, rank: int, dice: random.Random) -> psutil.Process | None:
        """One of them; None where those that are gone are just being replaced."""
        samplers = sorted(samplers_of(self.process(rank)), key=lambda process: process.pid)
        return dice.choice(samplers) if samplers else None


def _strike(servers: _Servers, dice: random.Random) -> str:
    """Does harm to a server or the way to it, and mends what does not mend itself."""
    rank = dice.randrange(2)
    kinds = ["sampler", "server", "both servers", "server while it starts", "stopped server", "stopped sampler"]
    what = dice.choice([*kinds, "cut", "half open", "refused", "late"])
    match what:
        case "sampler" if (sampler := servers.sampler(rank, dice)) is not None:
            sampler.kill()
        case "server" | "both servers":
            servers.kill([rank] if what == "server" else [0, 1])
        case "server while it starts":
            servers.kill([rank])
            time.sleep(dice.uniform(0, 0.5))
            servers.kill([rank])
        case "stopped server":
            _stop(servers.process(rank), dice)
        case "stopped sampler" if (sampler := servers.sampler(rank, dice)) is not None:
            _stop(sampler, dice)
        case "cut" | "half open" | "refused" | "late":
            _disturb(servers.proxies[rank], what, dice)
    for each in range(2):
        servers.wait(each)
    return what


def _stop(process: psutil.Process, dice: random.Random) -> None:
    with suppress(psutil.NoSuchProcess):  # replaced meanwhile
        process.suspend()
        time.sleep(dice.uniform(1, 6))
        process.resume()


def _disturb(proxy: Proxy, what: str, dice: random.Random) -> None:
    if what == "cut":
        proxy.cut()
    elif what == "late":
        proxy.delay_s = dice.uniform(0.005, 0.05)
        time.sleep(dice.uniform(0.5, 3))
        proxy.delay_s = 0.0
    else:
        (proxy.swallow if what == "half open" else proxy.refuse)()
        time.sleep(dice.uniform(0.1, 3))
        proxy.heal()


def _shake(servers: _Servers, run: Run, dice: random.Random) -> Counter[str]:
    """Until the training has ended: quiet and bursts of faults by turns. Returns the faults."""
    struck = Counter[str]()
    begun_s = time.monotonic()
    while run.popen.poll() is None:
        assert time.monotonic() - begun_s < 60 * (2 * MINUTES + 5), run.output
        if (time.monotonic() - begun_s) % (QUIET_S + BURST_S) < QUIET_S:
            time.sleep(0.5)
        else:
            struck[_strike(servers, dice)] += 1
            time.sleep(dice.uniform(0.5, 3))
    return struck


def _check_growth(epochs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """That the last quarter of a run uses no more than its second one, in which faults began. Returns both."""
    quarter = len(epochs) // 4
    found = {}
    for name, more in (("rss", 32 << 20), ("descriptors", 8), ("threads", 4)):
        used = [epoch["uses"][name] for epoch in epochs]
        found[name] = [median(used[quarter : 2 * quarter]), median(used[-quarter:])]
        assert found[name][1] <= found[name][0] + more, f"{name} grows: {found[name]}"
    return found


def test_weights_of_a_calm_run(tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "tiny.npz")
    data = {"dataset": str(graph), "root": str(tmp_path / "root"), "partition": {"num_parts": 2}}
    module = GLTDataModule(num_neighbors=[5, 5], **data)
    module.prepare_data()
    with _training(tmp_path / "calm", data) as run:
        calm = _found(run, tmp_path / "calm")
    dice = random.Random(SEED)
    with ExitStack() as stack:
        servers = _Servers(stack, module.partition_dir)
        for rank in range(2):
            servers.wait(rank)
        run = stack.enter_context(_training(tmp_path / "shaken", {"dataset": None}, servers.plans[0], STEP_S))
        until(lambda: all((tmp_path / "shaken" / f"begun{rank}").exists() for rank in range(2)), patience_s=120)
        begun_s = time.monotonic()
        struck = _shake(servers, run, dice)
        took_s = time.monotonic() - begun_s
        shaken = _found(run, tmp_path / "shaken")
        connections = [proxy.connections for proxy in servers.proxies]
    print(f"seed {SEED}: {EPOCHS * 10} steps in {took_s:.0f} s, {dict(struck)}, connections {connections}")
    for name in ("weights", "seen"):
        assert [[epoch[name] for epoch in rank] for rank in shaken] == [
            [epoch[name] for epoch in rank] for rank in calm
        ]
    assert len(calm[0]) == EPOCHS
    assert struck.total() >= LEAST_FAULTS
    print([_check_growth(rank) for rank in shaken])
