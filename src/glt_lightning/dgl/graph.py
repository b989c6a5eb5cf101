"""`DistGraph` as a script of DGL makes it, and its partition book."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from itertools import count
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import MANIFEST
from glt_lightning.dgl.state import STATE
from glt_lightning.embedding.dist_embedding import EmbeddingRows
from glt_lightning.errors import DataError, OptionError
from glt_lightning.loader import LoaderContext
from glt_lightning.options import SamplingOptions
from glt_lightning.sampler.request import batch_key
from glt_lightning.tensors import dist_graph
from glt_lightning.tensors.dist_tensor import OPEN_GRAPHS, DistTensor
from glt_lightning.tensors.dist_values import rows_of_index
from glt_lightning.tensors.space import RowSpace
from glt_lightning.types import EdgeType, NodeType

CONF_PATH = "DGL_CONF_PATH"  # DGL's launcher sets it
_ALIASES = {"feat": "x", "features": "x", "label": "y", "labels": "y"}  # DGL's data sets have the left names


class DistGraph(dist_graph.DistGraph):
    """A partitioned graph, made with DGL's arguments. All ranks of one host make it at the same time.

    Args:
        graph_name: Name of the graph.
        part_config: The partition folder, or ``DIR/NAME.json`` for the folder ``DIR/NAME``, which `partition_graph` writes. None:
            the environment variable ``DGL_CONF_PATH``.

    Raises:
        OptionError: Without a partition, for that of another graph, and for one that DGL wrote.
        PartitionError: For a folder that is damaged.
    """

    def __init__(self, graph_name: str, part_config: str | Path | None = None) -> None:
        self.graph_name, self._folder = graph_name, _folder_of(graph_name, part_config)
        partition = LocalPartition.open(self._folder)
        super().__init__(partition, seed=STATE.seed)
        self._closing.callback(partition.close)
        self.partition, self.seed = partition, STATE.seed
        self._contexts: dict[tuple[int, bool], LoaderContext] = {}
        self._draws, self._loaders = count(), count()
        STATE.graph = ref(self)
        # by name: who names an embedding that there is gets its rows
        self.embeddings: dict[str, EmbeddingRows] = {}
        self._closing.callback(_close_all, self.embeddings)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return type(self), (self.graph_name, str(self._folder))

    # Sizes and types

    def number_of_nodes(self, ntype: NodeType | None = None) -> int:
        return self.num_nodes(ntype)

    def number_of_edges(self, etype: EdgeType | str | None = None) -> int:
        return self.num_edges(etype)

    @property
    def ntypes(self) -> list[NodeType]:
        return self.node_types

    @property
    def etypes(self) -> list[str]:
        return [edge_type[1] for edge_type in self.edge_types]

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        return self.edge_types

    # Data

    @property
    def ndata(self) -> MutableMapping[str, DistTensor]:
        """Data of the nodes. ``feat`` and ``features`` also name ``x``, and ``label`` and ``labels`` ``y``."""
        return _WithAliases(super().ndata)

    # The partition

    def get_partition_book(self) -> GraphPartitionBook:
        return GraphPartitionBook(self)

    def get_node_partition_policy(self, ntype: NodeType) -> NodeType:
        """``part_policy`` of a tensor of nodes."""
        return str(self.space(ntype, "node").of)

    def get_edge_partition_policy(self, etype: EdgeType | str) -> Any:
        """``part_policy`` of a tensor of edges."""
        return self.space(etype, "edge").of

    # Loaders

    def context(self, num_workers: int, replace: bool) -> LoaderContext:
        """What makes the loaders of this process: its own seeds, without any call of other ranks."""
        key = num_workers, replace
        if key not in self._contexts:
            sampling = SamplingOptions(num_workers=num_workers, replace=replace)
            self._contexts[key] = LoaderContext(self.partition, sampling, seed=self.seed)
            self._closing.callback(self._contexts[key].close)
        return self._contexts[key]

    def loader_name(self) -> str:
        """Another one for each loader and rank: they draw apart."""
        return f"dgl/{next(self._loaders)}/{self.rank}"

    def next_key(self) -> int:
        """Key of the next draw, another one on each rank."""
        return batch_key(self.seed, f"dgl/{self.rank}", 0, next(self._draws))


def current_graph() -> DistGraph:
    """The graph that was made last in this process. Raises `DataError` where it is closed, and before there is one."""
    graph = None if STATE.graph is None else STATE.graph()
    if not isinstance(graph, DistGraph) or graph not in OPEN_GRAPHS:
        raise DataError("the DistGraph that was made last is closed, or there is none. Make a DistGraph first.")
    return graph


class GraphPartitionBook:
    """Which part has which rows."""

    def __init__(self, graph: DistGraph) -> None:
        self.graph = graph

    def num_partitions(self) -> int:
        return self.graph.partition.manifest.num_parts

    def nid2partid(self, nids: Any, ntype: NodeType | None = None) -> Tensor:
        """int64 [n]: the part of each node."""
        return _parts(self.graph.space(ntype, "node"), nids)

    def eid2partid(self, eids: Any, etype: EdgeType | str | None = None) -> Tensor:
        """int64 [n]: the part of each edge, which is that of its destination."""
        return _parts(self.graph.space(etype, "edge"), eids)

    def partid2nids(self, partid: int, ntype: NodeType | None = None) -> Tensor:
        """The nodes of a part."""
        return _rows(self.graph.space(ntype, "node"), partid)

    def partid2eids(self, partid: int, etype: EdgeType | str | None = None) -> Tensor:
        """The edges of a part."""
        return _rows(self.graph.space(etype, "edge"), partid)


class _WithAliases(MutableMapping[str, DistTensor]):
    def __init__(self, data: MutableMapping[str, DistTensor]) -> None:
        self._data = data

    def _name(self, name: str) -> str:
        return name if name in self._data else _ALIASES.get(name, name)

    def __getitem__(self, name: str) -> DistTensor:
        return self._data[self._name(name)]

    def __contains__(self, name: object) -> bool:
        return self._name(str(name)) in self._data

    def __setitem__(self, name: str, tensor: DistTensor) -> None:
        self._data[name] = tensor

    def __delitem__(self, name: str) -> None:
        del self._data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


def _close_all(embeddings: dict[str, EmbeddingRows]) -> None:
    while embeddings:
        embeddings.popitem()[1].held.close()


def _folder_of(name: str, part_config: str | Path | None) -> Path:
    given = part_config if part_config is not None else os.environ.get(CONF_PATH)
    if given is None:
        raise OptionError(
            f"DistGraph: graph {name!r}: part_config: no partition is given. Give the folder, or OUT_PATH/{name}.json of "
            f"partition_graph, here or in the environment variable {CONF_PATH}."
        )
    path = Path(given).expanduser()
    folder = path.with_suffix("") if path.suffix == ".json" else path
    if path.suffix == ".json" and folder.name != name:
        raise OptionError(f"DistGraph: part_config: {path} is of the graph {folder.name!r}, not of {name!r}.")
    if path.is_file() and not (folder / MANIFEST).is_file():
        raise OptionError(
            f"DistGraph: part_config: {path} is a file, and there is no partition in {folder}. A partition that DGL wrote has to "
            f"be converted: glt-lightning partition --from dgl {path.parent} --to {folder} --python PYTHON_WITH_DGL."
        )
    return folder


def _parts(space: RowSpace, ids: Any) -> Tensor:
    return torch.from_numpy(space.parts_of(rows_of_index(ids, space.num_rows)).astype(np.int64))


def _rows(space: RowSpace, part: int) -> Tensor:
    if not 0 <= part < space.num_parts:
        raise DataError(f"part: expected 0 to {space.num_parts - 1}, got {part}.")
    return torch.arange(int(space.bounds[part]), int(space.bounds[part + 1]))
