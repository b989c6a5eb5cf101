"""LABOR, a picker of the user's and walks for edges on the command line: whoever makes the batches, training ends on the same
weights."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.helpers import run_cli, started
from tests.lightning.serving import free_addresses
from tests.lightning.test_serve import listening

ROOT = Path(__file__).parents[2]
LABOR = {"method": "labor"}
WALKS = {"importance_neighbors": {"walks": 8, "length": 2, "restart": 0.4}}
LINKS = {
    "task": "link",
    "links": {"edge_splits": {"num_val": 0.1, "num_test": 0.1}},
    "batch_size": 200,
    "num_neighbors": [4, 3],
}
PICKER = {"picker": {"class_path": "tests.helpers.pickers.Uniform"}}
# a picker has to be importable in every process: here it is "installed" by a path
ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Runs:
    """Runs of ``fit`` over the small graph in two parts. Each has a folder of its own."""

    def __init__(self, graph: Path, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._data = {"dataset": str(graph), "num_neighbors": [5, 5], "batch_size": 10, "partition": {"num_parts": 2}}
        self._data |= {"root": str(folder / "root")}
        self._model: dict[str, Any] = {"class_path": "GraphSAGE", "init_args": {"num_layers": 2, "dropout": 0.0}}

    def of_edges(self) -> None:
        """From now on, runs predict edges."""
        self._data |= LINKS
        self._model = {"class_path": "LinkPredictor", "init_args": {"encoder": "GraphSAGE", "num_layers": 2}}

    def config(self, sampling: dict[str, Any], cluster: dict[str, Any] | None = None, **trainer: Any) -> Path:
        self._count += 1
        folder = self._folder / f"run{self._count}"
        folder.mkdir()
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2}
        run = {
            "seed_everything": 1,
            "trainer": quiet | {"default_root_dir": str(folder)} | trainer,
            "model": self._model | {"init_args": self._model["init_args"] | {"hidden_channels": 16}},
            "data": {"class_path": "GLTDataModule", "init_args": self._data | {"sampling": sampling}},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(run | ({} if cluster is None else {"cluster": cluster})))
        return folder / "run.yaml"

    def weights(self, sampling: dict[str, Any], cluster: dict[str, Any] | None = None, **trainer: Any) -> str:
        """What a run ends with."""
        config = self.config(sampling, cluster, **trainer)
        run_cli("fit", "--config", config, cwd=config.parent, env=ENV, timeout=300)
        (kept,) = config.parent.rglob("last.ckpt")
        state = torch.load(kept, weights_only=False)["state_dict"]
        return json.dumps({name: values.tolist() for name, values in state.items()})

    def refused(self, sampling: dict[str, Any], cluster: dict[str, Any] | None = None, **trainer: Any) -> str:
        """The one line that a run ends with."""
        config = self.config(sampling, cluster, **trainer)
        run = run_cli("fit", "--config", config, cwd=config.parent, env=ENV, timeout=300, check=False)
        assert run.returncode != 0
        lines = [line for line in run.stdout.splitlines() if "error: " in line]
        assert len(lines) == 1, run.stdout
        return lines[0]


@pytest.fixture
def runs(graph_npz: Path, tmp_path: Path) -> Runs:
    return Runs(graph_npz, tmp_path)


def serve(config: Path) -> list[str]:
    return [sys.executable, "-m", "lightning", "serve", "--config", str(config)]


def test_labor_of_a_graph_server(runs: Runs) -> None:
    """One that the run starts for itself."""
    here = runs.weights(LABOR, strategy="ddp")
    assert runs.weights(LABOR, strategy="glt_server_client") == here
    assert runs.weights({}, strategy="ddp") != here


@pytest.mark.parametrize("sampling", [LABOR, PICKER], ids=["labor", "picker"])
def test_two_ranks_that_draw_for_each_other(runs: Runs, sampling: dict[str, Any]) -> None:
    """Each has one part, and sampler processes."""
    here = runs.weights(sampling, devices=2, strategy="ddp")
    assert runs.weights(sampling | {"num_workers": 1}, devices=2, strategy="glt_worker") == here


def test_edges_with_neighbours_by_walks(runs: Runs) -> None:
    """In the process that trains, through a graph server, and of ranks that walk for each other."""
    runs.of_edges()
    here = runs.weights(WALKS, strategy="ddp")
    assert runs.weights(WALKS, strategy="glt_server_client") == here
    assert runs.weights({}, strategy="ddp") != here
    two = runs.weights(WALKS, devices=2, strategy="ddp")
    assert runs.weights(WALKS | {"num_workers": 1}, devices=2, strategy="glt_worker") == two


def test_a_picker_that_a_graph_server_has(runs: Runs) -> None:
    """And one that it has not, or that is not pure: one line."""
    here = runs.weights(PICKER, strategy="ddp")
    address = free_addresses(1)
    where = {"servers": address, "deadlines": {"reconnect_s": 5}}
    with started(serve(runs.config(PICKER, where)), env=ENV) as server:
        listening(server)
        assert runs.weights(PICKER, where, strategy="glt_server_client") == here
    with started(serve(runs.config({}, where)), env=ENV) as server:
        listening(server)
        said = runs.refused(PICKER, where, strategy="glt_server_client")
        assert "Uniform() version" in said
        assert "is asked for, and this process was started without a picker" in said
    for name, why in (("Counting", "is not a pure function"), ("OfTheProcess", "other neighbours here than in the")):
        bad = {"picker": {"class_path": f"tests.helpers.pickers.{name}"}, "num_workers": 1}
        assert why in runs.refused(bad, strategy="glt_worker")
