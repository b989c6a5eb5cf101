"""Outputs of all nodes, layer by layer: each layer over the whole graph before the next one starts.

A module offers its layers by the protocol `Layerwise`: ``num_layers`` and ``layer(k, h, batch)``, the outputs of layer
k for the seeds of a batch of one hop with all neighbours; or it has ``layerwise_layers``, as the ready models do, or is
a model of PyG's `BasicGNN` family. `ConvLayers`, `GNNLayers` and `TypedLayers` are bases for layers of convolutions.

`LayerwiseRun` goes through the layers: each rank computes the nodes of its parts in chunks, writes their rows into
shared memory, or a scratch file, and the ranks wait for each other between layers. Rows of other hosts are fetched once
per layer. A node with more edges than fit into memory at once is computed from some of its edges at a time
(``pieces.py``).

The half that belongs to a Trainer (`predict_layerwise`, ``evaluation.mode: layerwise``), with the progress on disk from which
a killed run goes on, is in `glt_lightning.lightning`.
`rank_links` ranks links among all destinations.

Runs in the ranks.

Example:
    >>> import numpy as np
    >>> from glt_lightning.inference import rank_links
    >>> rows = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
    >>> rank_links(rows, rows, np.array([[0], [2]]), known=np.array([[0], [0]]), metrics=["hits@1"])
    {'hits@1': 1.0}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.inference.convs import (
        ConvLayers as ConvLayers,
        GNNLayers as GNNLayers,
        TypedLayers as TypedLayers,
        find_layers as find_layers,
    )
    from glt_lightning.inference.neighbours import nearest as nearest
    from glt_lightning.inference.pieces import (
        RunningSoftmax as RunningSoftmax,
        RunningSum as RunningSum,
    )
    from glt_lightning.inference.protocol import LayerwiseLayers as LayerwiseLayers
    from glt_lightning.inference.ranking import (
        Ranking as Ranking,
        RankMetric as RankMetric,
        rank_links as rank_links,
    )
    from glt_lightning.inference.run import LayerwiseRun as LayerwiseRun
    from glt_lightning.inference.states import Marks as Marks
    from glt_lightning.inference.top_k import (
        Candidates as Candidates,
        KnownPairs as KnownPairs,
        TopK as TopK,
    )


__all__ = ["rank_links"]

__getattr__, __dir__ = lazy_names(__name__)
