"""What makes a batch of a list of seeds, for `torch.utils.data.DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader

from glt_lightning.compat.dgl.edge_sampler import as_edge_prediction_sampler
from glt_lightning.compat.dgl.exclude import edges_by_type
from glt_lightning.compat.dgl.graph import DistGraph
from glt_lightning.compat.dgl.samplers import BlockSampler, blocks_of, ids_of
from glt_lightning.compat.dgl.sampling import rows_by_type


class Collator:
    """dataset: the seeds, a list of rows, or of (type, row) where they are given by type."""

    def __init__(self, g: DistGraph, seeds: Mapping[Any, Any], typed: bool) -> None:
        self.g, self._typed = g, typed
        self.dataset: list[Any] = [(t, int(row)) if typed else int(row) for t, rows in seeds.items() for row in rows]

    def _seeds(self, items: Sequence[Any]) -> Any:
        if not self._typed:
            return torch.as_tensor(items)
        types = dict.fromkeys(t for t, _ in items)
        return {t: torch.tensor([row for of, row in items if of == t]) for t in types}


class NodeCollator(Collator):
    """Makes (input_nodes, output_nodes, blocks) of seed nodes.

    Args:
        g: The graph.
        nids: Rows of the seeds, or by node type.
        graph_sampler: Of the blocks.
    """

    def __init__(self, g: DistGraph, nids: Any, graph_sampler: BlockSampler) -> None:
        super().__init__(g, rows_by_type(g, nids), isinstance(nids, Mapping))
        self.graph_sampler = graph_sampler

    def collate(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """items: some of the dataset."""
        blocks = blocks_of(self.graph_sampler.sample_blocks(self.g, self._seeds(items)), self.graph_sampler)
        return ids_of(blocks[0].srcdata), ids_of(blocks[-1].dstdata), blocks


class EdgeCollator(Collator):
    """Makes (input_nodes, pair_graph, blocks) of edges, or with negatives (input_nodes, pair_graph, negative_graph, blocks).

    Args:
        g: The graph.
        eids: Rows of the edges, or by edge type.
        graph_sampler: Of the blocks.
        **options: As of `as_edge_prediction_sampler`.
    """

    def __init__(self, g: DistGraph, eids: Any, graph_sampler: BlockSampler, **options: Any) -> None:
        super().__init__(g, edges_by_type(g, eids), isinstance(eids, Mapping))
        self.graph_sampler = as_edge_prediction_sampler(graph_sampler, **options)

    def collate(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """items: some of the dataset."""
        return self.graph_sampler.sample(self.g, self._seeds(items))


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
