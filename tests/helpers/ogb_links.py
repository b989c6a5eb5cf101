"""Writes small graphs as the raw files of an OGB link data set, so that OGB's own loader reads them offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.helpers.ogb_layout import RawGraph, data_set_folder, write_table

LINK_SPLIT_FOLDER = {
    "ogbl-biokg": "random",
    "ogbl-citation2": "time",
    "ogbl-collab": "time",
    "ogbl-ddi": "target",
    "ogbl-ppa": "throughput",
    "ogbl-vessel": "spatial",
    "ogbl-wikikg2": "time",
}


def lay_out_links(root: Path, name: str, graph: RawGraph) -> Path:
    """A homogeneous data set of links, with the attributes that the real one has, but for its splits."""
    folder = data_set_folder(root, name)
    raw, (nodes, edges) = folder / "raw", (len(graph.x), graph.edges.shape[1])
    if name == "ogbl-vessel":
        raw.mkdir()
        np.savez(
            raw / "data.npz",
            edge_index=graph.edges,
            num_nodes_list=np.array([nodes]),
            num_edges_list=np.array([edges]),
            node_feat=graph.x,
            edge_feat=np.arange(3.0 * edges, dtype=np.float32).reshape(edges, 3),
        )
        return folder
    write_table(raw / "edge.csv.gz", graph.edges.T)
    write_table(raw / "num-node-list.csv.gz", [nodes])
    write_table(raw / "num-edge-list.csv.gz", [edges])
    if name == "ogbl-ppa":
        write_table(raw / "node-feat.csv.gz", np.eye(nodes, 58, dtype=np.int64))  # a species each
    elif name in ("ogbl-collab", "ogbl-citation2"):
        write_table(raw / "node-feat.csv.gz", graph.x)
    if name == "ogbl-collab":
        write_table(raw / "edge_weight.csv.gz", 1 + np.arange(edges) % 3)
        write_table(raw / "edge_year.csv.gz", 1990 + np.arange(edges) % 30)
    if name == "ogbl-citation2":
        write_table(raw / "node_year.csv.gz", 2000 + np.arange(nodes) % 20)
    if name == "ogbl-wikikg2":
        write_table(raw / "edge_reltype.csv.gz", np.arange(edges) % 5)
    return folder


def lay_out_biokg(root: Path, drugs: RawGraph, diseases: int = 40) -> Path:
    """A heterogeneous data set of links in the likeness of ogbl-biokg with two relations."""
    folder = data_set_folder(root, "ogbl-biokg")
    raw, nodes = folder / "raw", len(drugs.x)
    write_table(raw / "num-node-dict.csv.gz", [[diseases, nodes]], "disease,drug")
    relations = {"drug___drug-disease___disease": drugs.edges % [[nodes], [diseases]]}
    relations["drug___drug-drug_cancer___drug"] = drugs.edges
    write_table(raw / "triplet-type-list.csv.gz", np.array([r.split("___") for r in relations]))
    for number, (relation, edges) in enumerate(relations.items()):
        write_table(raw / "relations" / relation / "edge.csv.gz", edges.T)
        write_table(raw / "relations" / relation / "num-edge-list.csv.gz", [edges.shape[1]])
        write_table(raw / "relations" / relation / "edge_reltype.csv.gz", np.full(edges.shape[1], number))
    return folder


def _splits_like(name: str) -> dict[str, dict]:
    """What OGB's files of links hold: tensors, or, in the knowledge graphs, arrays."""
    rng = np.random.default_rng(1)
    parts = {}
    for part, size in (("train", 12), ("valid", 5), ("test", 4)):
        one, two = rng.integers(0, 60, (2, size))
        if name == "ogbl-citation2":
            parts[part] = {"source_node": one, "target_node": two}
            if part != "train":
                parts[part]["target_node_neg"] = rng.integers(0, 60, (size, 10))
        elif name in ("ogbl-wikikg2", "ogbl-biokg"):
            parts[part] = {"head": one, "relation": two % 5, "tail": two}
            if part != "train":
                parts[part]["head_neg"] = rng.integers(0, 60, (size, 10))
                parts[part]["tail_neg"] = rng.integers(0, 60, (size, 10))
        else:
            parts[part] = {"edge": torch.from_numpy(np.stack([one, two], axis=1))}
            if part != "train":
                parts[part]["edge_neg"] = torch.from_numpy(rng.integers(0, 60, (3 * size, 2)))
            if name == "ogbl-collab":
                parts[part]["weight"] = torch.ones(size, dtype=torch.long)
        if name == "ogbl-biokg":
            parts[part] |= {
                "head_type": ["drug"] * size,
                "tail_type": ["disease", "drug"] * (size // 2) + ["drug"] * (size % 2),
            }
    return parts


def write_link_splits(folder: Path, name: str) -> dict[str, dict]:
    """Writes the links to predict as OGB's three files, and returns what they hold by part."""
    parts = _splits_like(name)
    target = folder / "split" / LINK_SPLIT_FOLDER[name]
    target.mkdir(parents=True)
    for part, held in parts.items():
        torch.save(held, target / f"{part}.pt")
    return parts
