"""Writes small graphs as the raw files of an OGB node data set, so that OGB's own loader reads them offline."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPLIT_FOLDER = {
    "ogbn-papers100M": "time",
    "ogbn-products": "sales_ranking",
    "ogbn-arxiv": "time",
    "ogbn-proteins": "species",
    "ogbn-mag": "time",
}
VERSION = {"ogbn-mag": 2}


@dataclass
class RawGraph:
    """edges int64 [2, E], features [N, D], labels [N, tasks], split name (train, valid, test) -> ids."""

    edges: np.ndarray
    x: np.ndarray
    y: np.ndarray
    splits: dict[str, np.ndarray]

    @classmethod
    def random(cls, rng: np.random.Generator, nodes: int = 60, edges: int = 200, tasks: int = 1) -> RawGraph:
        order = rng.permutation(nodes)
        thirds = dict(zip(("train", "valid", "test"), np.split(order, [nodes // 3, 2 * nodes // 3]), strict=True))
        y = rng.integers(0, 2 if tasks > 1 else 5, (nodes, tasks))
        x = rng.standard_normal((nodes, 7)).round(4).astype(np.float32)
        return cls(rng.integers(0, nodes, (2, edges)), x, y, thirds)


def write_table(path: Path, rows: np.ndarray | list, header: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header] if header else []
    array = np.asarray(rows)
    lines += [",".join(map(str, row)) for row in array.reshape(len(array), -1).tolist()]
    with gzip.open(path, "wt") as stream:
        stream.write("\n".join(lines) + "\n")


def data_set_folder(root: Path, name: str) -> Path:
    folder = root / name.replace("-", "_")
    (folder / "mapping").mkdir(parents=True)
    (folder / f"RELEASE_v{VERSION.get(name, 1)}.txt").touch()
    return folder


def _write_splits(folder: Path, splits: dict[str, np.ndarray]) -> None:
    for name, ids in splits.items():
        write_table(folder / f"{name}.csv.gz", ids)


def lay_out(root: Path, name: str, graph: RawGraph) -> Path:
    """A homogeneous data set; returns its folder. OGB itself adds the inverse edges of products and proteins."""
    folder = data_set_folder(root, name)
    raw, nodes = folder / "raw", len(graph.x)
    write_table(raw / "edge.csv.gz", graph.edges.T)
    write_table(raw / "node-label.csv.gz", graph.y)
    write_table(raw / "num-node-list.csv.gz", [nodes])
    write_table(raw / "num-edge-list.csv.gz", [graph.edges.shape[1]])
    if name == "ogbn-proteins":
        write_table(raw / "edge-feat.csv.gz", np.arange(graph.edges.shape[1]) / 4)
        write_table(raw / "species.csv.gz", np.full(nodes, 9606))
    else:
        write_table(raw / "node-feat.csv.gz", graph.x)
    if name == "ogbn-arxiv":
        write_table(raw / "node_year.csv.gz", 2000 + np.arange(nodes) % 20)
    _write_splits(folder / "split" / SPLIT_FOLDER[name], graph.splits)
    return folder


def lay_out_papers(root: Path, graph: RawGraph, *, compressed: bool) -> Path:
    """A homogeneous data set in one ``data.npz``, as ogbn-papers100M; labels are floats, NaN where there is none."""
    folder, nodes = data_set_folder(root, "ogbn-papers100M"), len(graph.x)
    (folder / "raw").mkdir()
    save = np.savez_compressed if compressed else np.savez
    save(
        folder / "raw" / "data.npz",
        edge_index=graph.edges,
        num_nodes_list=np.array([nodes]),
        num_edges_list=np.array([graph.edges.shape[1]]),
        node_feat=graph.x,
        node_year=2000 + np.arange(nodes).reshape(-1, 1) % 20,
    )
    labels = graph.y.astype(np.float32)
    labels[:3] = np.nan
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    _write_splits(folder / "split" / SPLIT_FOLDER["ogbn-papers100M"], graph.splits)
    return folder


def lay_out_mag(root: Path, papers: RawGraph, authors: int = 40) -> Path:
    """A heterogeneous data set in the likeness of ogbn-mag with two relations."""
    folder = data_set_folder(root, "ogbn-mag")
    raw, nodes = folder / "raw", len(papers.x)
    write_table(raw / "num-node-dict.csv.gz", [[authors, nodes]], "author,paper")
    relations = {"author___writes___paper": papers.edges % [[authors], [nodes]], "paper___cites___paper": papers.edges}
    write_table(raw / "triplet-type-list.csv.gz", np.array([r.split("___") for r in relations]))
    for relation, edges in relations.items():
        write_table(raw / "relations" / relation / "edge.csv.gz", edges.T)
        write_table(raw / "relations" / relation / "num-edge-list.csv.gz", [edges.shape[1]])
        write_table(raw / "relations" / relation / "edge_reltype.csv.gz", np.full(edges.shape[1], len(relation)))
    write_table(raw / "node-feat/paper/node-feat.csv.gz", papers.x)
    write_table(raw / "node-feat/paper/node_year.csv.gz", 2000 + np.arange(nodes) % 20)
    write_table(raw / "nodetype-has-label.csv.gz", np.array([["False", "True"]]), "author,paper")
    write_table(raw / "node-label/paper/node-label.csv.gz", papers.y)
    split = folder / "split" / "time"
    write_table(split / "nodetype-has-split.csv.gz", np.array([["False", "True"]]), "author,paper")
    _write_splits(split / "paper", papers.splits)
    return folder
