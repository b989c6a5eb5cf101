"""A batch as one bipartite graph per layer, which is how DGL's models read it (its "message flow graphs", or blocks)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import DataError, OptionError
from glt_lightning.loader.aggregation import aggregate, has_kernels
from glt_lightning.loader.edge_index import believed, hops_of, in_order, plain
from glt_lightning.sampling import Sample

Batch: TypeAlias = Data | HeteroData
EdgeType: TypeAlias = tuple[str, str, str]

_OF_THE_BATCH = {"n_id", "e_id", "input_id", "batch_size", "num_nodes", "edge_index"}


@dataclass(frozen=True)
class Layer:
    """The edges of one layer, from its sources to its destinations, which are the first of the sources. Views of the batch.

    In a graph with one node and one edge type:

    Attributes:
        edge_index: int64 [2, E], sources and destinations, numbered within this layer.
        size: (sources, destinations). A layer of PyG runs on it: ``conv((x, x[: size[1]]), edge_index)``.
        srcdata: Name -> values [sources, ...]: the attributes of nodes, and ``"_ID"``, their user ids (int64).
        dstdata: The same of the destinations.
        edata: Name -> values [E, ...]: the attributes of edges, and ``"_ID"`` where the batch has ids of edges.
        is_block: True, by which DGL tells blocks from graphs.

    In other graphs, ``edge_index``, ``size`` and ``edata`` are dictionaries by edge type, and ``srcdata`` and ``dstdata`` by node
    type, of the same.

    Source: blocks of DGL (Wang et al., 2019). A node is expanded once in a batch here, and its neighbours are the same in all
    layers; DGL draws anew for each layer.

    Example:
        >>> with Session("parts") as session:
        ...     loader = session.make_loader(LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4))
        ...     first, last = layers(next(iter(loader)))
        >>> last.size, last.num_dst_nodes(), len(last.dstdata["_ID"])
        ((6, 4), 4, 4)
    """

    ID: ClassVar[str] = "_ID"  # DGL's dgl.NID and dgl.EID: the user's ids of nodes and edges

    edge_index: Any
    size: Any
    srcdata: dict[str, Any]
    dstdata: dict[str, Any]
    edata: dict[Any, Any]
    is_block: bool = True

    def num_src_nodes(self, node_type: str | None = None) -> int:
        """Sources, of one node type or of all."""
        return _count(self.srcdata, node_type)

    def num_dst_nodes(self, node_type: str | None = None) -> int:
        """Destinations, of one node type or of all."""
        return _count(self.dstdata, node_type)

    number_of_src_nodes, number_of_dst_nodes = num_src_nodes, num_dst_nodes

    def edges(self, edge_type: EdgeType | None = None) -> tuple[Tensor, Tensor]:
        """int64 [E] sources and int64 [E] destinations; ``edge_type`` is needed where there are several."""
        if isinstance(self.edge_index, Tensor):
            return self.edge_index[0], self.edge_index[1]
        if edge_type not in self.edge_index:
            raise OptionError(f"edges: expected an edge type, one of {list(self.edge_index)}; got {edge_type!r}.")
        src, dst = self.edge_index[edge_type]
        return src, dst

    def reduce(self, rows: Tensor, kind: str) -> Tensor:
        """Returns [destinations, D]: the sum, mean or max of the rows of each destination's sources, 0 without any; in a graph
        with one node and one edge type. rows: [sources, D].  kind: ``sum``, ``mean`` or ``max``."""
        src, dst = self.edges()
        if has_kernels(rows):
            if len(dst) and not bool((dst[1:] >= dst[:-1]).all()):  # those of samplers are sorted
                dst, order = torch.sort(dst, stable=True)
                src = src[order]
            ends = torch.bincount(dst, minlength=self.num_dst_nodes()).cumsum(0)
            return aggregate(rows, torch.cat([ends.new_zeros(1), ends]), src.contiguous(), kind=kind)
        out: Tensor = rows.new_zeros(self.num_dst_nodes(), rows.size(1))
        index = dst.unsqueeze(-1).expand(-1, rows.size(1))
        return out.scatter_reduce(0, index, rows[src], {"max": "amax"}.get(kind, kind), include_self=False)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Layer:
        """This layer with all its tensors on ``device``."""
        names = ("edge_index", "srcdata", "dstdata", "edata")
        return replace(self, **{name: _moved(getattr(self, name), device, non_blocking) for name in names})

    def to_dgl(self) -> Any:
        """This layer as a block of DGL, with the ids. Raises `ModuleNotFoundError` without the package ``dgl``."""
        import dgl  # type: ignore[import-not-found]  # the user's own

        if isinstance(self.edge_index, Tensor):
            block = dgl.create_block(self.edges(), *self.size)
            for of, to in ((self.srcdata, block.srcdata), (self.dstdata, block.dstdata), (self.edata, block.edata)):
                to.update({Layer.ID: of[Layer.ID]} if Layer.ID in of else {})
            return block
        ends = {edge_type: (edges[0], edges[1]) for edge_type, edges in self.edge_index.items()}
        sizes = [{t: len(values[Layer.ID]) for t, values in data.items()} for data in (self.srcdata, self.dstdata)]
        block = dgl.create_block(ends, *sizes)
        # by type: given a dictionary of types, DGL 2.1 writes what is for sources to destinations
        for of, views in ((self.srcdata, block.srcnodes), (self.dstdata, block.dstnodes), (self.edata, block.edges)):
            for each, values in of.items():
                if Layer.ID in values:
                    views[each].data[Layer.ID] = values[Layer.ID]
        return block


def layers(batch: Batch) -> list[Layer]:
    """A batch's edges as one `Layer` for each hop, that of the inputs first. No tensor is copied.

    Args:
        batch: Of a loader for nodes or edges.

    Returns:
        One layer per hop: the destinations of the last are the seeds.

    Raises:
        DataError: For a batch without the numbers of nodes and edges of each hop, one whose edges were changed, and one of
            ``sampling.aggregate_first``.

    Example:
        >>> with Session("parts") as session:
        ...     loader = session.make_loader(LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4))
        ...     print([layer.size for layer in layers(next(iter(loader)))])
        [(8, 6), (6, 4)]
    """
    _require_hops(batch)
    typed = isinstance(batch, HeteroData)
    nodes: dict[str, Any] = dict(batch.node_items()) if typed else {"": batch}
    edges: dict[Any, Any] = dict(batch.edge_items()) if typed else {("", "", ""): batch}
    index = {r: store.edge_index for r, store in edges.items()}
    hops_found = hops_of(nodes, edges, index, {t: int(store.num_nodes) for t, store in nodes.items()})
    if hops_found is None or not (believed(index.values()) or in_order(index, hops_found)):
        raise DataError(
            "layers: the edges of the batch are not those of the hops that num_sampled_edges tells: a transform has added, "
            "removed or moved some. Take the batches of a loader as they come."
        )
    found = {t: list(accumulate(store.num_sampled_nodes)) for t, store in nodes.items()}
    drawn = {r: list(accumulate(store.num_sampled_edges)) for r, store in edges.items()}
    hops = len(next(iter(found.values()))) - 1
    made = []
    for hop in range(hops, 0, -1):
        src, dst = ({t: _first(nodes[t], counts[h], "n_id") for t, counts in found.items()} for h in (hop, hop - 1))
        within = {r: plain(each)[:, : drawn[r][hop - 1]] for r, each in index.items()}
        size = {r: (found[r[0]][hop], found[r[2]][hop - 1]) for r in edges}
        data = {r: _first(store, drawn[r][hop - 1], "e_id") for r, store in edges.items()}
        parts: list[Any] = [within, size, src, dst, data]
        made.append(Layer(*(parts if typed else (next(iter(part.values())) for part in parts))))
    return made


def as_blocks(loader: Iterable[Batch]) -> Iterator[tuple[Any, Any, list[Layer]]]:
    """The batches of a loader as DGL's data loaders give them.

    Args:
        loader: A loader for nodes.

    Yields:
        (user ids of all nodes, user ids of the seeds, `layers`): int64 tensors, or dictionaries of them by node type.

    Raises:
        DataError: As `layers`.

    Example:
        >>> with Session("parts") as session:
        ...     loader = session.make_loader(LoaderSpec(name="train", split="train", num_neighbors=[2, 2], batch_size=4))
        ...     for input_nodes, output_nodes, blocks in as_blocks(loader):
        ...         print(len(input_nodes), len(output_nodes), len(blocks))
        8 4 2
        6 2 2
    """
    for batch in loader:
        blocks = layers(batch)
        yield _ids(blocks[0].srcdata), _ids(blocks[-1].dstdata), blocks


def _require_hops(batch: Batch) -> None:
    stores = batch.stores
    if any(Sample.AGGREGATED in store for store in stores):
        raise DataError(
            "layers: the batch has what its last hop brings as sums (sampling.aggregate_first), and not its nodes and edges. "
            "Remove sampling.aggregate_first."
        )
    if not all("num_sampled_nodes" in store for store in batch.node_stores) or not all(
        "num_sampled_edges" in store for store in batch.edge_stores
    ):
        raise DataError(
            "layers: the batch has no num_sampled_nodes and num_sampled_edges, which tell the hops of its edges. Take "
            "the batches of a loader as they come, with subgraph_type: directional."
        )


def _first(store: Any, count: int, ids: str) -> dict[str, Tensor]:
    """The first ``count`` rows of the attributes of nodes or, with ``e_id``, of edges."""
    of = store.is_node_attr if ids == "n_id" else store.is_edge_attr
    rows = {Layer.ID: store[ids][:count]} if ids in store else {}
    return rows | {
        name: values[:count]
        for name, values in store.items()
        if name not in _OF_THE_BATCH and isinstance(values, Tensor) and of(name)
    }


def _count(data: dict[str, Any], node_type: str | None) -> int:
    if Layer.ID in data:
        return len(data[Layer.ID])
    if node_type is None:
        return sum(len(values[Layer.ID]) for values in data.values())
    if node_type not in data:
        raise OptionError(f"node type: expected one of {list(data)}; got {node_type!r}.")
    return len(data[node_type][Layer.ID])


def _ids(data: dict[str, Any]) -> Any:
    """``_ID`` of all rows: a tensor, or a dictionary by node type."""
    return data[Layer.ID] if Layer.ID in data else {t: values[Layer.ID] for t, values in data.items()}


def _moved(value: Any, device: Any, non_blocking: bool) -> Any:
    if isinstance(value, dict):
        return {key: _moved(each, device, non_blocking) for key, each in value.items()}
    return value.to(device, non_blocking=non_blocking)
