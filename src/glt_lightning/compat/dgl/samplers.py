"""Samplers of blocks with DGL's arguments, and what samplers of one's own begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glt_lightning.base import OptionError, at_least, edge_type_str, lazy_names
from glt_lightning.compat.dgl.exclude import EdgePairs, edges_by_type, pairs_of
from glt_lightning.compat.dgl.graph import DistGraph
from glt_lightning.compat.dgl.sampling import LayerEdges, fanout_of, sample_neighbors, to_block
from glt_lightning.loader import Layer


class BlockSampler:
    """A sampler of one's own: subclass it, and say in ``sample_frontier`` along which edges each layer passes messages; or
    write ``sample_blocks`` whole. It runs in the training process.

    Args:
        num_layers: Number of layers. None: ``sample_blocks`` is your own.
        return_eids: No effect: blocks have the rows of their edges, ``edata[dgl.EID]``.
    """

    def __init__(self, num_layers: int | None = None, return_eids: bool = False) -> None:
        if num_layers is not None:
            at_least("BlockSampler: num_layers", num_layers, 1)
        self.num_layers, self.return_eids = num_layers, return_eids

    def sample_frontier(self, block_id: int, g: DistGraph, seed_nodes: Any) -> LayerEdges:
        """The edges of a layer; those of layer 0 are the farthest from the seeds. seed_nodes: its destinations."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_frontier.")

    def sample_blocks(self, g: DistGraph, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        """The blocks of a batch, that of the inputs first; one of your own may give DGL's (input_nodes, output_nodes, blocks).

        exclude_eids: edges that no layer passes messages along, as `sample_neighbors` takes them.
        """
        if self.num_layers is None:
            raise OptionError(
                f"{type(self).__name__}: num_layers: without it, the class has to define sample_blocks. Give the number of "
                "layers, or define it."
            )
        excluded = pairs_of(g, exclude_eids)
        blocks: list[Layer] = []
        for block_id in reversed(range(self.num_layers)):
            frontier = self._without(block_id, g, seed_nodes, excluded)
            blocks.insert(0, to_block(frontier, seed_nodes))
            seed_nodes = ids_of(blocks[0].srcdata)
        return blocks

    def _without(self, block_id: int, g: DistGraph, seed_nodes: Any, excluded: EdgePairs | None) -> LayerEdges:
        """The edges of a layer, without those that are excluded. Layers of one's own lose them after they were drawn."""
        frontier = self.sample_frontier(block_id, g, seed_nodes)
        if not isinstance(frontier, LayerEdges):
            raise OptionError(
                f"{type(self).__name__}.sample_frontier: expected a LayerEdges, such as sample_neighbors gives, got "
                f"{type(frontier).__name__}."
            )
        return frontier if excluded is None else frontier.without(excluded)


class MultiLayerNeighborSampler(BlockSampler):
    """Draws some number of neighbours for each node and layer. Our loaders do it, which expand a node once in a batch. With
    ``return_eids``, for edges, and where a layer draws nothing of an edge type, each layer draws anew in the training process,
    as in DGL.

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
        return self._draw(block_id, g, seed_nodes, None)

    def _draw(self, block_id: int, g: DistGraph, seed_nodes: Any, excluded: EdgePairs | None) -> LayerEdges:
        fanout = self.fanouts[block_id]
        return sample_neighbors(g, seed_nodes, fanout, prob=self.prob, replace=self.replace, exclude_edges=excluded)

    def _without(self, block_id: int, g: DistGraph, seed_nodes: Any, excluded: EdgePairs | None) -> LayerEdges:
        if type(self).sample_frontier is not MultiLayerNeighborSampler.sample_frontier:
            return super()._without(block_id, g, seed_nodes, excluded)
        return self._draw(block_id, g, seed_nodes, excluded)

    @property
    def sampling(self) -> dict[str, Any]:
        """What differs in the options of the loaders that draw."""
        return {"replace": True} if self.replace else {}

    def num_neighbors(self, g: DistGraph) -> Any:
        """As loaders take them: the hop of the seeds first. None where loaders cannot: with ids of edges, and with layers that
        draw nothing of an edge type."""
        outward = [{e: fanout_of(fanout, e) for e in g.edge_types} for fanout in self.fanouts[::-1]]
        if self.return_eids or not all(all(by_type.values()) for by_type in outward):
            return None
        return {edge_type_str(e): [by_type[e] for by_type in outward] for e in g.edge_types}


NeighborSampler = MultiLayerNeighborSampler


class MultiLayerFullNeighborSampler(MultiLayerNeighborSampler):
    """All neighbours.

    Args:
        num_layers: Number of layers.
        return_eids: As of `MultiLayerNeighborSampler`.
    """

    def __init__(self, num_layers: int, *, return_eids: bool = False) -> None:
        super().__init__([-1] * num_layers, return_eids=return_eids)


OURS = (MultiLayerNeighborSampler, MultiLayerFullNeighborSampler)


def blocks_of(found: Any, sampler: BlockSampler) -> list[Layer]:
    """The blocks of what ``sample_blocks`` gave: of a list, or of (input_nodes, output_nodes, blocks)."""
    blocks = found[-1] if isinstance(found, tuple) else found
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, Layer) for block in blocks):
        raise OptionError(
            f"{type(sampler).__name__}.sample_blocks: expected a list of blocks, such as to_block gives, or (input_nodes, "
            f"output_nodes, blocks); got {type(found).__name__}."
        )
    return blocks


def ids_of(data: Mapping[str, Any]) -> Any:
    """The rows of nodes: a tensor, or by node type."""
    return data[Layer.ID] if Layer.ID in data else {t: values[Layer.ID] for t, values in data.items()}


# Negatives of a batch of edges: pairs of nodes as examples of pairs that are no edges.


class Uniform:
    """Called with the graph and rows of edges, or rows by edge type, it gives (rows of sources, rows of destinations), or these
    by edge type: for each edge k destinations for its source, each of all nodes of the type alike; they may be edges by chance,
    as in DGL. Draws follow ``dgl.seed``. Our own loaders of edges draw strict ones (``neg_sampling``).

    Args:
        k: Negatives for each edge.
    """

    def __init__(self, k: int) -> None:
        at_least("Uniform: k", k, 1)
        self.k = k

    def __call__(self, g: DistGraph, eids: Any) -> Any:
        found = {}
        for edge_type, rows in edges_by_type(g, eids).items():
            random = np.random.Generator(np.random.Philox(key=g.next_key()))
            src = g.find_edges(rows, edge_type)[0].repeat_interleave(self.k)
            found[edge_type] = src, torch.from_numpy(random.integers(0, g.num_nodes(edge_type[2]), len(src)))
        return found if isinstance(eids, Mapping) else next(iter(found.values()))


__all__ = ["Uniform"]

_REFUSED = dict.fromkeys(
    ("GlobalUniform", "PerSourceUniform"),
    "{name}: use Uniform, or loaders of our own, whose neg_sampling draws pairs that are no edges.",
)

__getattr__, __dir__ = lazy_names(__name__, {}, _REFUSED)
