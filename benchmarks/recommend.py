"""Recommendations: the k best of all destinations for all sources by `recommend`, exactly and by faiss, beside numpy.

    python benchmarks/recommend.py [--users 100000] [--items 50000] [--edges 2000000] [--k 10] [--batches 200] [--work FOLDER]

Users and items have tastes of 16 numbers, which are their features, too; an edge leads to the best of 20 random items. A
`LinkPredictor` (one layer, 64 channels, dot) is trained on some batches. Each way is a process of its own: CPU seconds, less
those of `embed`, whose outputs all need, and the peak of resident memory. Numpy ranks the same embeddings in float64 and
leaves out the edges of all splits. *known*: edges that were recommended; *same*: share of the lists that are equal to
numpy's, id by id; *gap*: the largest relative difference of scores of the same rank; *recall*: share of its destinations
that a way has found.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything
from measure import cpu_s, report

from glt_lightning import (
    GLTDataModule,
    LinkPredictor,
    predict_layerwise,
    read_embeddings,
    recommend,
)
from glt_lightning.lightning import read_predictions

TYPE = "user__buys__item"
_TASTE, _SEEN = 16, 20
_BLOCK = 1000  # sources at once


def make(args: argparse.Namespace, path: Path) -> None:
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((n, _TASTE)).astype(np.float32) for n in (args.users, args.items))
    source = np.sort(rng.integers(0, args.users, args.edges))
    destination = np.empty_like(source)
    for begin in range(0, args.edges, 1 << 16):
        some = source[begin : begin + (1 << 16)]
        seen = rng.integers(0, args.items, (len(some), _SEEN))
        best = np.einsum("ed,esd->es", users[some], items[seen]).argmax(1)
        destination[begin : begin + len(some)] = seen[np.arange(len(some)), best]
    edges = np.unique(np.stack([source, destination]), axis=1)
    np.savez(path, **{"user/x": users, "item/x": items, f"{TYPE}/edge_index": edges})


def parts_of_job(folder: Path) -> tuple[Trainer, LinkPredictor, GLTDataModule]:
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    splits: dict[str, Any] = {"edge_splits": {"num_val": 0.05, "num_test": 0.05}}
    data = GLTDataModule(
        str(folder / "shop.npz"),
        str(folder / "root"),
        task="link",
        undirected=True,
        num_neighbors=[10],
        batch_size=1024,
        seeds={"input_type": TYPE},
        links=splits,
    )
    kind = {"metadata": data.metadata, "num_nodes": data.num_nodes, "edge_type": data.link_type}
    model = LinkPredictor(data.num_features, hidden_channels=64, num_layers=1, lr=0.01, **kind)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **quiet), model, data


def run_one(way: str, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """What a way takes. ``embed``: the outputs alone."""
    trainer, model, data = parts_of_job(folder)
    if way == "fit":
        trainer.limit_train_batches, trainer.limit_val_batches = args.batches, 0
        trainer.fit(model, data)
        trainer.save_checkpoint(folder / "model.ckpt")
        return {}
    began = cpu_s()
    if way == "embed":
        predict_layerwise(trainer, model, data, folder / way, ckpt_path=folder / "model.ckpt")
    elif way == "numpy":
        brute_force(data, args.k, folder)
    else:
        options = {"k": args.k, "index": way}
        recommend(trainer, model, data, folder / way, ckpt_path=folder / "model.ckpt", options=options)
    return {"cpu_s": cpu_s() - began, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def brute_force(data: GLTDataModule, k: int, folder: Path) -> None:
    """Writes the k best items of each user and their scores."""
    data.prepare_data()
    users, items = (
        read_embeddings(folder / "embed", kind)["embedding"].astype(np.float64) for kind in ("user", "item")
    )
    edges = np.load(folder / "shop.npz")[f"{TYPE}/edge_index"]
    best = np.empty((len(users), k), np.int64)
    values = np.empty((len(users), k))
    for begin in range(0, len(users), _BLOCK):
        scores = users[begin : begin + _BLOCK] @ items.T
        first, last = np.searchsorted(edges[0], [begin, begin + len(scores)])
        scores[edges[0, first:last] - begin, edges[1, first:last]] = -np.inf
        near = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, near, 1), axis=1, kind="stable")
        best[begin : begin + len(scores)] = np.take_along_axis(near, order, 1)
        values[begin : begin + len(scores)] = np.take_along_axis(scores, best[begin : begin + len(scores)], 1)
    np.savez(folder / "numpy.npz", best=best, values=values)


def compared(way: str, k: int, folder: Path) -> dict[str, float]:
    found, own = read_predictions(folder / way), np.load(folder / "numpy.npz")
    order = np.lexsort([found["rank"], found["n_id"]])
    ids, scores = (np.asarray(found[name])[order].reshape(-1, k) for name in ("destination", "score"))
    edges = np.load(folder / "shop.npz")[f"{TYPE}/edge_index"]
    users = np.repeat(np.arange(len(ids)), k)
    known = np.isin(users * (1 << 32) + ids.ravel(), edges[0] * (1 << 32) + edges[1])
    hits = [np.isin(mine, theirs).sum() for mine, theirs in zip(ids, own["best"], strict=True)]
    return {
        "known": int(known.sum()),
        "same": float((ids == own["best"]).all(1).mean()),
        "gap": float((np.abs(scores - own["values"]) / np.abs(own["values"]).clip(1e-6)).max()),
        "recall": float(np.sum(hits) / ids.size),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"users": 100_000, "items": 50_000, "edges": 2_000_000, "k": 10, "batches": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ways", nargs="+", default=["exact", "hnsw"], choices=["exact", "hnsw"])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_one(args.one, args, args.work)))
        return
    with tempfile.TemporaryDirectory(dir=args.work) as name:
        folder = Path(name)
        make(args, folder / "shop.npz")
        took = {}
        for way in ("fit", "embed", "numpy", *args.ways):
            command = [sys.executable, __file__, *sys.argv[1:], "--work", name, "--one", way]
            took[way] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        report(measure="embed", **took["embed"])
        report(measure="numpy", **took["numpy"])
        for way in args.ways:
            ranked = {**took[way], "cpu_s": took[way]["cpu_s"] - took["embed"]["cpu_s"]}
            report(measure=way, **ranked, **compared(way, args.k, folder))


if __name__ == "__main__":
    main()
