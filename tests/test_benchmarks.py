"""Every script of benchmarks/ runs to its end on a tiny graph and prints its figures, which mean nothing here."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning import PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.helpers import started
from tests.helpers.partitions import small_hetero

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SCALE = 0.006  # 14 k nodes, and training seeds for one batch of 1024
LIMIT_S = 600.0  # on a machine that is busy with other things; the longest takes 40 s of CPU time
PYTHON = {"dgl": "GLT_PEER_DGL", "pyg": "GLT_PEER_PYG", "glt": "GLT_PEER_GLT"}

# {graph} is a folder of make_graph.py, {part1} and {part2} its partitions, {tmp} an empty folder
COMMANDS = {
    "run.py": "{graph} --rounds 1 --quick --work {tmp} --results {tmp}",
    "run_cluster.py": "{graph} --rounds 1 --quick --work {tmp} --results {tmp}",
    "partitioning.py": "{graph} --parts 2 --rounds 1 --algorithms random,streaming --work {tmp} --results {tmp}/a.jsonl",
    "hotness.py": "{part2} --batch_size 256",
    "streaming.py": "--nodes 2000 --degree 4 --communities 10",
    "table_ids.py": "--nodes 500 --edges 500 --work {tmp}/ids",
    "feature_dtype.py": "{part1} --rounds 1",
    "storage.py": "--rows 1000 --features 4 --rounds 1",
    "cache.py": "traffic {part2} --policies degree --ratio 0.1 --batches 2 --batch_size 256",
    "cache.py gather": "gather {part2} --rounds 1 --batch_size 256",
    "cache_fill.py": "fill {part2} --rounds 1",
    "cache_fill.py memory": "memory {part2}",
    "disk.py": "{part1} --rounds 1",
    "pressure.py": "{part1} --shares --workers 0 --rounds 1 --batches 2 --warm 1 --batch-size 64",
    "step.py": "{part1} --rounds 1 --batch_size 64 --hidden 8 --edge_format tensor edge_index_csr",
    "epoch.py": "{graph} --rounds 1 --batch_size 64 --hidden 8",
    "draws.py": "{part1} --rounds 1 --batches 1 --work {tmp}",
    "labor.py": "{part1} --dense 200 --degree 5 --fanouts 3 2 --batch_size 16 --rounds 1 --batches 1",
    "accuracy.py": "../configs/demo.yaml --seeds 1 --set trainer.max_epochs=1 --with data.sampling.method=labor",
    "walks.py": "{part1} --rounds 1 --seeds 16 --walks 5",
    "recommend.py": "--users 60 --items 40 --edges 500 --batches 1 --ways exact --work {tmp}",
    "knowledge_graph.py": "--nodes 40 --seeds 1 --epochs 1 --width 8 --lr 0.1",
    "link.py": "{part1} --rounds 1 --batches 1",
    "temporal.py": "--nodes 500 --degree 5 --batch-size 16 --rounds 1 --batches 1",
    "aggregate_first.py": "{part1} --rounds 1 --batch_size 64 --hidden 8",
    "first_step.py": "../configs/reference/cora.yaml {arrays}/cora.npz --rounds 1 --epochs 1",
    "headline.py": "{arrays} --graphs cora products_like --rounds 1 --quick",
    "plan.py": "{arrays}/cora.npz --cases in-process --epochs 1 --hidden 8",
    "transport.py": "--rounds 1 --mb 4 --gb 0.2",
    "half_remote.py": "{part2} --rounds 1 --batches 1",
    "typed_step.py": "{typed} --rounds 1 --batch_size 16 --hidden 8",
    "embedding.py": "--rows 500 --width 4 --batch 50 --rounds 1",
    "inference.py": "{part1} --hidden 8 --sampled 64 --whole 4 --work {tmp}",
    "versions.py": "cost {graph} --rounds 1 --batches 1 --work {tmp}",
    "versions.py accuracy": "accuracy {arrays}/cora.npz --epochs 1 --work {tmp}",
    "endpoint.py": "{part1} --rate 50 --seconds 1 --clients 2 --hidden 8 --fanouts 3 3",
    "endpoint_pyg.py": "{graph} --requests 5 --hidden 8 --fanouts 3 3",
    "embedding_disk.py": "--rows 500 --width 4 --batch 50 --rounds 1 --share 1 --seconds 0.1 --scratch {tmp}",
}
# what the scripts above start or import, and what tests/test_gpu_*.py run
WITHIN = {"sampling", "loader", "startup", "memory", "train", "table", "measure", "cluster", "proxy", "make_graph"}
WITHIN |= {
    "flame",
    "peer",
    "peer_dgl",
    "peer_dgl_step",
    "peer_dgl_walks",
    "peer_dgl_link",
    "peer_dgl_embedding",
    "peer_pyg",
    "peer_glt",
    "charts",
    "headline_dgl",
    "headline_pyg",
    "ray_sweep",  # tests/lightning/test_ray.py
    "simulate",  # tests/test_simulation.py
    "scale",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tiny")
    run("make_graph.py", str(folder / "graph"), "--scale", str(SCALE))
    for parts in (1, 2):
        source = open_source(folder / "graph", folder)
        partition_graph(source, folder / f"part{parts}", PartitionOptions(num_parts=parts))
    torch.save(small_hetero(), folder / "typed.pt")
    (folder / "arrays").mkdir()
    _save_arrays(folder / "arrays" / "cora.npz")
    (folder / "arrays" / "products_like").symlink_to(folder / "graph")
    named = {name: str(folder / name) for name in ("graph", "part1", "part2", "arrays")}
    return named | {"typed": str(folder / "typed.pt")}


def _save_arrays(path: Path) -> None:
    """300 nodes of three classes, that `headline.py` takes for cora."""
    numbers = np.random.default_rng(0)
    order, edges = numbers.permutation(300), numbers.integers(300, size=(2, 900))
    splits = {"train_idx": order[:150], "valid_idx": order[150:200], "test_idx": order[200:]}
    np.savez(path, x=numbers.random((300, 8), dtype=np.float32), y=np.arange(300) % 3, edge_index=edges, **splits)


def run(*command: str, python: str = sys.executable) -> str:
    """What a script prints; fails with its output, too where a process of it was left behind."""
    with started([python, *command], cwd=FOLDER, env={"OMP_NUM_THREADS": "1"}) as process:
        status = process.wait(LIMIT_S)
        assert status == 0, f"{command} ended with {status}:\n{process.output}"
        assert process.family() == []
        return process.output


def figures(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_sampling(places: dict[str, str]) -> None:
    lines = [line for line in figures(run("sampling.py", places["part1"], "--seconds", "0.01")) if "work" in line]
    cases = [(line["fanouts"], line["work"]) for line in lines]
    assert cases == [(fanouts, work) for fanouts in ("15,10,5", "10,25") for work in ("n_id", "e_id", "labor")]
    assert all(float(str(line["m_edges_per_cpu_s"])) > 0 for line in lines)


def test_each_script_is_named_here() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {path.stem for path in FOLDER.glob("gpu*.py")}
    assert scripts == WITHIN | {name.split(".")[0] for name in COMMANDS}


def test_the_pictures_of_docs_are_drawn_from_the_results(tmp_path: Path) -> None:
    """The words and numbers in them; and a page shows each, with a text for those who do not see it."""
    run("charts.py", "--out", str(tmp_path))
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert len(pictures) == 3
    docs = FOLDER.parent / "docs"
    pages = "".join(path.read_text() for path in docs.glob("*.md"))
    for name in pictures:
        drawn, kept = (re.findall(r"<text[^>]*>([^<]*)<", (where / name).read_text()) for where in (tmp_path, docs))
        assert len(drawn) > 10
        assert kept == drawn, f"docs/{name} is older than benchmarks/results: python benchmarks/charts.py"
        assert re.search(rf"!\[[^\]]{{40,}}\]\({name}\)", pages), name


def test_a_flame_graph(tmp_path: Path) -> None:
    """As wide as its share of the samples, without the numbers of lines; no waiting threads, no frames without names."""
    stacks = """
