"""Arguments of PyG's loaders: graphs, fan-outs, seeds, edges and negatives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling as PygNegatives
from torch_geometric.sampler.base import NumNeighbors

from glt_lightning.base import EdgeType, GraphSchema, NegativeSampling, OptionError, edge_type_str
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import host_array


def require_graph(name: str, data: Any) -> None:
    if isinstance(data, (Data, HeteroData, LocalPartition, str, Path)):
        return
    given, remedy = type(data).__name__, ""
    if isinstance(data, tuple):
        given, remedy = (
            "(FeatureStore, GraphStore)",
            " Partition what the stores hold, and give the folder: docs/data.md.",
        )
    elif given == "Dataset":
        remedy = " Loaders of a data set of GraphLearn-for-PyTorch are among that system's names: docs/coming-from.md."
    raise OptionError(f"{name}: data: expected a Data, a HeteroData or a partition folder, got {given}.{remedy}")


def read_fanouts(given: Any, schema: GraphSchema, unstored: Sequence[EdgeType]) -> Any:
    """Raises PyG's ``ValueError`` for edge types that are missing or unknown, and for different numbers of hops."""
    numbers = given if isinstance(given, NumNeighbors) else NumNeighbors(given)
    if isinstance(numbers.values, (list, tuple)):
        return [int(n) for n in numbers.values]
    if schema.homogeneous:
        raise OptionError(f"num_neighbors: expected a list for a graph with one node type, got {numbers.values!r:.80}.")
    by_type = numbers.get_values([e for e in schema.edge_types if e not in unstored])
    hops = len(next(iter(by_type.values()), []))
    by_type = {**by_type, **{e: [0] * hops for e in unstored}}
    return {edge_type_str(e): [int(n) for n in hops] for e, hops in by_type.items()}


def read_nodes(graph: LocalPartition, given: Any) -> tuple[str | None, np.ndarray, Tensor | None]:
    """(node type, ids, what ``input_id`` of batches has in place of positions among these)."""
    schema, node_type = graph.schema, None
    if not schema.homogeneous:
        node_type, given = (given, None) if isinstance(given, str) else given if _is_pair(given) else (None, given)
        if node_type not in schema.node_types:
            raise OptionError(
                f"input_nodes: expected one of {', '.join(schema.node_types)}, or (node type, nodes); got {node_type!r}."
            )
    if given is None:
        t = schema.node_types.index(node_type or schema.node_types[0])
        return node_type, np.setdiff1d(np.arange(graph.manifest.num_nodes[t]), graph.deleted(t)), None
    nodes = host_array("input_nodes", given)
    if nodes.dtype == np.bool_:
        nodes = np.flatnonzero(nodes)
        return node_type, nodes, torch.from_numpy(nodes)
    return node_type, nodes.astype(np.int64) if not nodes.size else nodes, None


def _is_pair(given: Any) -> bool:
    return isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], str)


def read_edges(data: Any, given: Any) -> tuple[EdgeType | None, np.ndarray]:
    """(edge type of a heterogeneous graph, edges [2, S])."""
    edge_type: Any = None
    if _is_type(given):
        given = (given, None)
    if isinstance(given, (tuple, list)) and len(given) == 2 and _is_type(given[0]):
        edge_type, given = _edge_type(data, given[0]), given[1]
    if isinstance(data, HeteroData) and edge_type is None:
        raise OptionError("edge_label_index: expected an edge type, or (edge type, edges), for a HeteroData.")
    if given is None:
        if not isinstance(data, (Data, HeteroData)):
            raise OptionError("edge_label_index: give the edges: all of them are taken only of a Data or HeteroData.")
        given = data.edge_index if edge_type is None else data[edge_type].edge_index
    return edge_type, host_array("edge_label_index", given)


def _is_type(given: Any) -> bool:
    return isinstance(given, (tuple, list)) and len(given) in (2, 3) and all(isinstance(each, str) for each in given)


def _edge_type(data: Any, given: Sequence[str]) -> EdgeType:
    if len(given) == 3:
        return given[0], given[1], given[2]
    known = data.edge_types if isinstance(data, HeteroData) else []
    found = [e for e in known if (e[0], e[2]) == tuple(given)]
    if len(found) > 1:
        raise OptionError(
            f"edge_label_index: several edge types lead from {given[0]!r} to {given[1]!r}: name one of {found}."
        )
    return found[0] if found else (given[0], "to", given[1])


def read_negatives(given: Any) -> NegativeSampling | None:
    """PyG's negatives are any pairs; those of our own class are what it says."""
    if given is None or isinstance(given, NegativeSampling):
        return given
    pyg = PygNegatives.cast(given)
    src, dst = (
        None if each is None else host_array("neg_sampling: weights", each)
        for each in (pyg.src_weight if pyg.is_binary() else None, pyg.dst_weight)
    )
    return NegativeSampling(mode=pyg.mode.value, amount=pyg.amount, src_weight=src, dst_weight=dst, strict=False)
