"""Runs in the interpreter of a user's DGL and imports nothing of ours: writes the parts of a partition as plain arrays.

python -I dgl_export.py PART_CONFIG.json OUT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import dgl  # type: ignore[import-not-found]  # the user's own
import numpy as np

INNER_NODE, INNER_EDGE = "inner_node", "inner_edge"


def export(config: str, out: str) -> None:
    with open(config) as file:
        meta = json.load(file)
    for part in range(meta["num_parts"]):
        np.savez(os.path.join(out, f"part{part}.npz"), **arrays_of(config, meta, part))
    with open(os.path.join(out, "meta.json"), "w") as file:
        json.dump({"num_parts": meta["num_parts"], "name": meta["graph_name"], "version": dgl.__version__}, file)


def arrays_of(config: str, meta: Mapping[str, Any], part: int) -> dict[str, Any]:
    graph, node_data, edge_data, book = dgl.distributed.load_partition(config, part)[:4]
    original = original_ids(os.path.join(os.path.dirname(config), f"part{part}"))
    found = {}
    for ntype in meta["ntypes"]:
        ids = book.partid2nids(part, ntype).numpy()
        found[f"node/{ntype}/id"] = ids
        if "node/" + ntype in original:
            found[f"node/{ntype}/original"] = original["node/" + ntype]
        add(found, f"node/{ntype}/data/", node_data, ntype, len(ids))
    inner = graph.edata[INNER_EDGE].bool()
    src, dst = (graph.ndata[dgl.NID][end[inner]] for end in graph.edges(order="eid"))
    src, dst = (book.map_to_per_ntype(end)[1].numpy() for end in (src, dst))
    kind, ids = (each.numpy() for each in book.map_to_per_etype(graph.edata[dgl.EID][inner]))
    for name, number in meta["etypes"].items():
        at = np.flatnonzero(kind == number)
        order = at[np.argsort(ids[at])]
        found[f"edge/{name}/id"] = ids[order]
        found[f"edge/{name}/ends"] = np.stack([src[order], dst[order]], axis=1)
        if "edge/" + name in original:
            found[f"edge/{name}/original"] = original["edge/" + name]
        add(found, f"edge/{name}/data/", edge_data, name, len(order))
    return found


def original_ids(folder: str) -> dict[str, np.ndarray]:
    """What the tools for large graphs save beside a part."""
    found = {}
    for kind, file in (("node", "orig_nids.dgl"), ("edge", "orig_eids.dgl")):
        path = os.path.join(folder, file)
        if os.path.isfile(path):
            for name, ids in dgl.data.utils.load_tensors(path).items():
                found[kind + "/" + name] = ids.numpy()
    return found


def add(found: dict[str, np.ndarray], prefix: str, data: Mapping[Any, Any], of: str, count: int) -> None:
    for key, values in data.items():
        begin, _, name = key.rpartition("/")
        begin = begin if isinstance(begin, str) else ":".join(begin)
        if begin == of and len(values) == count:
            found[prefix + name] = values.float().numpy() if str(values.dtype) == "torch.bfloat16" else values.numpy()


if __name__ == "__main__":
    export(sys.argv[1], sys.argv[2])
