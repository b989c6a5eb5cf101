"""A plan says what a run does then, and refuses what the run would refuse."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from glt_lightning.base import EDGE, NODE, PartitionError, PartitionOptions
from glt_lightning.partition import PartitionPlan, hold_out_edges, open_source, partition_graph, plan_partition
from glt_lightning.partition.edge_splits.source import ExpectedLinks, LinkSource
from glt_lightning.partition.sources.folder import FolderSource
from glt_lightning.partition.tasks.run import Tasks
from tests.helpers.partition_truth import HETERO, random_source, single

STEPS = {
    "checking values": ["check_piece"],
    "counting edges": ["count_piece"],
    "numbering nodes": ["deal_nodes", "number_parts", "place_numbers"],
    "writing nodes": ["rank_part", "take_rows", "deal_rows", "place_rows"],
    "hashing files": ["hash_chunks"],
}
NODES, EDGES = 20_000, 3_000_000


@pytest.fixture
def source(tmp_path: Path) -> FolderSource:
    rng, folder = np.random.default_rng(0), tmp_path / "graph"
    folder.mkdir()
    np.save(folder / "edge_index.npy", rng.integers(0, NODES, (2, EDGES)))
    np.save(folder / "x.npy", rng.random((NODES, 500), np.float32))
    np.save(folder / "y.npy", np.zeros(NODES, np.int64))
    return FolderSource(folder)


@pytest.mark.parametrize("memory_bytes", [32 << 20, pytest.param(1 << 30, marks=pytest.mark.slow)])
def test_tasks_are_those_of_the_run(
    tmp_path: Path, source: FolderSource, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    options = PartitionOptions(num_parts=3, processes=2, memory_bytes=memory_bytes)
    plan, error = plan_partition(source, tmp_path / "out" / "p", options)
    assert error is None
    assert not (tmp_path / "out").exists()
    ran: Counter[str] = Counter()
    run = Tasks.run

    def counted(self: Tasks, name: str, calls: Any, *more: Any) -> Any:
        ran[name] += len(calls)
        return run(self, name, calls, *more)

    monkeypatch.setattr(Tasks, "run", counted)
    partition_graph(source, tmp_path / "out" / "p", options)
    planned = {step.name: step for step in plan.steps}
    for step, tasks in STEPS.items():
        assert planned[step].tasks == sum(ran[task] for task in tasks), (step, ran)
    # where buckets end decides how many of them a task takes
    assert abs(planned["writing edges"].tasks - ran["deal_edges"] - ran["sort_edges"]) <= 2
    assert planned["counting edges"].reads == 16 * EDGES
    assert planned["checking values"].reads == 2000 * NODES
    assert planned["writing nodes"].reads == 2000 * NODES * (1 if memory_bytes > 1 << 29 else 2) + 8 * NODES
    assert planned["writing edges"].reads == (16 + 12) * EDGES
    assert plan.width == 2
    assert plan.wall_s is not None
    assert plan.cpu_s is not None
    assert plan.cpu_s / 2 < plan.wall_s < plan.cpu_s


def planned(tmp_path: Path, source: Any, **options: Any) -> PartitionPlan:
    return plan_partition(source, tmp_path / "p", PartitionOptions(**options))[0]


def test_what_is_larger_takes_more(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0), HETERO, 300)
    plans = [planned(tmp_path, source, num_parts=4, algorithm=each) for each in ("random", "frequency", "streaming")]
    assert [plan.cpu_s for plan in plans] == sorted(plan.cpu_s or 0 for plan in plans)
    assert plans[0].first_bytes < plans[2].first_bytes
    undirected = plan_partition(source, tmp_path / "p", PartitionOptions(num_parts=4), undirected=True)[0]
    assert undirected.steps[-2].reads > plans[0].steps[-2].reads
    presample = planned(tmp_path, source, num_parts=4, hotness="presample")
    assert presample.cpu_s is presample.wall_s is None
    array = planned(tmp_path, source, num_parts=4, engine="array", processes=5)
    assert array.width == 5


def test_metis_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = np.stack([np.arange(1000), (np.arange(1000) + 1) % 1000])
    source = replace(single([(0, 1)], 1000), edge_index={EDGE: ring}, splits={"train": (NODE, np.arange(9))})
    options = PartitionOptions(num_parts=2, algorithm="metis")
    free = "glt_lightning.partition.assign.assigners.available_memory"
    monkeypatch.setattr(free, lambda: 49_999)  # 500 entries at the least
    error = plan_partition(source, tmp_path / "p", options)[1]
    assert error is not None
    with pytest.raises(PartitionError, match=r"metis takes about 67 kB of memory for 500 entries of rows, and 50 kB"):
        raise error
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PartitionError, match="for 500 entries of rows"):
        patch.setattr("glt_lightning.partition.build.builder.count_edges", None)  # no edge has been read
        partition_graph(source, tmp_path / "p", options)
    monkeypatch.setattr(free, lambda: 150_000)  # of 2000 entries it is known when they are sorted
    assert plan_partition(source, tmp_path / "p", options)[1] is None
    with pytest.raises(PartitionError, match="for 2,000 entries of rows"):
        partition_graph(source, tmp_path / "p", options)
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setattr(free, lambda: 200_000)
    partition_graph(source, tmp_path / "p", options)
    one = replace(options, num_parts=1)
    monkeypatch.setattr(free, lambda: 0)
    assert plan_partition(source, tmp_path / "q", one)[1] is None  # there is nothing to cut


def test_a_disk_that_is_too_small(tmp_path: Path, source: FolderSource, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = plan_partition(source, tmp_path / "p", PartitionOptions())
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=plan.disk_bytes - 1))
    error = plan_partition(source, tmp_path / "p", PartitionOptions())[1]
    assert error is not None
    with pytest.raises(PartitionError) as caught:
        partition_graph(source, tmp_path / "p", PartitionOptions())
    assert str(caught.value).partition(":")[2] == str(error).partition(":")[2]


@pytest.mark.parametrize("extension", ["parquet", "csv"])
def test_tables_that_are_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str) -> None:
    tables = {
        "nodes": pd.DataFrame({"id": [f"n{i}" for i in range(1000)], "f": 1.5, "g": 2.5}),
        "edges": pd.DataFrame({"s": ["n1"] * 3000, "d": ["n2"] * 3000}),
    }
    paths = {name: tmp_path / f"{name}.{extension}" for name in tables}
    for name, table in tables.items():
        table.to_parquet(paths[name]) if extension == "parquet" else table.to_csv(paths[name], index=False)
    nodes = {"path": str(paths["nodes"]), "id": "id", "features": "*"}
    edges = {"path": str(paths["edges"]), "source": "s", "destination": "d"}
    source = open_source({"nodes": nodes, "edges": edges}, tmp_path / "root")
    plan, error = plan_partition(source, tmp_path / "p", PartitionOptions())
    assert error is None
    assert not (tmp_path / "root").exists()
    assert [step.name for step in plan.steps] == ["converting nodes", "converting edges"]
    assert plan.steps[0].reads >= paths["nodes"].stat().st_size
    assert "the tables are converted first" in plan.text(tmp_path / "p", PartitionOptions())
    assert json.dumps(plan.to_json())
    assert plan.disk_bytes == (1000 * (8 + 2 * 4) + 3000 * 8 if extension == "parquet" else 0)
    if extension == "parquet":
        with monkeypatch.context() as full:
            full.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=39_999))
            plan, error = plan_partition(source, tmp_path / "p", PartitionOptions())
        assert "the conversion of these tables needs at least 40,000 bytes of disk" in str(error)
    assert source.num_nodes == {NODE: 1000}  # converts them
    assert sum(path.stat().st_size for path in (tmp_path / "root").rglob("*.npy")) >= plan.disk_bytes
    plan, error = plan_partition(source, tmp_path / "p", PartitionOptions())
    assert plan.tables is None


KINDS: dict[str, Any] = {
    "random": ({"num_val": 0.1, "num_test": 0.2}, {}),
    "labels": ({"num_val": 0.1, "num_test": 0.2}, {"labels": {"node__to__node": "edge_kind"}}),
    "relations": ({"num_val": 0.1}, {"labels": {"node__to__node": "edge_kind"}, "relations": True}),
    "later": ({"num_val": 0.25, "num_test": 0.25}, {"val_edges_at_test": True}),
    "times": ({"num_val": 0.25, "num_test": 0.25, "time": "edge_time"}, {}),
    "given": ({"val": np.arange(20).reshape(2, 10)}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_edges_to_predict_are_planned_without_splitting_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rng, (given, more) = np.random.default_rng(0), KINDS[kind]
    ends = rng.integers(0, 2000, (2, 30_000))
    folder = tmp_path / "graph"
    folder.mkdir()
    np.save(folder / "edge_index.npy", ends)
    np.save(folder / "x.npy", np.zeros((2000, 1), np.float32))
    np.save(folder / "edge_kind.npy", rng.integers(0, 5, 30_000))
    np.save(folder / "edge_time.npy", np.arange(30_000))
    links = hold_out_edges(FolderSource(folder), {"node__to__node": given}, **more)
    expected = ExpectedLinks(links)
    with monkeypatch.context() as patch:
        patch.setattr(LinkSource, "_resolved", property(lambda _: pytest.fail("the edges are split")))
        plan = plan_partition(links, tmp_path / "p", PartitionOptions(num_parts=2))[0]
        plain = plan_partition(links.inner, tmp_path / "p", PartitionOptions(num_parts=2))[0]
    step, *others = plan.steps
    assert (step.name, step.tasks, step.alone) == ("splitting edges", 1, True)
    assert step.reads > 0
    assert step.cpu_s is not None
    assert [each.name for each in others] == [each.name for each in plain.steps]
    assert plan.disk_bytes > plain.disk_bytes * 0.8
    kept, found = links.edges(EDGE).num_edges, expected.edges(EDGE).num_edges
    assert found == pytest.approx(kept, rel=0.02)
    assert {name: rows.shape[1:] for name, rows in expected.edge_attrs(EDGE).items()} == {
        name: rows.shape[1:] for name, rows in links.edge_attrs(EDGE).items()
    }
    partition_graph(links, tmp_path / "p", PartitionOptions(num_parts=2), progress=False)
