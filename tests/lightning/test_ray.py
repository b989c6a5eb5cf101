"""Training on Ray gives the weights that Lightning gives alone, also where a worker was killed: `examples/ray_train.py`."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from glt_lightning.base import OptionError
from glt_lightning.lightning import ReportToRay, ray_job, ray_worker
from tests.helpers import started
from tests.helpers.family import settle

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 560

# The same training without Ray: two ranks that Lightning starts.
ALONE = """
    import contextlib, functools, sys
    import ray_train
    from types import SimpleNamespace
    from lightning.pytorch import Callback
    from glt_lightning.base import ClusterOptions

    class Saves(Callback):
        def on_train_end(self, trainer, pl_module):
            trainer.save_checkpoint("alone.ckpt")

    @contextlib.contextmanager
    def worker(job):
        yield SimpleNamespace(trainer_options={"devices": 2}, checkpoint=None, cluster=ClusterOptions())

    if __name__ == "__main__":
        ray_train.ray_worker, ray_train.ReportToRay = worker, lambda every_n_steps: Saves()
        ray_train.GraphSAGE = functools.partial(ray_train.GraphSAGE, dropout=0.0)
        ray_train.train({"job": None, "dataset": "demo", "root": "data", "max_epochs": 3})
"""
# The example, of which rank 1, or the graph server, is killed once, in the middle of its second epoch of five steps.
KILLED = """
    import functools, os, signal, sys
    import psutil, ray_train
    from lightning.pytorch import Callback, Trainer

    class Dies(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            with open(os.environ["STEPS"], "a") as steps:
                steps.write(f"{trainer.global_rank}:{trainer.global_step} ")
            if trainer.global_step == 9 and trainer.global_rank == 1 and not os.path.exists(os.environ["DIED"]):
                open(os.environ["DIED"], "w").close()
                of_ray = psutil.Process().parent().children()
                servers = [each.pid for each in of_ray if "ray::_GraphServer" in " ".join(each.cmdline())]
                os.kill(servers[0] if os.environ["SERVERS"] == "1" else os.getpid(), signal.SIGKILL)

    class Disturbed(Trainer):
        def __init__(self, **options):
            super().__init__(**options | {"callbacks": [*options["callbacks"], Dies()]})

    ray_train.Trainer = Disturbed
    ray_train.GraphSAGE = functools.partial(ray_train.GraphSAGE, dropout=0.0)  # whose masks change when a run goes on
    if __name__ == "__main__":
        ray_train.train.__module__ = "__main__"  # goes to the workers as it is here
        sys.argv[1:] = ["--max-epochs", "3", "--servers", os.environ["SERVERS"]]
        ray_train.main()
"""


def run(folder: Path, code: str, **env: str) -> str:
    (folder / "script.py").write_text(textwrap.dedent(code))
    path = os.pathsep.join([str(EXAMPLES), *sys.path])
    with started([sys.executable, "script.py"], env={"PYTHONPATH": path, **env}, cwd=folder) as child:
        assert child.wait(TIMEOUT_S) == 0, child.output
        assert settle(child.family, 60) == []
        return child.output


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkpoint of the run without Ray."""
    for name in ("ray", "pydantic"):
        if find_spec(name) is None:
            pytest.skip("needs ray[train]")
    folder = tmp_path_factory.mktemp("alone")
    run(folder, ALONE)
    return torch.load(folder / "alone.ckpt", weights_only=False)


def same_weights(output: str, storage: Path, theirs: dict[str, Any]) -> None:
    """Compares the last checkpoint that a run on Ray reported."""
    folder = Path(output.rpartition("checkpoint: ")[2].split(";")[0].split()[0])
    assert folder.is_relative_to(storage)
    ours = torch.load(folder / "checkpoint.ckpt", weights_only=False)
    assert ours["global_step"] == theirs["global_step"] == 15
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    assert all(torch.equal(value, theirs["state_dict"][name]) for name, value in ours["state_dict"].items())


LAUNCHED = """
    from glt_lightning.cli import main
    if __name__ == "__main__":
        main(["launch", "--config", "cluster.yaml"])
"""
RUN = """
seed_everything: 42
trainer: {accelerator: cpu, max_epochs: 3, logger: false, enable_progress_bar: false}
model: {class_path: glt_lightning.GraphSAGE, init_args: {hidden_channels: 64, num_layers: 2, lr: 0.01, dropout: 0.0}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args: {dataset: demo, undirected: true, num_neighbors: [15, 10], batch_size: 64}
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_launch_changes_no_bit(tmp_path: Path, alone: dict[str, Any]) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    ray = f"{{address: local, storage: {tmp_path / 'storage'}, every_n_steps: 2}}"
    job = f"{{command: fit, config: run.yaml, name: launched, engine: ray, ray: {ray}, defaults: {{devices: 2}}}}"
    (tmp_path / "cluster.yaml").write_text(job)
    same_weights(run(tmp_path, LAUNCHED), tmp_path / "storage" / "launched", alone)


# What Ray gives to the ranks of a launched job. Its two GPUs are only said to be there.
GPUS = """
    import functools, json, os, ray, ray.train.torch as torch
    from glt_lightning.launch import LaunchConfig, LaunchFlags, start_job

    def rank(words):
        import os, ray, ray.train
        groups = ray.util.placement_group_table().values()
        bundles = [list(each["bundles"].values()) for each in groups if each["state"] == "CREATED"]
        seen = {"gpus": ray.get_gpu_ids(), "visible": os.environ["CUDA_VISIBLE_DEVICES"], "bundles": bundles}
        print("seen:", json.dumps(seen), file=open(f"{os.environ['SEEN']}.{ray.train.get_context().get_world_rank()}", "w"))

    if __name__ == "__main__":
        torch.TorchTrainer = functools.partial(torch.TorchTrainer, torch_config=torch.TorchConfig(backend="gloo"))
        ray.init(num_cpus=2, num_gpus=2, include_dashboard=False)
        defaults = {"devices": 2, "env": {"SEEN": f"{os.getcwd()}/seen"}}
        group = {"storage": f"{os.getcwd()}/storage"}
        job = LaunchConfig(command="fit", run_config="run.yaml", name="seen", engine="ray", ray=group, defaults=defaults)
        assert start_job(job, LaunchFlags(), rank, None) == 0
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_ranks_have_a_gpu_each(tmp_path: Path) -> None:
    for name in ("ray", "pydantic"):
        if find_spec(name) is None:
            pytest.skip("needs ray[train]")
    (tmp_path / "run.yaml").write_text(RUN.replace("accelerator: cpu", "accelerator: auto"))
    run(tmp_path, GPUS)
    seen = [json.loads((tmp_path / f"seen.{rank}").read_text().partition(":")[2]) for rank in range(2)]
    assert [each["visible"] for each in seen] == ["0,1"] * 2  # of which Lightning takes that of the local rank
    assert [each["gpus"] for each in seen] == [[0], [1]]
    assert seen[0]["bundles"] == [[{"CPU": 1.0, "GPU": 1.0}] * 2]


@pytest.mark.slow
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("servers", ["0", "1"])
def test_a_killed_worker_or_server_changes_no_bit(tmp_path: Path, alone: dict[str, Any], servers: str) -> None:
    steps = tmp_path / "steps"
    output = run(tmp_path, KILLED, SERVERS=servers, DIED=str(tmp_path / "died"), STEPS=str(steps))
    assert (tmp_path / "died").exists()
    same_weights(output, tmp_path / "ray-results" / "glt", alone)
    done = [int(each.partition(":")[2]) for each in steps.read_text().split() if each.startswith("1:")]
    assert done[:10] == [*range(10)]
    # A rank died in the fifth step of the second epoch. Within it 7 and 9 steps were reported, and Ray may know the latter.
    assert done[10:] in ([[*range(10, 15)]] if servers == "1" else [[*range(7, 15)], [*range(9, 15)]])


@pytest.mark.slow
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_trials_share_a_server_and_learn_the_same(tmp_path: Path) -> None:
    for name in ("ray", "pydantic"):
        if find_spec(name) is None:
            pytest.skip("needs ray[train]")
    script = EXAMPLES.parent / "benchmarks" / "ray_sweep.py"
    argv = [sys.executable, str(script), "--trials", "2", "--epochs", "1"]
    with started(argv, cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join(sys.path)}) as child:
        assert child.wait(TIMEOUT_S) == 0, child.output
        assert settle(child.family, 60) == []
        shared, own = (json.loads(line) for line in child.output.splitlines() if line.startswith('{"variant"'))
    assert shared["weights"] == own["weights"]
    assert len(set(shared["weights"].values())) == 2


def test_a_script_that_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = 0
    with pytest.raises(OptionError, match="every_n_steps"):
        ReportToRay(given)
    with pytest.raises(OptionError, match="serve: 2 graph servers need a function"), ray_job(servers=2):
        raise AssertionError
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"Ray: .*pip install 'glt-lightning\[ray-train\]'"), ray_job():
        raise AssertionError
    monkeypatch.setitem(sys.modules, "ray.train", None)
    with pytest.raises(OptionError, match=r"Ray: .*pip install 'glt-lightning\[ray-train\]'"), ray_worker():
        raise AssertionError
