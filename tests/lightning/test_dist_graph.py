"""Tensors of one's own in a job: the same values under every strategy, as in a script without a Trainer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from glt_lightning import DistGraph, DistTensor, GLTDataModule, SamplingOptions
from glt_lightning.base import ClusterOptions, DataError, OptionError, SamplerError
from glt_lightning.lightning.strategies.session_host import Standalone
from tests.helpers import run_script
from tests.helpers.own_rows import Using, work
from tests.lightning.serving import serving

WITH_TESTS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}

# Every rank writes to its rows, in a run or alone; rank 0 prints the values by user id.
SCRIPT = """
import json, os, signal, sys
import torch
from lightning.pytorch import Trainer, seed_everything
from glt_lightning import DistGraph, DistTensor, GLTDataModule
from tests.helpers.own_rows import Using
from tests.lightning.tiny import Noting

options = json.loads(sys.argv[1])
torch.set_num_threads(1)

def main():
    seed_everything(1)
    using = Using(options.get("die", False))
    data = GLTDataModule(num_neighbors=[5, 5], batch_size=10, **options["data"])
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[using], strategy=options["strategy"])
    trainer.fit(Noting(dropout=0.0), data)
    if trainer.is_global_zero:
        print("RESULT", json.dumps(using.found), flush=True)

if __name__ == "__main__":
    main()
"""


def alone(data: GLTDataModule) -> dict[str, Any]:
    data.prepare_data()
    with DistGraph(data.partition_dir, seed=5) as graph:
        return work(graph)


def test_under_auto_it_is_as_alone(
    make_data: Callable[..., GLTDataModule],
    make_model: Any,
    make_trainer: Callable[..., Trainer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # `Using` writes a file
    data, using = make_data(partition={"num_parts": 2}, sampling={"seed": 5}), Using()
    expected = alone(data)
    make_trainer(max_epochs=1, callbacks=[using]).fit(make_model(), data)
    assert using.found == expected
    with pytest.raises(SamplerError, match="graph: no graph is open here; ask the data module for dist_graph"):
        _ = data._standalone.graph


def test_of_servers_it_is_as_alone(make_data: Callable[..., GLTDataModule]) -> None:
    data = make_data(partition={"num_parts": 2}, sampling={"seed": 5})
    expected = alone(data)
    with serving(data.partition_dir) as (where, _), DistGraph(where, seed=5) as graph:
        assert work(graph) == expected
    with pytest.raises(OptionError, match=r"cluster\.servers: empty"):
        DistGraph(ClusterOptions())


def test_tensors_stay_when_a_checkpoint_brings_another_seed(make_data: Callable[..., GLTDataModule]) -> None:
    data = make_data()
    data.prepare_data()
    data.setup("fit")
    graph = data.dist_graph
    h = DistTensor((graph.num_nodes(),), torch.float32, "h", "ones")
    data.load_state_dict({"sampling_seed": 12345})
    assert data.dist_graph is graph
    h[[0]] = 2.0
    assert float(h[:].sum()) == graph.num_nodes() + 1
    assert graph.ndata["train_mask"].count_nonzero() == 100
    data.teardown()
    with pytest.raises(DataError, match="tensor 'h' is closed"):
        h[[0]]


def test_tensors_are_closed_where_a_session_cannot_be_opened_again(make_data: Callable[..., GLTDataModule]) -> None:
    data = make_data()
    data.prepare_data()
    host = Standalone()
    graph = host.open_graph(data.partition_dir)
    host.open_session(graph, SamplingOptions(), seed=1)
    h = DistTensor((host.graph.num_nodes(),), torch.float32, "h", "ones")
    with pytest.raises(OptionError, match="batch_sampler: expected a class path"):
        host.open_session(graph, SamplingOptions(batch_sampler=3), seed=2)
    assert host.session is None
    with pytest.raises(DataError, match="tensor 'h' is closed"):
        h[[0]]
    host.close()


CASES = {
    "ddp": ("ddp", {}),
    "worker": ("glt_worker", {}),
    "worker, parts by rank": ("glt_worker", {"placement": "rank"}),
    "servers": ("glt_server_client", {}),
}


@pytest.mark.slow  # tests/tensors/test_two_ranks.py is the quick one of tables of two ranks
@pytest.mark.parametrize("case", CASES)
def test_on_two_ranks_it_is_as_alone(
    case: str, make_data: Callable[..., GLTDataModule], graph_npz: Path, tmp_path: Path
) -> None:
    strategy, cluster = CASES[case]
    same = {"partition": {"num_parts": 2}, "sampling": {"seed": 5}}
    expected = alone(make_data(**same))
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root"), "cluster": cluster, **same}
    output = run_script(SCRIPT, json.dumps({"data": data, "strategy": strategy}), env=WITH_TESTS).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert json.loads(line.removeprefix("RESULT ")) == expected


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_writes_is_named(graph_npz: Path, tmp_path: Path) -> None:
    data = {"dataset": str(graph_npz), "root": str(tmp_path / "root")}
    given = json.dumps({"data": data, "strategy": "glt_worker", "die": True})
    ended = run_script(SCRIPT, given, env=WITH_TESTS, check=False, timeout=90)
    assert ended.returncode != 0
    assert re.search(r"error: rank 1 \(process \d+\) of this host died; rank 0 cannot go on", ended.stdout)
    assert "has been writing to it" not in ended.stdout  # the kernel has freed its lock