process 7:"python";0x7f01 (libc.so.6);main (glt_lightning/cli/main.py:3);step (torch/optim.py:10) 30
process 7:"python";0x7f01 (libc.so.6);main (glt_lightning/cli/main.py:4);step (torch/optim.py:11) 30
process 7:"python";main (glt_lightning/cli/main.py:5);process 8:"";draw<int> (glt_lightning/sampling/khop.py:2) 40
process 7:"python";Condition.wait (threading.py:1) 900
"""
    (tmp_path / "run.txt").write_text(stacks.lstrip())
    run("flame.py", str(tmp_path / "run.txt"), str(tmp_path / "run.svg"))
    titles = re.findall(r"<title>([^<]*)</title>", (tmp_path / "run.svg").read_text())
    assert titles == [
        "the command 100.0 %",
        "main (glt_lightning/cli/main.py) 100.0 %",
        "step (torch/optim.py) 60.0 %",
        "a process beside it 40.0 %",
        "draw&lt;int&gt; (glt_lightning/sampling/khop.py) 40.0 %",
    ]


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_runs(name: str, places: dict[str, str], tmp_path: Path) -> None:
    words = [word.format_map(places | {"tmp": str(tmp_path)}) for word in COMMANDS[name].split()]
    output = run(name.split()[0], *words)
    saved = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    found = figures(output) + figures(saved)
    numbers = [value for line in found for value in line.values() if isinstance(value, int | float)]
    numbers += [float(value) for value in re.findall(r"[0-9.]+(?= \([0-9.]+-[0-9.]+\))", output)]  # of tables
    assert numbers, output
    assert all(map(math.isfinite, numbers)), output


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("name", PYTHON)
def test_a_peer_runs(name: str, places: dict[str, str]) -> None:
    python = os.environ.get(PYTHON[name])
    if not python:
        pytest.skip(f"{PYTHON[name]} names no interpreter that can run peer_{name}.py (docs/benchmarks.md)")
    found = figures(run(f"peer_{name}.py", places["part1"], "--seconds", "0.05", "--batches", "1", python=python))
    assert {line["bench"] for line in found} == {"sampling", "loader", "tiny"}
    assert {line["system"] for line in found} == {name}
    if name == "dgl":
        found = figures(run("peer_dgl_step.py", places["part1"], "--rounds", "1", "--hidden", "8", python=python))
        assert [line["bench"] for line in found] == ["step", "load"]
        found = figures(run("embedding.py", *COMMANDS["embedding.py"].split(), "--dgl", python))
        assert {"lookup + adam, limit", "adam, DGL 2.1.0"} <= {line["way"] for line in found}
        found = figures(run("walks.py", *COMMANDS["walks.py"].format_map(places).split(), "--dgl", python))
        assert {"ours", "dgl"} <= {line["system"] for line in found}
        found = figures(run("link.py", places["part1"], "--rounds", "1", "--batches", "1", "--dgl", python))
        assert {"binary strict", "dgl", "dgl strict"} <= {line["system"] for line in found}
