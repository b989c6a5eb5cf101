"""Loaders of blocks with DGL's arguments, and samplers of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glt_lightning.dgl.graph import DistGraph
from glt_lightning.dgl.sampling import LayerEdges, fanout_of, rows_by_type, sample_neighbors, to_block
from glt_lightning.dgl.state import STATE
from glt_lightning.errors import OptionError
from glt_lightning.loader import LoaderSpec
from glt_lightning.loader.blocks import ID, Layer, layers
from glt_lightning.options.checks import at_least
from glt_lightning.sampler.request import shuffle_key
from glt_lightning.types import NodeType, edge_type_str


class BlockSampler:
    """A sampler of one's own: subclass it, and say in ``sample_frontier`` along which edges each layer passes messages. It runs
    in the training process.

    Args:
        num_layers: Number of layers.
        return_eids: Blocks have the rows of their edges, ``edata[dgl.EID]``.
    """

    def __init__(self, num_layers: int, return_eids: bool = False) -> None:
        at_least("BlockSampler: num_layers", num_layers, 1)
        self.num_layers, self.return_eids = num_layers, return_eids

    def sample_frontier(self, block_id: int, g: DistGraph, seed_nodes: Any) -> LayerEdges:
        """The edges of a layer; those of layer 0 are the farthest from the seeds. seed_nodes: its destinations."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_frontier.")

    def sample_blocks(self, g: DistGraph, seed_nodes: Any) -> list[Layer]:
        """The blocks of a batch, that of the inputs first."""
        blocks: list[Layer] = []
        for block_id in reversed(range(self.num_layers)):
            frontier = self.sample_frontier(block_id, g, seed_nodes)
            if not isinstance(frontier, LayerEdges):
                raise OptionError(
                    f"{type(self).__name__}.sample_frontier: expected a LayerEdges, such as sample_neighbors gives, got "
                    f"{type(frontier).__name__}."
                )
            blocks.insert(0, to_block(frontier, seed_nodes, self.return_eids))
            seed_nodes = ids_of(blocks[0].srcdata)
        return blocks


class MultiLayerNeighborSampler(BlockSampler):
    """Draws some number of neighbours for each node and layer. Our loaders do it, which expand a node once in a batch. With
    ``return_eids``, and where a layer draws nothing of an edge type, each layer draws anew in the training process, as in DGL.

    Args:
        fanouts: For each layer, that of the inputs first: a number, or numbers by edge type. -1: all.
        replace: Draw with replacement.
        prob: An attribute of ``partition.weights`` to draw by.
        return_eids: Blocks have the rows of their edges, ``edata[dgl.EID]``.
    """

    def __init__(
        self, fanouts: Sequence[Any], *, replace: bool = False, prob: str | None = None, return_eids: bool = False
    ) -> None:
        super().__init__(len(fanouts), return_eids)
        self.fanouts, self.replace, self.prob = list(fanouts), replace, prob

    def sample_frontier(self, block_id: int, g: DistGraph, seed_nodes: Any) -> LayerEdges:
        return sample_neighbors(g, seed_nodes, self.fanouts[block_id], prob=self.prob, replace=self.replace)

    def num_neighbors(self, g: DistGraph) -> Any:
        """As loaders take them: the hop of the seeds first. None where loaders cannot: with ids of edges, and with layers that
        draw nothing of an edge type."""
        outward = [{e: fanout_of(fanout, e) for e in g.edge_types} for fanout in self.fanouts[::-1]]
        if self.return_eids or not all(all(by_type.values()) for by_type in outward):
            return None
        return {edge_type_str(e): [by_type[e] for by_type in outward] for e in g.edge_types}


class MultiLayerFullNeighborSampler(MultiLayerNeighborSampler):
    """All neighbours.

    Args:
        num_layers: Number of layers.
        return_eids: As of `MultiLayerNeighborSampler`.
    """

    def __init__(self, num_layers: int, *, return_eids: bool = False) -> None:
        super().__init__([-1] * num_layers, return_eids=return_eids)


