"""Training of two ranks, in processes of their own, that waits at given steps while a test does harm."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.helpers import Run, started
from tests.lightning.test_two_ranks import WITH_TESTS

LIMIT_S = 120.0
STEPS = 15

# Options: strategy, cluster, data, pauses (steps before which rank 0 waits), fail_at (step at which rank 1 raises),
# resume (checkpoint), name (of the result).
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from glt_lightning import ClusterOptions, GLTDataModule
from glt_lightning.producer.hosted import ServerPlan
from tests.lightning.tiny import SHAPE, Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

class Pause(Callback):
    def on_train_start(self, trainer, module):
        Path(f"pid{trainer.global_rank}").write_text(str(os.getpid()))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        step = trainer.global_step
        if step == options["fail_at"] and trainer.global_rank == 1:
            raise ZeroDivisionError("of this test")
        if step in options["pauses"] and trainer.is_global_zero:
            Path(f"at{step}").touch()
            deadline = time.monotonic() + 90
            while not Path(f"go{step}").exists():
                assert time.monotonic() < deadline, "the test does not go on"
                time.sleep(0.01)

def main():
    seed_everything(1)
    plan = ServerPlan(directory="", cluster=ClusterOptions(), address="").to_json()
    cluster = ServerPlan.from_json(plan | {"cluster": options["cluster"]}).cluster
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, cluster=cluster, **options["data"])
    model = Noting(dropout=0.0)
    keep = ModelCheckpoint(dirpath="ckpt", filename="{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=options["strategy"], max_epochs=3, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[keep, Pause()])
    trainer.fit(model, data, ckpt_path=options["resume"])
    result = {"losses": model.losses, "weights": [p.flatten().tolist() for p in model.parameters()]}
    Path(f"{options['name']}{trainer.global_rank}.json").write_text(json.dumps(result))

if __name__ == "__main__":
    main()
"""


@dataclass
class Training:
    """A run of the script, in ``folder``."""

    run: Run
    folder: Path
    name: str

    def wait_at(self, step: int) -> None:
        """Until rank 0 waits before a step."""
        self._until((self.folder / f"at{step}").exists, f"step {step}")

    def go(self, step: int) -> None:
        (self.folder / f"go{step}").touch()

    def rank(self, number: int) -> psutil.Process:
        return psutil.Process(int((self.folder / f"pid{number}").read_text()))

    def samplers(self, rank: int) -> list[psutil.Process]:
        """The sampler processes that a rank has itself."""
        return samplers_of(self.rank(rank))

    def results(self) -> list[dict[str, Any]]:
        """Losses and weights of the ranks, once the training has ended well."""
        assert self.run.wait(LIMIT_S) == 0, self.run.output
        return [json.loads((self.folder / f"{self.name}{rank}.json").read_text()) for rank in range(2)]

    def _until(self, fact: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not fact():
            assert self.run.popen.poll() is None, self.run.output
            assert time.monotonic() < deadline, f"no {what}:\n{self.run.output}"
            time.sleep(0.02)


def samplers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "producer.worker" in " ".join(child.cmdline())]


@contextlib.contextmanager
def training(
    folder: Path,
    strategy: str,
    cluster: dict[str, Any],
    data: dict[str, Any],
    *,
    pauses: tuple[int, ...] = (),
    fail_at: int = -1,
    resume: str | None = None,
    name: str = "result",
) -> Iterator[Training]:
    """Starts a training in ``folder``, which remembers checkpoints."""
    for old in (*folder.glob("at*"), *folder.glob("go*"), *folder.glob("pid*")):
        old.unlink()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    options = {"strategy": strategy, "cluster": cluster, "data": data, "pauses": pauses}
    options |= {"fail_at": fail_at, "resume": resume, "name": name}
    with started([sys.executable, script, json.dumps(options)], env=WITH_TESTS, cwd=folder) as run:
        yield Training(run, folder, name)
