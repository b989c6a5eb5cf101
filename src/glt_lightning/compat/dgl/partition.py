"""`partition_graph` with DGL's arguments."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import OptionError, PartitionOptions, one_of
from glt_lightning.compat.dgl.hosts import STATE
from glt_lightning.compat.others.dgl_parts import dgl_source, is_dgl_graph
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import GraphSource, open_source, partition_graph as write_partition
from glt_lightning.tensors import GraphReader


def partition_graph(
    g: Any,
    graph_name: str,
    num_parts: int,
    out_path: str | Path,
    num_hops: int = 1,
    part_method: str = "metis",
    balance_ntypes: Any = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
) -> tuple[Any, Any] | None:
    """Writes the partition folder ``out_path/graph_name``, which `DistGraph` opens as ``out_path/graph_name.json``.

    Args:
        g: A graph of DGL, or any data set that ``dataset`` of `GLTDataModule` takes.
        graph_name: Name of the graph.
        num_parts: Number of parts.
        out_path: Folder of the partition folder.
        num_hops: 1: a part has the in-edges of its nodes.
        part_method: ``metis``, ``random`` or ``streaming``.
        balance_ntypes: The mask of the training nodes, which the parts then get equal numbers of; or None.
        balance_edges: The parts get equal numbers of edges, too.
        return_mapping: Whether to return the ids in ``g``, of the rows of nodes and of edges: tensors, or by type.

    Raises:
        OptionError: For another number of hops, method or mask. DataError: For a graph that cannot be read.

    Example:
        >>> import glt_lightning.compat.dgl as dgl
        >>> dgl.distributed.partition_graph("graph.npz", "ring", 2, "out", part_method="random")
        >>> print(dgl.distributed.DistGraph("ring", "out/ring.json").number_of_nodes())
        10
    """
    if num_hops != 1:
        raise OptionError(
            f"partition_graph: num_hops: expected 1, got {num_hops!r}: rows of further hops are asked for."
        )
    one_of("partition_graph: part_method", part_method, ("metis", "random", "streaming"))
    if part_method == "random" and (balance_edges or balance_ntypes is not None):
        raise OptionError(
            "partition_graph: balance_ntypes, balance_edges: have no effect with part_method 'random', which balances nodes. "
            "Remove them."
        )
    source: GraphSource = dgl_source(g, graph_name) if is_dgl_graph(g) else open_source(g, out_path)
    balance = ["nodes"] + ["edges"] * balance_edges
    if balance_ntypes is not None:
        _require_training_mask(source, balance_ntypes)
        balance.append("seeds")
    options = PartitionOptions(num_parts=num_parts, algorithm=part_method, balance=balance, seed=STATE.seed)
    folder = Path(out_path) / graph_name
    write_partition(source, folder, options)
    return _mapping(folder) if return_mapping else None


def _require_training_mask(source: GraphSource, given: Any) -> None:
    target, ids = source.splits.get("train", (None, np.empty(0, np.int64)))
    mask = given.get(target) if isinstance(given, dict) else given
    if mask is None or not np.array_equal(np.flatnonzero(np.asarray(mask)), np.sort(ids)):
        raise OptionError(
            "partition_graph: balance_ntypes: expected the mask of the training nodes of the graph (train_mask)."
        )


def _mapping(folder: Path) -> tuple[Any, Any]:
    with closing(LocalPartition.open(folder)) as partition:
        reader = GraphReader.of(partition)
        found: list[dict[Any, Tensor]] = [{}, {}]
        for space in reader.spaces:
            ids = reader.user_ids(space, np.arange(space.num_rows))
            found[space.kind == "edge"][space.of] = torch.from_numpy(ids)
    homogeneous = partition.manifest.schema.homogeneous
    nodes, edges = (next(iter(each.values())) if homogeneous else each for each in found)
    return nodes, edges
