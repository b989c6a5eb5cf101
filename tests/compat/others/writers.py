"""The folders of other systems, written from a graph as their partitioners lay them out."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData


def parts_of(count: int, num_parts: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, num_parts, count))


def write_glt(
    data: Data | HeteroData, folder: Path, num_parts: int, *, chunks: int = 2, weights: Tensor | None = None
) -> dict:
    """Edges lie with their source, which is GLT's default. Returns node type -> part of each node."""
    typed = isinstance(data, HeteroData)
    folder.mkdir(parents=True)
    parts = {}
    for n, store in enumerate(data.node_stores):
        name = store._key or "node"
        parts[name] = parts_of(store.num_nodes, num_parts, n)
        _save(parts[name], folder / (f"node_pb/{name}.pt" if typed else "node_pb.pt"))
        for p in range(num_parts if "x" in store else 0):
            below, ids = folder / f"part{p}/node_feat" / (name if typed else ""), torch.where(parts[name] == p)[0]
            below.mkdir(parents=True)
            for array, file in ((store.x[ids], "feats.pkl"), (ids, "ids.pkl")):
                with open(below / file, "ab") as out:  # appended, chunk by chunk
                    for chunk in array.tensor_split(chunks):
                        pickle.dump(chunk.clone(), out)
            _save(store.x[:1], below / "cache_feats.pt")
    for store in data.edge_stores:
        name = "__".join(store._key) if typed else ""
        owner = parts[store._key[0] if typed else "node"][store.edge_index[0]]
        _save(owner, folder / (f"edge_pb/{name}.pt" if typed else "edge_pb.pt"))
        for p in range(num_parts):
            ids = torch.where(owner == p)[0]
            below = folder / f"part{p}/graph" / name
            for file, array in (("rows", store.edge_index[0][ids]), ("cols", store.edge_index[1][ids]), ("eids", ids)):
                _save(array, below / f"{file}.pt")
            if weights is not None:
                _save(weights[ids], below / "weights.pt")
    with open(folder / "META", "wb") as out:
        pickle.dump({"num_parts": num_parts, "data_cls": "hetero" if typed else "homo"}, out)
    return parts


def write_pyg(data: Data | HeteroData, folder: Path, num_parts: int) -> dict:
    """Edges lie with their destination. Returns node type -> part of each node."""
    typed = isinstance(data, HeteroData)
    nodes = {store._key or "node": store for store in data.node_stores}
    edges = {store._key or ("node", "to", "node"): store for store in data.edge_stores}
    parts = {name: parts_of(store.num_nodes, num_parts, n) for n, (name, store) in enumerate(nodes.items())}
    for name, of in parts.items():
        _save(of, folder / (f"node_map/{name}.pt" if typed else "node_map.pt"))
    for p in range(num_parts):
        graph, nfeats, efeats, first = {}, {}, {}, 0
        for e, store in edges.items():
            ids = torch.where(parts[e[2]][store.edge_index[1]] == p)[0].flip(0)
            ends = store.edge_index[:, ids]
            graph[e] = {"edge_id": ids + first, "row": ends[0], "col": ends[1], "size": (1, 1)}
            if "edge_attr" in store:
                efeats[e] = {"global_id": ids, "feats": {"edge_attr": store.edge_attr[ids]}}
            first += store.edge_index.size(1)
        for name, store in nodes.items():
            ids = torch.where(parts[name] == p)[0]
            nfeats[name] = {"global_id": ids, "id": ids, "feats": {"x": store.x[ids] if "x" in store else None}}
        for file, by_type in (("graph", graph), ("node_feats", nfeats), ("edge_feats", efeats)):
            _save(by_type if typed else next(iter(by_type.values()), {}), folder / f"part_{p}/{file}.pt")
    types = (
        {"node_types": list(nodes), "edge_types": list(edges)} if typed else {"node_types": None, "edge_types": None}
    )
    (folder / "META.json").write_text(json.dumps({"num_parts": num_parts, "is_hetero": typed, **types}))
    return parts


def _save(given: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(given, path)
