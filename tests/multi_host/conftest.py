"""The graph of tests over several hosts, and the weights that one host gives."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from glt_lightning.base import PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.helpers import started
from tests.multi_host.jobs import LIMIT_S, ONE_THREAD, config, weights


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo graph in two parts."""
    folder = tmp_path_factory.mktemp("graph") / "part"
    partition_graph(open_source("demo", str(folder.parent)), folder, PartitionOptions(num_parts=2))
    return folder


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Callable[..., dict[str, torch.Tensor]]:
    """The weights of ranks on one host that map the whole graph, after some epochs."""

    @cache
    def train(epochs: int, ranks: int = 2) -> dict[str, torch.Tensor]:
        folder = tmp_path_factory.mktemp("calm")
        shutil.copytree(whole, folder / "part")
        (folder / "run.yaml").write_text(yaml.safe_dump(config(epochs)))
        argv = ["fit", "--config", "run.yaml", "--trainer.devices", str(ranks), "--trainer.strategy", "ddp"]
        with started([sys.executable, "-m", "glt_lightning", *argv], cwd=folder, env=ONE_THREAD) as run:
            assert run.wait(LIMIT_S) == 0, run.output
        return weights(folder)

    return train


@pytest.fixture(scope="session")
def dgl_alone(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> dict[str, torch.Tensor]:
    """What two ranks of `dgl_script` on one host learn."""
    folder, script = tmp_path_factory.mktemp("alone"), Path(__file__).with_name("dgl_script.py")
    (folder / "ip_config.txt").write_text("127.0.0.1 30050\n")
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    with started([*argv, "ip_config.txt"], cwd=folder, env={**ONE_THREAD, "DGL_CONF_PATH": str(whole)}) as run:
        assert run.wait(2 * LIMIT_S) == 0, run.output
    learned: dict[str, torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return learned
