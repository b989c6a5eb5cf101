"""Rows that come after the partition: what an append and its version cost, and predictions for new nodes.

    python benchmarks/versions.py cost GRAPH [--undirected] [--rounds 5] [--batches 10] [--work FOLDER]  # of make_graph.py
    python benchmarks/versions.py accuracy GRAPH.npz... [--epochs 10] [--work FOLDER]

cost: CPU seconds of a partition of 99 % of the edges, and of appending the rest at once; then of batches of [15, 10, 5] x 1024 by
a loader in this process, of the graph partitioned as a whole, of the version with one append, and of one with ten, in turns.
Batches of all three are equal, which is checked. And milliseconds to lay a new node with ten edges in and out over each.

accuracy: a GraphSAGE is trained without the last tenth of the nodes; these are predicted as new rows, and as nodes of the graph
partitioned with them. All neighbours are drawn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from measure import report
from torch_geometric.data import Data

from glt_lightning import GLTDataModule, GraphSAGE, LoaderSpec, PartitionOptions, SamplingOptions, Session, predict_new
from glt_lightning.base import EDGE, NODE, GraphSchema
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import (
    Additions,
    ArraySource,
    NewEdges,
    NewNodes,
    add_rows,
    append_rows,
    open_version,
    partition_graph,
)

_SHARE, _PARTS = 0.01, 4
_SPEC = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)


def cost(args: argparse.Namespace, work: Path) -> None:
    (graph,) = (Path(given) for given in args.graphs)
    indptr, train = np.load(graph / "indptr.npy"), np.load(graph / "train.npy")
    ends = np.stack([np.load(graph / "indices.npy"), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))])
    ends = ends[:, np.random.default_rng(0).permutation(ends.shape[1])]
    options = PartitionOptions(num_parts=_PARTS, processes=1)
    features, later = np.load(graph / "feat.npy", mmap_mode="r"), round(_SHARE * ends.shape[1])

    def partition(name: str, number: int) -> float:
        source = ArraySource(
            name=name,
            fingerprint=name,
            schema=GraphSchema.single(),
            num_nodes={NODE: len(features)},
            edge_index={EDGE: ends[:, :number]},
            node={NODE: {"x": features}},
            splits={"train": (NODE, train)},
        )
        return _cpu_s(lambda: partition_graph(source, work / name, options, undirected=args.undirected, progress=False))

    def append(name: str, times: int) -> float:
        pieces = np.array_split(ends[:, -later:], times, axis=1)
        return sum(
            _cpu_s(lambda: append_rows(work / name, Additions(edges={EDGE: NewEdges(piece)})))  # noqa: B023
            for piece in pieces
        )

    first = ends.shape[1] - later
    base_s, one_s = partition("one", first), append("one", 1)
    report(
        bench="append",
        edges=ends.shape[1],
        undirected=args.undirected,
        appended=later,
        partition_s=base_s,
        append_s=one_s,
        ratio=one_s / base_s,
    )
    partition("ten", first)
    append("ten", 10)
    partition("whole", ends.shape[1])
    opened = {
        "whole": LocalPartition.open(work / "whole"),
        "one": open_version(LocalPartition.open(work / "one"), 1),
        "ten": open_version(LocalPartition.open(work / "ten"), 10),
    }
    for name, graph_ in opened.items():
        spans = [_lay(graph_, rows) for rows in _requests(len(features), features.shape[1])]
        report(bench="request", over=name, ms=statistics.median(spans) * 1e3)
    spent: dict[str, list[float]] = {name: [] for name in opened}
    for turn in range(args.rounds + 1):
        seen = {}
        for name, graph_ in opened.items():
            with Session(graph_, SamplingOptions(num_workers=0), seed=turn) as session:
                batches = iter(session.make_loader(_SPEC))
                seen[name] = [next(batches).n_id.clone()]
                seconds = _cpu_s(lambda: _draw(batches, args.batches))  # noqa: B023
            if turn:  # the first one is for the page cache
                spent[name].append(seconds / args.batches)
        assert all(torch.equal(found[0], seen["whole"][0]) for found in seen.values())
    for name in ("one", "ten"):
        ratios = [new / old for new, old in zip(spent[name], spent["whole"], strict=True)]
        report(
            bench="version",
            appends=name,
            batch_s=statistics.median(spent[name]),
            whole_s=statistics.median(spent["whole"]),
            ratio=statistics.median(ratios),
            lowest=min(ratios),
            highest=max(ratios),
        )


def _requests(num_nodes: int, width: int) -> list[Additions]:
    rng, new = np.random.default_rng(1), np.full(10, num_nodes)
    others = rng.integers(0, num_nodes, (50, 10))
    ends = (np.stack([np.append(each, new), np.append(new, each)]) for each in others)
    node = {NODE: NewNodes(1, {"x": np.zeros((1, width), np.float32)})}
    return [Additions(nodes=node, edges={EDGE: NewEdges(index)}) for index in ends]


def _lay(graph: LocalPartition, rows: Additions) -> float:
    return _cpu_s(lambda: add_rows(graph, rows).close())


def _draw(batches: Any, count: int) -> None:
    for _ in range(count):
        next(batches)  # nothing keeps it, so that its memory is used again


def _cpu_s(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def accuracy(args: argparse.Namespace, work: Path) -> None:
    for given in args.graphs:
        stored = np.load(given)
        x, y, ends = stored["x"].astype(np.float32), stored["y"], stored["edge_index"]
        old = len(y) * 9 // 10
        seed_everything(0, verbose=False)
        model = GraphSAGE(x.shape[1], int(y.max()) + 1, hidden_channels=64, num_layers=2, lr=0.01)
        train = stored["train_idx"][stored["train_idx"] < old]
        among = (ends < old).all(axis=0)

        def module(count: int, edges: np.ndarray, test: np.ndarray, root: str) -> GLTDataModule:
            return GLTDataModule(
                Data(*map(torch.from_numpy, (x[:count], edges)), y=torch.from_numpy(y[:count])),  # noqa: B023
                root=work / Path(given).stem / root,  # noqa: B023
                undirected=True,
                num_neighbors=[10, 10],
                evaluation={"num_neighbors": [-1, -1]},
                batch_size=256,
                partition={"num_parts": 2},
                sampling=SamplingOptions(num_workers=0),
                seeds={"splits": {"train": train, "test": test}},  # noqa: B023
            )

        data = module(old, ends[:, among], stored["test_idx"][stored["test_idx"] < old], "old")
        quiet: dict[str, Any] = {
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
        }
        Trainer(max_epochs=args.epochs, **quiet).fit(model, data)
        found = predict_new(model, data, nodes={NODE: {"x": x[old:]}}, edges={"node__to__node": ends[:, ~among]})
        whole = module(
            len(y), np.concatenate([ends[:, among], ends[:, ~among]], axis=1), np.arange(old, len(y)), "whole"
        )
        parts = Trainer(**quiet).predict(model, whole)
        assert parts is not None
        wanted = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in ("n_id", "pred")}
        order = np.argsort(wanted["n_id"])[-(len(y) - old) :]
        here, there = np.asarray(found["pred"]), wanted["pred"][order]
        assert (np.asarray(found["n_id"]) == wanted["n_id"][order]).all()
        report(
            bench="new_nodes",
            graph=Path(given).stem,
            nodes=len(y) - old,
            accuracy=float((here == y[old:]).mean()),
            partitioned=float((there == y[old:]).mean()),
            other_classes=int((here != there).sum()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "accuracy"))
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--undirected", action="store_true", help="partition and append with reverse edges")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--work", help="folder for a temporary folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        {"cost": cost, "accuracy": accuracy}[args.what](args, Path(folder))


if __name__ == "__main__":
    main()