class NodeDataLoader:
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
        if not isinstance(g, DistGraph) or not isinstance(graph_sampler, BlockSampler):
            raise OptionError(
                f"NodeDataLoader: expected a DistGraph and a BlockSampler of glt_lightning.dgl, got {type(g).__name__} and "
                f"{type(graph_sampler).__name__}."
            )
        at_least("NodeDataLoader: batch_size", batch_size, 1)
        self.graph, self.graph_sampler, self.device = g, graph_sampler, device
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        self._typed, self._name, self._epoch = isinstance(nids, Mapping), g.loader_name(), 0
        self._seeds = rows_by_type(g, nids)
        user_ids = {t: g.user_ids(rows, t).numpy() for t, rows in self._seeds.items()}  # raises for wrong rows
        self._loader = None
        ours = graph_sampler if isinstance(graph_sampler, _OURS) and type(graph_sampler) in _OURS else None
        fanouts = None if ours is None else ours.num_neighbors(g)
        if ours is not None and fanouts is not None:
            workers = STATE.num_workers if num_workers is None else num_workers
            if len(self):
                context = g.context(workers, ours.replace)
                self._loader = context.make_loader(self._spec(ours, fanouts, user_ids))
        elif num_workers:
            raise OptionError(
                f"NodeDataLoader: num_workers: a sampler of one's own, and one with return_eids, runs in the training process; "
                f"got {num_workers}. Give 0."
            )

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

    def __len__(self) -> int:
        whole, rest = divmod(sum(map(len, self._seeds.values())), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        for blocks in self._drawn_blocks() if self._loader is None else self._loaded_blocks():
            yield self._item(blocks if self.device is None else [block.to(self.device) for block in blocks])

    def _item(self, blocks: list[Layer]) -> Any:
        return ids_of(blocks[0].srcdata), ids_of(blocks[-1].dstdata), blocks

    def _loaded_blocks(self) -> Iterator[list[Layer]]:
        assert self._loader is not None
        for number, batch in enumerate(self._loader):
            if number == len(self):
                return
            yield [_in_rows(layer) for layer in layers(batch)]

    def _drawn_blocks(self) -> Iterator[list[Layer]]:
        types, rows = list(self._seeds), torch.cat(list(self._seeds.values()))
        of = torch.repeat_interleave(torch.tensor([len(each) for each in self._seeds.values()]))
        order = torch.arange(len(rows))
        if self.shuffle:
            key = shuffle_key(self.graph.seed, self._name, self._epoch)
            order = torch.from_numpy(np.random.Generator(np.random.Philox(key=key)).permutation(len(rows)))
        self._epoch += 1
        for number in range(len(self)):
            at = order[number * self.batch_size : (number + 1) * self.batch_size]
            by_type = {t: rows[at][of[at] == i] for i, t in enumerate(types)}
            yield self.graph_sampler.sample_blocks(self.graph, by_type if self._typed else rows[at])


DistNodeDataLoader = NodeDataLoader
_OURS = (MultiLayerNeighborSampler, MultiLayerFullNeighborSampler)


def ids_of(data: Mapping[str, Any]) -> Any:
    """The rows of nodes: a tensor, or by node type."""
    return data[ID] if ID in data else {t: values[ID] for t, values in data.items()}


def _in_rows(layer: Layer) -> Layer:
    """A layer of our loaders with rows as its ids. Its edges have none: loaders give the user's."""

    def nodes(data: dict[str, Any]) -> dict[str, Any]:
        if "row" not in data:
            return {t: nodes(values) for t, values in data.items()}
        return {ID: data["row"]} | {name: values for name, values in data.items() if name not in (ID, "row")}

    def edges(data: dict[Any, Any]) -> dict[Any, Any]:
        return {key: edges(value) if isinstance(value, dict) else value for key, value in data.items() if key != ID}

    return Layer(layer.edge_index, layer.size, nodes(layer.srcdata), nodes(layer.dstdata), edges(layer.edata))


__all__ = [
    "BlockSampler",
    "DistNodeDataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NodeDataLoader",
]
