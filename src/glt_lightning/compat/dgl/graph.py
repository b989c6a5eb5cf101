"""`DistGraph` as a script of DGL makes it, and its partition book."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from glt_lightning import tensors
from glt_lightning.base import DataError, EdgeType, NodeType, OptionError, SamplingOptions
from glt_lightning.compat.dgl.hosts import STATE, JoinedHosts, ScriptHosts
from glt_lightning.graph import MANIFEST, LocalPartition
from glt_lightning.loader import Session
from glt_lightning.sampling import batch_key
from glt_lightning.tensors import (
    DistTensor,
    EmbeddingRows,
    GraphReader,
    RowSpace,
    ranks_of_this_process,
    rows_of_index,
)

CONF_PATH = "DGL_CONF_PATH"  # DGL's launcher sets it
_ALIASES = {"feat": "x", "features": "x", "label": "y", "labels": "y"}  # DGL's data sets have the left names
_REFUSED = {
    "in_degrees": "dgl.distributed.sample_neighbors(g, nodes, -1).edges()[1].bincount() counts the edges into nodes.",
    "local_partition": "g.partition has the parts that this process maps.",
    "node_attr_schemes": "g.ndata[name] has shape and dtype.",
    "edge_attr_schemes": "g.edata[name] has shape and dtype.",
    "out_degrees": "parts have the edges into their nodes. Store the degrees as an attribute when you partition.",
    "edge_subgraph": "loaders of edges give the graph of a batch (EdgeDataLoader); find_edges gives the ends of edges.",
}


class CalledRank(int):
    """The number of a process, also as DGL asks for it: ``g.rank()``."""

    def __call__(self) -> int:
        return int(self)


class DistGraph(tensors.DistGraph):
    """A partitioned graph, made with DGL's arguments. All ranks make it at the same time.

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
        self._joined: JoinedHosts | None = None
        if STATE.hosts is None:
            self.partition = LocalPartition.open(self._folder)
            super().__init__(self.partition, seed=STATE.seed)
            self._closing.callback(self.partition.close)
        else:
            self._join(STATE.hosts)
        self.seed = STATE.seed
        self.rank: int = CalledRank(self.rank)
        self._sessions: dict[str, Session] = {}
        self._draws, self._loaders = count(), count()
        STATE.graph = ref(self)
        # by name: who names an embedding that there is gets its rows
        self.embeddings: dict[str, EmbeddingRows] = {}
        self._closing.callback(_close_all, self.embeddings)

    def _join(self, hosts: ScriptHosts) -> None:
        ranks = ranks_of_this_process()
        joined = JoinedHosts(self._folder, hosts, ranks, STATE.num_workers)
        with ExitStack() as failing:
            failing.callback(joined.close)
            super().__init__(
                GraphReader.of(joined.graph),
                ranks=ranks,
                options=hosts.cluster.tensors,
                seed=STATE.seed,
                wait_s=hosts.cluster.deadlines.call_s,
                reach=joined.reach,
            )
            failing.pop_all()
        self._joined, self.partition = joined, joined.partition
        self._closing.callback(joined.close)
        # Before the handlers of weakref, which `ranks_of_this_process` registers: those end the servers through which other
        # hosts still read rows of this one, and samplers.
        atexit.register(_close_at_exit, ref(self))
        Finalize(self, _close_at_exit, args=(ref(self),), exitpriority=20)  # in processes that multiprocessing forks

    def close(self) -> None:
        """Lets go of its tensors, and of the partition. Where there are several hosts it is a collective call: others may need
        rows of this one until they come here, too. Safe to call twice."""
        joined, self._joined = self._joined, None
        if joined is not None and sys.exc_info()[0] is None and torch.distributed.is_initialized():
            self.ranks.exchange("leaving")
        super().close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return type(self), (self.graph_name, str(self._folder))

    # Sizes and types

    number_of_nodes, number_of_edges = tensors.DistGraph.num_nodes, tensors.DistGraph.num_edges

    @property
    def ntypes(self) -> list[NodeType]:
        return self.node_types

    @property
    def etypes(self) -> list[str]:
        return [edge_type[1] for edge_type in self.edge_types]

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        return self.edge_types

    def to_canonical_etype(self, etype: EdgeType | str | None) -> EdgeType:
        """(source type, relation, destination type); None: the only one."""
        return self.edge_types[self.space(etype, "edge").index]

    def get_ntype_id(self, ntype: NodeType | None) -> int:
        """Number of a node type."""
        return self.space(ntype, "node").index

    def get_etype_id(self, etype: EdgeType | str | None) -> int:
        """Number of an edge type."""
        return self.space(etype, "edge").index

    # Edges

    def find_edges(self, edges: Any, etype: EdgeType | str | None = None) -> tuple[Tensor, Tensor]:
        """int64 [n], int64 [n]: rows of the sources and of the destinations of edges."""
        space = self.space(etype, "edge")
        src, dst = self.reader.edge_ends(space, rows_of_index(edges, space.num_rows))
        return torch.from_numpy(src), torch.from_numpy(dst)

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

    def session(self, sampling: SamplingOptions) -> Session:
        """What makes the loaders of this process: its own seeds, without any call of other ranks."""
        key = repr(sampling)
        if key not in self._sessions:
            if (joined := self._joined) is None:
                made = Session(self.partition, sampling, seed=self.seed)
            else:
                made = Session(joined.lent, joined.require(sampling), seed=self.seed)
            self._sessions[key] = made
            self._closing.callback(made.close)
        return self._sessions[key]

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise OptionError(f"DistGraph.{name}: {_REFUSED[name]}")
        raise AttributeError(f"DistGraph has no attribute {name!r}")

    def loader_name(self) -> str:
        """Another one for each loader and rank: they draw apart."""
        return f"dgl/{next(self._loaders)}/{self.rank}"

    def next_key(self) -> int:
        """Key of the next draw, another one on each rank."""
        return batch_key(self.seed, f"dgl/{self.rank}", 0, next(self._draws))


