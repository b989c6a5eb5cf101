"""Loaders of blocks with DGL's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader

from glt_lightning.base import NodeType, OptionError, SamplingOptions, at_least
from glt_lightning.compat.dgl.edge_sampler import EdgePredictionSampler
from glt_lightning.compat.dgl.exclude import edges_by_type
from glt_lightning.compat.dgl.graph import DistGraph
from glt_lightning.compat.dgl.hosts import STATE
from glt_lightning.compat.dgl.samplers import OURS, BlockSampler, MultiLayerNeighborSampler, blocks_of, ids_of
from glt_lightning.compat.dgl.sampling import Block, rows_by_type
from glt_lightning.loader import Layer, LoaderSpec, layers
from glt_lightning.sampling import shuffle_key

_Key = TypeVar("_Key")


class SeedLoader:
    """What the loaders share: the order of the seeds of this rank, nodes or edges.

    seeds: rows by type.  typed: batches are by type, too.
    """

    def __init__(
        self,
        g: DistGraph,
        seeds: Mapping[Any, Tensor],
        typed: bool,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        device: Any,
    ) -> None:
        at_least(f"{type(self).__name__}: batch_size", batch_size, 1)
        self.graph, self.device = g, device
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        self._seeds, self._typed, self._name, self._epoch = seeds, typed, g.loader_name(), 0

    def __len__(self) -> int:
        whole, rest = divmod(sum(map(len, self._seeds.values())), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def _batches(self) -> Iterator[Any]:
        """The seeds of each batch of the next epoch: rows, or by type."""
        types, rows = list(self._seeds), torch.cat(list(self._seeds.values()))
        of = torch.repeat_interleave(torch.tensor([len(each) for each in self._seeds.values()]))
        order = torch.arange(len(rows))
        if self.shuffle:
            key = shuffle_key(self.graph.seed, self._name, self._epoch)
            order = torch.from_numpy(np.random.Generator(np.random.Philox(key=key)).permutation(len(rows)))
        self._epoch += 1
        for number in range(len(self)):
            at = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield {t: rows[at][of[at] == i] for i, t in enumerate(types)} if self._typed else rows[at]

    def _on_device(self, blocks: list[Layer]) -> list[Layer]:
        return blocks if self.device is None else [block.to(self.device) for block in blocks]


class NodeDataLoader(SeedLoader):
    """Yields (input_nodes, output_nodes, blocks) for the seeds of this rank. No other rank takes part.

    Args:
        g: The graph.
        nids: Rows of the seeds, such as `node_split` gives; or by node type.
        graph_sampler: A `BlockSampler`.
        device: To which ids and blocks are moved. None: the CPU.
        batch_size: Seeds in a batch.
        shuffle: Another order in each epoch.
        drop_last: Without the last batch, if it is smaller.
        num_workers: Sampler processes. None: as `initialize` said. A sampler of one's own runs without.

    Raises:
        OptionError: For another kind of graph or sampler, and ``num_workers`` with a sampler of one's own.
        DataError: For rows that there are not.
    """

    def __init__(
        self,
        g: DistGraph,
        nids: Any,
        graph_sampler: BlockSampler,
        device: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        num_workers: int | None = None,
    ) -> None:
        require("NodeDataLoader", g, graph_sampler, BlockSampler)
        super().__init__(g, rows_by_type(g, nids), isinstance(nids, Mapping), batch_size, shuffle, drop_last, device)
        self.graph_sampler = graph_sampler
        user_ids = {t: g.user_ids(rows, t).numpy() for t, rows in self._seeds.items()}  # raises for wrong rows
        self._loader = None
        ours = graph_sampler if isinstance(graph_sampler, OURS) and type(graph_sampler) in OURS else None
        fanouts = None if ours is None else ours.num_neighbors(g)
        if ours is not None and fanouts is not None:
            workers = STATE.num_workers if num_workers is None else num_workers
            if len(self):
                session = g.session(SamplingOptions(num_workers=workers, **ours.sampling))
                self._loader = session.make_loader(self._spec(ours, fanouts, user_ids))
        else:
            require_no_workers("NodeDataLoader", num_workers)

    def _spec(
        self, sampler: MultiLayerNeighborSampler, fanouts: Any, user_ids: dict[NodeType, np.ndarray]
    ) -> LoaderSpec:
        return LoaderSpec(
            name=self._name,
            seeds=user_ids if self._typed else next(iter(user_ids.values())),
            node_type=None if self._typed else next(iter(user_ids)),
            num_neighbors=fanouts,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            weight_attr=sampler.prob,
            with_row=True,
        )

    def __iter__(self) -> Iterator[Any]:
        for blocks in self._drawn_blocks() if self._loader is None else self._loaded_blocks():
            yield self._item(self._on_device(blocks))

    def _item(self, blocks: list[Layer]) -> Any:
        return ids_of(blocks[0].srcdata), ids_of(blocks[-1].dstdata), blocks

    def _loaded_blocks(self) -> Iterator[list[Layer]]:
        assert self._loader is not None
        for number, batch in enumerate(self._loader):
            if number == len(self):
                return
            yield [_in_rows(layer) for layer in layers(batch)]

    def _drawn_blocks(self) -> Iterator[list[Layer]]:
        for seeds in self._batches():
            yield blocks_of(self.graph_sampler.sample_blocks(self.graph, seeds), self.graph_sampler)


DistNodeDataLoader = NodeDataLoader


class EdgeDataLoader(SeedLoader):
    """Yields (input_nodes, pair_graph, blocks) for the edges of this rank, and with ``negative_sampler`` (input_nodes,
    pair_graph, negative_graph, blocks). The nodes of the graphs are the destinations of the last block. Draws in the training
    process.

    Args:
        g: The graph.
        eids: Rows of the edges, such as `edge_split` gives; or by edge type.
        graph_sampler: A `BlockSampler`.
        device: To which ids, graphs and blocks are moved. None: the CPU.
        batch_size: Edges in a batch.
        shuffle: Another order in each epoch.
        drop_last: Without the last batch, if it is smaller.
        num_workers: 0, or None.
        exclude: Which edges no layer passes messages along, as of `find_exclude_eids`: ``self``, ``reverse_id``,
            ``reverse_types``, a function of the batch's edges, or edges.
        reverse_eids: Edge row -> row of the reverse edge, or by edge type; for ``reverse_id``.
        reverse_etypes: Edge type -> that of the reverse edges; for ``reverse_types``.
        negative_sampler: ``f(g, edges)`` gives pairs (rows of sources, rows of destinations), or by edge type; those of
            `negative_sampler` do.

    Raises:
        OptionError: For another kind of graph or sampler, and for ``num_workers``.
        DataError: For rows that there are not.
    """

    def __init__(
        self,
        g: DistGraph,
        eids: Any,
        graph_sampler: BlockSampler,
        device: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        num_workers: int | None = None,
        *,
        exclude: Any = None,
        reverse_eids: Any = None,
        reverse_etypes: Any = None,
        negative_sampler: Callable[[DistGraph, Any], Any] | None = None,
    ) -> None:
        require("EdgeDataLoader", g, graph_sampler, BlockSampler)
        require_no_workers("EdgeDataLoader", num_workers)
        super().__init__(g, edges_by_type(g, eids), isinstance(eids, Mapping), batch_size, shuffle, drop_last, device)
        for edge_type, rows in self._seeds.items():
            g.user_ids(rows, edge_type)  # raises for wrong rows
        self._sampler = EdgePredictionSampler(graph_sampler, exclude, reverse_eids, reverse_etypes, negative_sampler)

    def __iter__(self) -> Iterator[Any]:
        for seeds in self._batches():
            *found, blocks = self._sampler.sample(self.graph, seeds)
            blocks = self._on_device(blocks)
            graphs = found[1:] if self.device is None else [each.to(self.device) for each in found[1:]]
            yield ids_of(blocks[0].srcdata), *graphs, blocks


DistEdgeDataLoader = EdgeDataLoader


def require(who: str, g: Any, sampler: Any, kinds: Any) -> None:
    """Raises `OptionError` for a graph or sampler of another package."""
    if not isinstance(g, DistGraph) or not isinstance(sampler, kinds):
        raise OptionError(
            f"{who}: expected a DistGraph and a BlockSampler of glt_lightning.compat.dgl, got {type(g).__name__} and "
            f"{type(sampler).__name__}."
        )


def require_no_workers(who: str, num_workers: int | None) -> None:
    if num_workers:
        raise OptionError(
            f"{who}: num_workers: a sampler of one's own, one with return_eids, and one of edges runs in the training process; "
            f"got {num_workers}. Give 0."
        )


def _in_rows(layer: Layer) -> Block:
    """A layer of our loaders with rows as its ids. Its edges have none: loaders give the user's."""

    def nodes(data: dict[str, Any]) -> dict[str, Any]:
        if "row" not in data:
            return {t: nodes(values) for t, values in data.items()}
        return {Layer.ID: data["row"]} | {
            name: values for name, values in data.items() if name not in (Layer.ID, "row")
        }

    def edges(data: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: edges(value) if isinstance(value, dict) else value for key, value in data.items() if key != Layer.ID
        }

    return Block(layer.edge_index, layer.size, nodes(layer.srcdata), nodes(layer.dstdata), edges(layer.edata))


class DistDataLoader(TorchLoader[Any]):
    """Any seeds in batches, for a function of one's own, in the training process.

    Args:
        dataset: The seeds.
        batch_size: Of them in a batch.
        shuffle: Another order in each epoch, by torch's seed.
        collate_fn: Makes a batch of a list of seeds.
        drop_last: Without the last batch, if it is smaller.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, batch_size=batch_size, shuffle=shuffle, collate_fn=collate_fn, drop_last=drop_last)
