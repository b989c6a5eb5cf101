"""A graph like ogbn-products, made here: communities, heavy-tailed degrees, features that follow the community.

    python benchmarks/make_graph.py OUT [--scale 1.0] [--degree 50.5] [--width 100] [--repeats]

Degree-corrected stochastic block model (Karrer and Newman, 2011): each node has a Pareto weight and one of 47
communities; an edge draws its first end by weight, and its second by weight inside the same community with
probability 0.8, anywhere otherwise. --scale 1 has the size of ogbn-products (2.45 M nodes, 124 M directed edges).
Writes the folder of .npy files that `dataset:` takes. With --repeats edges stay as they are drawn, in no order, and are
written at once, so that memory grows with the nodes alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

NODES, EDGES, TRAIN, CLASSES, WIDTH = 2_449_029, 61_859_140, 196_615, 47, 100


def draw_edges(rng: np.random.Generator, label: np.ndarray, weight: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: keys min * N + max of edges without self loops; repeats occur."""
    order = np.argsort(label, kind="stable")
    heavy = np.cumsum(weight[order])
    ends = np.searchsorted(label[order], np.arange(CLASSES + 1))
    edge = np.concatenate([[0.0], heavy])[ends]
    first = np.searchsorted(heavy, np.sort(rng.random(count)) * heavy[-1])
    group = label[order][first]
    low, high = edge[group], edge[group + 1]
    same = rng.random(count) < 0.8
    place = rng.random(count) * np.where(same, high - low, heavy[-1]) + np.where(same, low, 0.0)
    second = np.searchsorted(heavy, place).clip(max=len(order) - 1)
    u, v = order[first.clip(max=len(order) - 1)], order[second]
    keep = u != v
    return np.minimum(u, v)[keep] * len(order) + np.maximum(u, v)[keep]


def write_edges(out: Path, rng: np.random.Generator, label: np.ndarray, weight: np.ndarray, count: int) -> None:
    """Writes indptr.npy and indices.npy with ``count`` different edges, each in both directions."""
    n, keys = len(label), np.empty(0, dtype=np.int64)
    while len(keys) < count:
        more = [draw_edges(rng, label, weight, 8_000_000) for _ in range(max(1, (count - len(keys)) // 7_000_000))]
        keys = np.unique(np.concatenate([keys, *more]))
    keys = np.delete(keys, rng.choice(len(keys), len(keys) - count, replace=False))
    both = np.concatenate([keys, keys % n * n + keys // n])
    both.sort()  # by row, then neighbour
    np.save(out / "indptr.npy", np.concatenate([[0], np.cumsum(np.bincount(both // n, minlength=n))]))
    np.save(out / "indices.npy", both % n)


def write_repeats(out: Path, rng: np.random.Generator, label: np.ndarray, weight: np.ndarray, count: int) -> None:
    """Writes edge_index.npy with ``count`` edges, some of them the same, each in both directions."""
    n, done = len(label), 0
    ends = np.lib.format.open_memmap(out / "edge_index.npy", mode="w+", dtype=np.int64, shape=(2, 2 * count))
    while done < count:
        keys = rng.permutation(draw_edges(rng, label, weight, 4_000_000))[: count - done]
        for row, first, second in ((0, keys // n, keys % n), (1, keys % n, keys // n)):
            ends[row, 2 * done : 2 * (done + len(keys))] = np.concatenate([first, second])
        done += len(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--degree", type=float, default=2 * EDGES / NODES, help="mean number of neighbours")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the features")
    parser.add_argument("--repeats", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    n, train = (int(size * args.scale) for size in (NODES, TRAIN))
    m = int(NODES * args.scale * args.degree / 2)
    rng = np.random.default_rng(args.seed)
    label = rng.choice(CLASSES, n, p=rng.dirichlet(np.full(CLASSES, 2.0)))
    weight = np.minimum((1 - rng.random(n)) ** (-1 / 1.5), 400.0)
    args.out.mkdir(parents=True, exist_ok=True)
    (write_repeats if args.repeats else write_edges)(args.out, rng, label, weight, m)
    center = rng.standard_normal((CLASSES, args.width), dtype=np.float32)
    features = np.lib.format.open_memmap(args.out / "feat.npy", mode="w+", dtype=np.float32, shape=(n, args.width))
    for begin in range(0, n, 200_000):
        rows = label[begin : begin + 200_000]
        features[begin : begin + len(rows)] = center[rows] + 2 * rng.standard_normal(
            (len(rows), args.width), dtype=np.float32
        )
    np.save(args.out / "label.npy", label)
    order, later = rng.permutation(n), train // 5
    for name, begin, end in (
        ("train", 0, train),
        ("valid", train, train + later),
        ("test", train + later, train + 2 * later),
    ):
        np.save(args.out / f"{name}.npy", np.sort(order[begin:end]))


if __name__ == "__main__":
    main()