def current_graph() -> DistGraph:
    """The graph that was made last in this process. Raises `DataError` where it is closed, and before there is one."""
    graph = None if STATE.graph is None else STATE.graph()
    if not isinstance(graph, DistGraph) or not graph.is_open:
        raise DataError("the DistGraph that was made last is closed, or there is none. Make a DistGraph first.")
    return graph


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


def _close_at_exit(graph: ref[DistGraph]) -> None:
    if (found := graph()) is not None and getattr(sys, "last_value", None) is None:  # after an exception none waits
        found.close()


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


# Which part has which rows.

_WITHIN = "partid2nids(partid) and partid2eids(partid) are consecutive: subtract the first of them."
_REFUSED_OF_BOOKS = {
    "metadata": "num_partitions() is the number of parts, len(partid2nids(part)) and len(partid2eids(part)) their sizes.",
    "nid2localnid": _WITHIN,
    "eid2localeid": _WITHIN,
}


class GraphPartitionBook:
    """Which part has which rows.

    graph: the graph.  partid: the part that this host maps; the first of them, if there are several.
    """

    def __init__(self, graph: tensors.DistGraph) -> None:
        self.graph = graph
        self.partid = (graph.reader.parts or (0,))[0]

    def num_partitions(self) -> int:
        return self.graph.reader.manifest.num_parts

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

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED_OF_BOOKS:
            raise OptionError(f"GraphPartitionBook.{name}: {_REFUSED_OF_BOOKS[name]}")
        raise AttributeError(f"GraphPartitionBook has no attribute {name!r}")


def _parts(space: RowSpace, ids: Any) -> Tensor:
    return torch.from_numpy(space.parts_of(rows_of_index(ids, space.num_rows)).astype(np.int64))


def _rows(space: RowSpace, part: int) -> Tensor:
    if not 0 <= part < space.num_parts:
        raise DataError(f"part: expected 0 to {space.num_parts - 1}, got {part}.")
    return torch.arange(int(space.bounds[part]), int(space.bounds[part + 1]))
